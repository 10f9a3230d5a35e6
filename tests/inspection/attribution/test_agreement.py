"""Rank correlations, against values computed by hand."""

import numpy as np
import pytest

from regard.inspection.attribution.agreement import kendall, overlap, rank, spearman


def test_equal_numbers_share_the_average_of_their_ranks() -> None:
    assert rank([3.0, 1.0, 3.0, 2.0, 3.0]).tolist() == [4, 1, 4, 2, 4]


def test_correlations_without_ties() -> None:
    first, second = [1, 2, 3, 4, 5], [2, 1, 4, 3, 5]
    # Σ d² = 4: 1 − 6 · 4 / (5 · 24). Two of the ten pairs are discordant.
    assert spearman(first, second) == pytest.approx(0.8)
    assert kendall(first, second) == pytest.approx(0.6)


def test_correlations_with_ties() -> None:
    first, second = [1, 2, 2, 3], [1, 3, 2, 2]
    # The ranks are 1, 2.5, 2.5, 4 and 1, 4, 2.5, 2.5; their covariance is 2.25, their variances are both 4.5.
    assert spearman(first, second) == pytest.approx(2.25 / 4.5)
    # Pairs: + + + (first, others), 0 (tie in the first), − (2, 3 against 3, 2), 0 (tie in the second).
    assert kendall(first, second) == pytest.approx((3 - 1) / np.sqrt(5 * 5))


def test_the_overlap_is_the_common_share() -> None:
    assert overlap([3, 1, 0], [0, 2, 2]) == pytest.approx(0.25)  # 3/4 1/4 0 and 0 1/2 1/2
    assert overlap([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert overlap([1, 0], [0, 1]) == 0
    assert overlap([0, 0], [0, 1]) is None


def test_opposite_orders_have_the_correlation_minus_one() -> None:
    for correlate in (spearman, kendall):
        assert correlate([1, 2, 3], [30, 20, 10]) == pytest.approx(-1)
        assert correlate([1, 2, 3], [10, 20, 30]) == pytest.approx(1)


@pytest.mark.parametrize("lists", [([], []), ([1], [2]), ([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [0, 0, 0])])
def test_a_list_without_differences_has_no_correlation(lists: tuple[list[float], list[float]]) -> None:
    assert spearman(*lists) is None
    assert kendall(*lists) is None
