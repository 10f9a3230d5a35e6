"""Variance over seeds: the values of runs that differ only in their seed, and tests of the difference between systems.

Resampling sentences describes how much a value depends on the choice of sentences. It does not show how much it depends
on the seed of training: initial weights, batches and dropout. For that, train with several seeds.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

_POINTS = 128
"""Points of Gauss–Legendre quadrature."""


@dataclass(frozen=True)
class SeedDifference:
    """The difference between the averages of two systems over seeds."""

    value: float
    """The average of the system minus that of the baseline."""
    interval: tuple[float, float]
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
