"""Significance: is the difference between two systems on the same sentences larger than chance explains?

A difference is the value of a system minus that of the baseline. Both tests use only the statistics of each sentence,
so they work for every metric:

- Paired bootstrap (Koehn 2004): resample the sentences with replacement, the same sentences for both systems. The
  differences on the resamples vary around the observed one as the observed one varies around the true one.
- Approximate randomization (Riezler and Maxwell 2005): if the systems are equally good, exchanging their outputs for a
  sentence changes nothing. Exchange them for a random half of the sentences, and count how often the difference is as
  large as the observed one.

p-values are two-sided and have the +1 correction: (1 + count) / (1 + resamples), so they are never 0 (Phipson and Smyth
2010).

Resampling sentences describes how much a value depends on the choice of sentences. It does not show how much it depends
on the seed of training: initial weights, batches and dropout. For that, train with several seeds: `compare_over_seeds`
tests the difference between runs of two systems that differ only in their seed.

N sentences, K statistics, R resamples or trials, M tests.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from regard.evaluation.metrics import RESAMPLES, Interval, MetricStatistics, Statistics, percentile_interval

TestName = Literal["bootstrap", "randomization"]
CorrectionName = Literal["holm", "bh", "none"]
TESTS: tuple[TestName, ...] = get_args(TestName)
CORRECTIONS: tuple[CorrectionName, ...] = get_args(CorrectionName)

TRIALS = 10_000
"""The default number of trials of approximate randomization, as in sacrebleu."""

_TOLERANCE = 1e-9
"""Differences that are equal up to rounding count as equal."""

_CHUNK = 1 << 22
"""The number of exchange decisions that are held in memory at a time."""


@dataclass(frozen=True)
class SignificanceTest:
    """Which test to use, with how many resamples or trials, and with which seed."""

    name: TestName = "bootstrap"
    resamples: int = RESAMPLES
    """Resamples for the bootstrap test, and for confidence intervals."""
    trials: int = TRIALS
    """Trials of approximate randomization."""
    seed: int = 0

    def describe(self) -> str:
        """Describe the test in one line, with its seed."""
        if self.name == "bootstrap":
            return f"paired bootstrap, {self.resamples:,} resamples, seed {self.seed}"
        return f"approximate randomization, {self.trials:,} trials, seed {self.seed}"


@dataclass(frozen=True)
class Difference:
    """The difference between two systems on the same sentences."""

    value: float
    """The value of the system minus that of the baseline."""
    interval: Interval
    """95 % confidence interval, from bootstrap resamples."""
    p_value: float
    """The probability of a difference at least this large in either direction if the systems are equally good."""
    share_better: float
    """The share of resamples on which the system is better than the baseline (Koehn 2004)."""
    sacrebleu_p_value: float
    """The p-value that sacrebleu's paired bootstrap would print: see `compute_sacrebleu_p_value`."""


def compare_pair(
    baseline: MetricStatistics,
    system: MetricStatistics,
    test: SignificanceTest = SignificanceTest(),  # noqa: B008 - immutable
    *,
    higher_is_better: bool = True,
    resampled: tuple[Statistics, Statistics] | None = None,
) -> Difference:
    """Compare a system with a baseline on the same sentences.

    Args:
        baseline: The statistics of the baseline.
        system: The statistics of the system, in the same order of sentences.
        test: The test.
        higher_is_better: Whether a higher value is better.
        resampled: The values of baseline and system on resamples with the same seed, if they are known already.
    """
    if len(baseline.statistics_NK) != len(system.statistics_NK):
        raise ValueError(
            f"The baseline has {len(baseline.statistics_NK)} sentences, and the system {len(system.statistics_NK)}. A "
            "paired test needs the same sentences."
        )
    if resampled is None:
        resampled = baseline.resample(test.resamples, test.seed), system.resample(test.resamples, test.seed)
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        differences_R = resampled[1] - resampled[0]
    observed = system.value - baseline.value
    if test.name == "bootstrap":
        p_value = compute_bootstrap_p_value(observed, differences_R)
    else:
        p_value = compute_randomization_p_value(baseline, system, test.trials, test.seed)
    better_R = differences_R > 0 if higher_is_better else differences_R < 0
    return Difference(
        observed,
        percentile_interval(differences_R),
        p_value,
        float(better_R.mean()),
        compute_sacrebleu_p_value(observed, differences_R),
    )


def compute_bootstrap_p_value(observed: float, differences_R: Statistics) -> float:
    """Return the p-value of the paired bootstrap test.

    p = (1 + #{r: |d_r − d̄| ≥ |d|}) / (1 + R), where d is the observed difference, d_r the difference on resample r, and
    d̄ their average. Shifting the differences by d̄ gives their distribution if the systems are equally good.
    """
    with np.errstate(invalid="ignore"):
        sizes_R = np.abs(differences_R - differences_R.mean())
    return _to_p_value(sizes_R, abs(observed))


def compute_sacrebleu_p_value(observed: float, differences_R: Statistics) -> float:
    """Return the p-value as sacrebleu computes it: p = (1 + #{r: |d_r| − avg |d_r| > |d|}) / (1 + R).

    Absolute values are taken before the shift, so for clear differences only one tail is counted: the value is about
    half of the two-sided p-value. If the systems are equally good, it is below 0.05 in about 10 % of all tests.
    """
    sizes_R = np.abs(differences_R)
    with np.errstate(invalid="ignore"):
        exceeding = np.count_nonzero(sizes_R - sizes_R.mean() > abs(observed))
    return (1 + exceeding) / (1 + len(differences_R))


def compute_randomization_p_value(
    baseline: MetricStatistics, system: MetricStatistics, trials: int = TRIALS, seed: int = 0
) -> float:
    """Return the p-value of approximate randomization: p = (1 + #{r: |d_r| ≥ |d|}) / (1 + R).

    In trial r, the outputs of the two systems are exchanged for each sentence with probability ½.
    """
    generator = np.random.default_rng(seed)
    with np.errstate(invalid="ignore"):
        changes_NK = system.statistics_NK - baseline.statistics_NK
    baseline_K, system_K = baseline.statistics_NK.sum(0), system.statistics_NK.sum(0)
    sizes = []
    chunk = max(1, _CHUNK // len(changes_NK))
    for start in range(0, trials, chunk):
        exchanged_RN = generator.integers(2, size=(min(chunk, trials - start), len(changes_NK)), dtype=np.uint8)
        with np.errstate(invalid="ignore"):
            shift_RK = exchanged_RN.astype(np.float64) @ changes_NK
            first_R = baseline.compute_values(baseline_K + shift_RK)
            second_R = baseline.compute_values(system_K - shift_RK)
            sizes.append(np.abs(second_R - first_R))
    return _to_p_value(np.concatenate(sizes), abs(system.value - baseline.value))


def _to_p_value(sizes_R: Statistics, observed: float) -> float:
    """Return the share of differences that are at least as large as the observed one, with the +1 correction.

    Differences that are not numbers, such as ∞ − ∞, count as large, so that they are never evidence.
    """
    threshold = observed - _TOLERANCE * max(1.0, observed)
    smaller = int(np.count_nonzero(sizes_R < threshold))
    return (1 + len(sizes_R) - smaller) / (1 + len(sizes_R))


def correct_holm(p_values: Sequence[float]) -> NDArray[np.float64]:
    """Return adjusted p-values that control the probability of one or more false discoveries (Holm 1979).

    The i-th smallest of M p-values is multiplied by M − i + 1; an adjusted value is never below that of a smaller one.
    """
    p_M = np.asarray(p_values, np.float64)
    order = np.argsort(p_M, kind="stable")
    factors = np.arange(len(p_M), 0, -1)
    adjusted = np.empty_like(p_M)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p_M[order] * factors))
    return adjusted


def correct_benjamini_hochberg(p_values: Sequence[float]) -> NDArray[np.float64]:
    """Return adjusted p-values that control the expected share of false discoveries (Benjamini and Hochberg 1995).

    The i-th smallest of M p-values is multiplied by M / i; an adjusted value is never above that of a larger one.
    """
    p_M = np.asarray(p_values, np.float64)
    order = np.argsort(p_M, kind="stable")[::-1]
    factors = len(p_M) / np.arange(len(p_M), 0, -1)
    adjusted = np.empty_like(p_M)
    adjusted[order] = np.minimum(1.0, np.minimum.accumulate(p_M[order] * factors))
    return adjusted


_CORRECTIONS: dict[CorrectionName, Callable[[Sequence[float]], NDArray[np.float64]]] = {
    "holm": correct_holm,
    "bh": correct_benjamini_hochberg,
    "none": lambda p_values: np.asarray(p_values, np.float64),
}

CORRECTION_TITLES: dict[CorrectionName, str] = {
    "holm": "Holm",
    "bh": "Benjamini–Hochberg",
    "none": "not corrected",
}


def correct(p_values: Sequence[float], correction: CorrectionName) -> list[float]:
    """Return the p-values, adjusted for the number of tests."""
    return [float(p_value) for p_value in _CORRECTIONS[correction](p_values)]


_POINTS = 128
"""Points of Gauss–Legendre quadrature."""


@dataclass(frozen=True)
class SeedDifference:
    """The difference between the averages of two systems over seeds."""

    value: float
    """The average of the system minus that of the baseline."""
    interval: Interval
    """95 % confidence interval."""
    p_value: float
    test: str
    """The name of the test: paired if both systems were trained with the same seeds."""


def compute_deviation(values: Mapping[int, float]) -> float:
    """Return the standard deviation over seeds (with n − 1 in the denominator); NaN for a single seed."""
    return statistics.stdev(values.values()) if len(values) > 1 else math.nan


def compare_over_seeds(baseline: Mapping[int, float], system: Mapping[int, float]) -> SeedDifference | None:
    """Compare two systems by their values for each seed. Return None if one has a single seed.

    If both were trained with the same seeds, runs with the same seed are paired, because they see the same batches in
    the same order (paired t-test). Otherwise, the variances may differ (Welch's t-test). Both assume that values over
    seeds are approximately normally distributed.
    """
    if min(len(baseline), len(system)) < 2:
        return None
    difference = statistics.fmean(system.values()) - statistics.fmean(baseline.values())
    if baseline.keys() == system.keys():
        test = "paired t-test"
        variance = statistics.variance(system[seed] - baseline[seed] for seed in baseline) / len(baseline)
        freedom = float(len(baseline) - 1)
    else:
        test = "Welch's t-test"
        parts = [(statistics.variance(group.values()) / len(group), len(group) - 1) for group in (baseline, system)]
        variance = sum(part for part, _ in parts)
        # Welch–Satterthwaite
        freedom = variance**2 / sum(part**2 / count for part, count in parts) if variance else 1.0
    error = math.sqrt(variance)
    if error == 0.0:
        return SeedDifference(difference, (difference, difference), float(difference == 0.0), test)
    margin = student_quantile(freedom) * error
    interval = (difference - margin, difference + margin)
    return SeedDifference(difference, interval, student_tails(abs(difference) / error, freedom), test)


def student_tails(t: float, freedom: float) -> float:
    """Return P(|T| ≥ t) for Student's t-distribution with ν degrees of freedom.

    With t = √ν tan θ, the density is proportional to cos^(ν−1) θ on a finite interval.
    """
    angle = math.atan2(t, math.sqrt(freedom))
    return _integrate_cosine_power(angle, freedom) / _integrate_cosine_power(0.0, freedom)


def _integrate_cosine_power(start: float, freedom: float) -> float:
    """Return ∫ cos^(ν−1) θ dθ from `start` to π/2.

    With φ = (π/2 − θ)^(1/2) the integrand sin^(ν−1)(φ²) 2φ is smooth enough at 0 for every ν ≥ 1.
    """
    nodes, weights = _quadrature()
    end = math.sqrt(math.pi / 2 - start)
    phi = end * (nodes + 1) / 2
    return float((np.sin(phi**2) ** (freedom - 1) * 2 * phi) @ weights * end / 2)


@cache
def _quadrature() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the nodes and weights of Gauss–Legendre quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(_POINTS)
    return nodes, weights


def student_quantile(freedom: float, level: float = 0.95) -> float:
    """Return t such that P(|T| < t) is this level, by bisection."""
    low, high = 0.0, 1.0
    while student_tails(high, freedom) > 1 - level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tails(middle, freedom) > 1 - level else (low, middle)
    return (low + high) / 2
