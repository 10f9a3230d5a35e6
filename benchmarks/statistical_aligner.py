"""A statistical word aligner: the supervision of guided alignment, the silver standard, and a baseline.

IBM Model 1 with a preference for the diagonal, after fast_align (Dyer et al. 2013, with a fixed tension). As is usual
for such aligners, the sentences to align are part of its training data.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from alignment_scores import Pair
from regard.data.pharaoh import Links
from regard.evaluation.alignment import flip

Ints = NDArray[np.int64]


class Cells(NamedTuple):
    """All pairs of a source position and a target position, in all sentence pairs. Source word 0 is the empty word."""

    source: Ints
    target: Ints
    group: Ints
    """The number of the target position, over all sentence pairs."""
    prior: NDArray[np.float64]
    i: Ints
    """The source position; −1 for the empty word."""

    @classmethod
    def of(cls, pairs: Sequence[tuple[Ints, Ints]], tension: float = 4.0, p_empty: float = 0.08) -> "Cells":
        """List the cells of pairs of word ids, with the prior probability of each source position."""
        columns: list[list[NDArray[Any]]] = [[] for _ in cls._fields]
        groups = 0
        for source, target in pairs:
            slots, words = len(source), len(target)
            i, j = np.arange(slots), np.arange(words)
            distance = np.abs((i[None] + 1) / (slots + 1) - (j[:, None] + 1) / (words + 1))
            near = np.exp(-tension * distance)
            near *= (1 - p_empty) / near.sum(1, keepdims=True)
            values = (
                np.broadcast_to(np.concatenate([[0], source]), (words, slots + 1)),
                np.broadcast_to(target[:, None], (words, slots + 1)),
                np.broadcast_to(groups + j[:, None], (words, slots + 1)),
                np.concatenate([np.full((words, 1), p_empty), near], axis=1),
                np.broadcast_to(np.concatenate([[-1], i]), (words, slots + 1)),
            )
            for column, value in zip(columns, values, strict=True):
                column.append(value.ravel())
            groups += words
        return cls(*(np.concatenate(column) for column in columns))


def align_statistically(pairs: Sequence[Pair], iterations: int = 8) -> list[Links]:
    """Align words with IBM Model 1 and a diagonal prior, trained by expectation maximization on the same pairs."""
    numbers: tuple[dict[str, int], dict[str, int]] = ({"": 0}, {})
    encoded = []
    for pair in pairs:
        source, target = (
            np.array([side.setdefault(word, len(side)) for word in text.split()], np.int64)
            for side, text in zip(numbers, pair, strict=True)
        )
        encoded.append((source, target))
    cells = Cells.of(encoded)
    keys, cell_of = np.unique(cells.source * len(numbers[1]) + cells.target, return_inverse=True)
    source_of = keys // len(numbers[1])
    probability = np.ones(len(keys))
    for _ in range(iterations):
        weights = probability[cell_of] * cells.prior
        weights /= np.bincount(cells.group, weights)[cells.group]
        counts = np.bincount(cell_of, weights) + 0.01  # smoothing, so that rare words do not explain everything
        probability = counts / np.bincount(source_of, counts)[source_of]
    weights = probability[cell_of] * cells.prior
    # The last cell of a group after sorting by weight has the largest weight.
    order = np.lexsort((weights, cells.group))
    best = order[np.flatnonzero(np.diff(cells.group[order], append=-1))]
    positions = iter(cells.i[best].tolist())
    return [frozenset((i, j) for j, i in enumerate(next(positions) for _ in target) if i >= 0) for _, target in encoded]


def align_both_ways(pairs: Sequence[Pair]) -> tuple[list[Links], list[Links]]:
    """Align in both directions: with one link for each target word, and with one for each source word."""
    backward = align_statistically([(target, source) for source, target in pairs])
    return align_statistically(pairs), [flip(links) for links in backward]
