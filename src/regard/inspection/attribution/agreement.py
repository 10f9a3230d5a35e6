"""The agreement of scores with attention weights: rank correlations of two lists of numbers, with ties, and overlap."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Agreement:
    """The rank correlation and the overlap of absolute scores and attention weights, for each explained step. None
    where it is not defined: a correlation if all scores or all weights are equal, the overlap if all are zero, and both
    if the step has no weights, such as the end token.
    """

    spearman_steps: list[float | None]
    kendall_steps: list[float | None]
    overlap_steps: list[float | None]

    @property
    def spearman(self) -> float | None:
        """Spearman's ρ, averaged over the steps where it is defined."""
        return _average(self.spearman_steps)

    @property
    def kendall(self) -> float | None:
        """Kendall's τ_b, averaged over the steps where it is defined."""
        return _average(self.kendall_steps)

    @property
    def overlap(self) -> float | None:
        """The share of the scores that is on the same tokens as the weights, averaged over the steps where it is
        defined.
        """
        return _average(self.overlap_steps)

    def __str__(self) -> str:
        steps = sum(value is not None for value in self.spearman_steps)
        if self.spearman is None:
            return "Spearman correlation with the attention weights: not defined"
        which = f" (average of {steps} steps)" if steps > 1 else ""
        return f"Spearman correlation with the attention weights: {self.spearman:.2f}{which}"


def _average(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None


def spearman(first: ArrayLike, second: ArrayLike) -> float | None:
    """Return Spearman's ρ: the correlation of the ranks, where equal numbers share the average of their ranks. None if
    all numbers of a list are equal, or if there are fewer than two.
    """
    ranks = [rank(values) for values in (first, second)]
    centered = [values - values.mean() if len(values) else values for values in ranks]
    product = np.linalg.norm(centered[0]) * np.linalg.norm(centered[1])
    return float(centered[0] @ centered[1] / product) if product else None


def kendall(first: ArrayLike, second: ArrayLike) -> float | None:
    """Return Kendall's τ_b: (concordant − discordant pairs) / √(pairs that differ in the first · in the second list).
    None if all numbers of a list are equal, or if there are fewer than two.
    """
    signs = [_compare_pairs(values) for values in (first, second)]
    differing = [float(np.count_nonzero(part)) for part in signs]
    if not all(differing):
        return None
    return float((signs[0] * signs[1]).sum() / np.sqrt(differing[0] * differing[1]))


def overlap(first: ArrayLike, second: ArrayLike) -> float | None:
    """Return Σ min(aⱼ, bⱼ) of two lists of positive numbers that are divided by their sums: 1 if they are proportional,
    0 if nothing is positive in both. None if all numbers of a list are 0.
    """
    arrays = [np.asarray(values, np.float64) for values in (first, second)]
    sums = [array.sum() for array in arrays]
    return float(np.minimum(arrays[0] / sums[0], arrays[1] / sums[1]).sum()) if all(sums) else None


def rank(values: ArrayLike) -> NDArray[np.float64]:
    """Return the rank of each number, from 1 for the smallest. Equal numbers have the average of their ranks."""
    array = np.asarray(values, np.float64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    last_ranks = counts.cumsum()
    ranks: NDArray[np.float64] = (last_ranks - (counts - 1) / 2)[inverse]
    return ranks


def _compare_pairs(values: ArrayLike) -> NDArray[Any]:
    """Return the sign of the difference of each pair of numbers."""
    array = np.asarray(values, np.float64)
    return np.sign(array[:, None] - array[None, :])
