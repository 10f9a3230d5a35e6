"""Significance tests agree with sacrebleu where it is calibrated, and reject a true null hypothesis as often as they
claim.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from regard.evaluation.metrics import EvaluationSet, MetricStatistics, ModelOutputs, compute_statistics
from regard.evaluation.settings import parse_metric
from regard.evaluation.significance import (
    SignificanceTest,
    compare_over_seeds,
    compare_pair,
    compute_bootstrap_p_value,
    compute_deviation,
    compute_randomization_p_value,
    compute_sacrebleu_p_value,
    correct,
    correct_benjamini_hochberg,
    correct_holm,
    student_quantile,
    student_tails,
)

WORDS = [f"w{number}" for number in range(30)]


def make_texts(count: int, seed: int) -> list[list[str]]:
    generator = np.random.default_rng(seed)
    return [list(generator.choice(WORDS, size=generator.integers(5, 15))) for _ in range(count)]


def corrupt(texts: Sequence[Sequence[str]], share: float, seed: int) -> list[str]:
    """Replace a share of the words with others."""
    generator = np.random.default_rng(seed)
    return [
        " ".join(str(generator.choice(WORDS)) if generator.random() < share else word for word in text)
        for text in texts
    ]


def average(values: NDArray[np.float64]) -> MetricStatistics:
    return MetricStatistics.average(values.tolist())


def bleu_statistics(predictions: list[str], references: list[str]) -> MetricStatistics:
    evaluation_set = EvaluationSet.from_lists(list(range(len(references))), references)
    return compute_statistics(parse_metric("bleu"), ModelOutputs(evaluation_set, predictions, np.zeros((0, 2))))


@pytest.fixture(scope="module")
def systems() -> tuple[list[str], list[str], list[str]]:
    """References, and two systems that differ by about one standard error of BLEU."""
    texts = make_texts(120, seed=0)
    return [" ".join(text) for text in texts], corrupt(texts, 0.30, 1), corrupt(texts, 0.27, 2)


def sacrebleu_result(systems: tuple[list[str], list[str], list[str]], kind: str) -> Any:
    references, first, second = systems
    test = PairedTest(
        [("first", first), ("second", second)], {"BLEU": BLEU()}, [references], test_type=kind, n_samples=2_000
    )
    return test()[1]["BLEU"][1]


def test_randomization_agrees_with_sacrebleu(systems: tuple[list[str], list[str], list[str]]) -> None:
    references, first, second = systems
    expected = sacrebleu_result(systems, "ar").p_value
    ours = compute_randomization_p_value(
        bleu_statistics(first, references), bleu_statistics(second, references), trials=2_000
    )
    assert 0.02 < expected < 0.9  # informative
    assert ours == pytest.approx(expected, abs=4 * np.sqrt(2 * expected * (1 - expected) / 2_000))


def test_bootstrap_agrees_with_sacrebleu(systems: tuple[list[str], list[str], list[str]]) -> None:
    """The interval of a system, and the p-value as sacrebleu defines it."""
    references, first, second = systems
    expected = sacrebleu_result(systems, "bs")
    baseline, system = bleu_statistics(first, references), bleu_statistics(second, references)
    compared = compare_pair(baseline, system, SignificanceTest(resamples=2_000))
    p_value = expected.p_value
    assert compared.sacrebleu_p_value == pytest.approx(p_value, abs=4 * np.sqrt(2 * p_value * (1 - p_value) / 2_000))
    low, high = system.confidence_interval(resamples=2_000)
    assert (high - low) / 2 == pytest.approx(expected.ci, rel=0.1)
    assert system.resample(2_000).mean() == pytest.approx(expected.mean, abs=0.2)


def test_bootstrap_and_randomization_agree(systems: tuple[list[str], list[str], list[str]]) -> None:
    references, first, second = systems
    baseline, system = bleu_statistics(first, references), bleu_statistics(second, references)
    by_bootstrap = compare_pair(baseline, system)
    by_randomization = compare_pair(baseline, system, SignificanceTest("randomization", trials=2_000))
    assert by_bootstrap.value == by_randomization.value == system.value - baseline.value
    assert by_bootstrap.interval == by_randomization.interval
    assert by_bootstrap.p_value == pytest.approx(by_randomization.p_value, abs=0.06)


def null_p_values() -> tuple[list[float], list[float], list[float]]:
    """p-values of two systems that are equally good, on 300 test sets: ours, and those of sacrebleu's formula."""
    generator = np.random.default_rng(7)
    bootstrap, randomization, sacrebleu = [], [], []
    for repetition in range(300):
        difficulty = generator.normal(size=100)
        first, second = (average(difficulty + generator.normal(size=100)) for _ in range(2))
        compared = compare_pair(first, second, SignificanceTest(resamples=200, seed=repetition))
        bootstrap.append(compared.p_value)
        sacrebleu.append(compared.sacrebleu_p_value)
        randomization.append(compute_randomization_p_value(first, second, 200, repetition))
    return bootstrap, randomization, sacrebleu


@pytest.mark.slow
def test_p_values_are_uniform_if_the_systems_are_equally_good() -> None:
    """The share of p-values below α is α, up to sampling error: 4 standard errors of a share of 300."""
    bootstrap, randomization, sacrebleu = map(np.array, null_p_values())
    for level in (0.05, 0.1, 0.25, 0.5, 0.75):
        margin = 4 * np.sqrt(level * (1 - level) / 300)
        for p_values in (bootstrap, randomization):
            assert np.mean(p_values <= level) == pytest.approx(level, abs=margin)
    # The documentation claims that sacrebleu's bootstrap rejects about twice as often.
    assert np.mean(sacrebleu <= 0.1) == pytest.approx(0.2, abs=4 * np.sqrt(0.2 * 0.8 / 300))


def test_a_large_difference_is_significant_and_identical_outputs_are_not() -> None:
    values = np.random.default_rng(0).normal(size=200)
    first, better = average(values), average(values + 0.5)
    for name in ("bootstrap", "randomization"):
        test = SignificanceTest(name, resamples=500, trials=500)
        compared = compare_pair(first, better, test)
        assert compared.p_value == pytest.approx(1 / 501)  # the +1 correction: never 0
        assert compared.value == pytest.approx(0.5)
        assert compared.share_better == 1.0
        assert compare_pair(first, better, test, higher_is_better=False).share_better == 0.0
        same = compare_pair(first, first, test)
        assert same.p_value == 1.0
        assert same.interval == (0.0, 0.0)


def test_equal_differences_count_as_equal_in_spite_of_rounding() -> None:
    """Only one sentence differs, so every exchange gives the same size: p = 1. In binary, 0.3 − 0.2 ≠ 0.2 − 0.1."""
    first, second = np.zeros(10), np.zeros(10)
    first[:3], second[:2] = 1, 1
    p_value = compute_randomization_p_value(average(first), average(second), 100)
    assert p_value == 1.0


def test_randomization_gives_the_exact_p_value_of_a_small_set() -> None:
    """Four sentences, all won: of 16 exchanges, 2 give a difference as large as the observed one."""
    first, second = MetricStatistics.average([0, 0, 0, 0]), MetricStatistics.average([1, 1, 1, 1])
    assert compute_randomization_p_value(first, second, trials=20_000) == pytest.approx(2 / 16, abs=0.01)


def test_p_values_by_hand() -> None:
    differences = np.array([-1.0, 0.0, 1.0, 4.0])  # average 1; distances 2, 1, 0, 3
    assert compute_bootstrap_p_value(2.0, differences) == (1 + 2) / 5
    assert compute_sacrebleu_p_value(2.0, differences) == (1 + 1) / 5  # sizes 1, 0, 1, 4, average 1.5: one exceeds by 2


def test_values_that_are_not_finite_are_never_evidence() -> None:
    assert compute_bootstrap_p_value(np.nan, np.full(9, np.nan)) == 1.0
    assert compute_bootstrap_p_value(1.0, np.array([np.inf, 1.0, 1.0])) == 1.0
    infinite = average(np.array([np.inf, 1.0]))
    for name in ("bootstrap", "randomization"):
        assert compare_pair(infinite, infinite, SignificanceTest(name, resamples=20, trials=20)).p_value == 1.0


def test_resamples_are_the_same_for_both_systems_and_depend_on_the_seed() -> None:
    values = np.random.default_rng(0).normal(size=50)
    first, second = average(values), average(values + 1)
    assert second.resample(20) - first.resample(20) == pytest.approx(np.ones(20))
    assert (first.resample(20, seed=1) != first.resample(20, seed=2)).any()


def test_different_numbers_of_sentences_are_rejected() -> None:
    with pytest.raises(ValueError, match="needs the same sentences"):
        compare_pair(MetricStatistics.average([1.0, 2.0]), MetricStatistics.average([1.0]))


def test_corrections_by_hand() -> None:
    """Values of R's p.adjust(c(0.01, 0.04, 0.03, 0.5), "holm") and "BH"."""
    p_values = [0.01, 0.04, 0.03, 0.5]
    assert correct_holm(p_values) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert correct_benjamini_hochberg(p_values) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])
    assert correct(p_values, "none") == p_values
    assert correct([0.7, 0.9], "holm") == [1.0, 1.0]
    assert correct([], "holm") == []


def test_holm_controls_false_discoveries_where_uncorrected_tests_do_not() -> None:
    p_values = np.random.default_rng(0).uniform(size=(2_000, 10))
    uncorrected = np.mean((p_values < 0.05).any(1))
    corrected = np.mean([(correct_holm(row) < 0.05).any() for row in p_values])
    assert uncorrected == pytest.approx(1 - 0.95**10, abs=0.05)
    assert corrected == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (10, 2.2281), (30, 2.0423)]
)
def test_quantiles_are_those_of_tables(freedom: int, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, abs=5e-5)
    assert student_tails(quantile, freedom) == pytest.approx(0.05, abs=1e-5)


def test_tails_of_the_cauchy_distribution() -> None:
    """With one degree of freedom, P(|T| ≥ t) = 1 − 2/π arctan t; with two, 1 − t / √(2 + t²)."""
    for t in (0.0, 0.5, 3.0, 40.0):
        assert student_tails(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), abs=1e-10)
        assert student_tails(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t**2), abs=1e-10)


def test_runs_with_the_same_seeds_are_paired() -> None:
    """Differences 1, 2, 3: average 2, standard error 1/√3, t = 2 √3 with two degrees of freedom."""
    compared = compare_over_seeds({0: 10.0, 1: 20.0, 2: 30.0}, {0: 11.0, 1: 22.0, 2: 33.0})
    assert compared is not None
    assert compared.test == "paired t-test"
    assert compared.value == pytest.approx(2.0)
    t = 2 * math.sqrt(3)
    assert compared.p_value == pytest.approx(1 - t / math.sqrt(2 + t**2))
    assert compared.interval == pytest.approx((2 - 4.3027 / math.sqrt(3), 2 + 4.3027 / math.sqrt(3)), abs=1e-3)


def test_runs_with_different_seeds_are_compared_by_welchs_test() -> None:
    """Variances 1 and 4, three runs each: standard error √(5/3), ν = 25 / (1 + 16) · 2."""
    compared = compare_over_seeds({0: 1.0, 1: 2.0, 2: 3.0}, {3: 4.0, 4: 6.0, 5: 8.0})
    assert compared is not None
    assert compared.test == "Welch's t-test"
    assert compared.value == pytest.approx(4.0)
    assert compared.p_value == pytest.approx(student_tails(4 / math.sqrt(5 / 3), 50 / 17))


def test_a_single_seed_has_no_variance() -> None:
    assert compare_over_seeds({0: 1.0}, {0: 2.0, 1: 3.0}) is None
    assert math.isnan(compute_deviation({0: 1.0}))
    assert compute_deviation({0: 1.0, 1: 3.0}) == pytest.approx(math.sqrt(2))


def test_equal_differences_for_all_seeds_need_no_distribution() -> None:
    same = compare_over_seeds({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    assert same is not None
    assert (same.value, same.p_value) == (0.0, 1.0)
