"""Tests over seeds agree with published tables of Student's t-distribution and with examples computed by hand."""

import math

import pytest

from regard.evaluation.seeds import compare_over_seeds, compute_deviation, student_quantile, student_tails


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
