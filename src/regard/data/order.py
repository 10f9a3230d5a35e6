"""The order of batches: the batch at step n is a pure function of (seed, n), so that a run stopped anywhere goes on
with the very same batches.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import final

import numpy as np

from regard.data.ragged import Ids

_POOL = 64
"""Batches whose pairs are sorted by length together: enough for little padding, few enough to stay mixed."""

_GROWTH = 1.08
"""How much wider a class of lengths is than the one before, at the least: so that there are few shapes."""

_FILLED = 4
"""Batches that a class of lengths fills, at the least: so that few are left half empty."""


class Order(ABC):
    """Which pairs stand together at which step."""

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int: ...

    @abstractmethod
    def epoch(self, number: int) -> list[Ids]:
        """The batches of an epoch, in their order."""

    def at(self, step: int) -> list[int]:
        """The pairs of the batch at a step, counted from 0 through all epochs."""
        number, index = divmod(step, self.steps_per_epoch)
        batch: list[int] = _epoch(self, number)[index].tolist()
        return batch

    def epoch_at(self, step: int) -> int:
        return step // self.steps_per_epoch

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


@lru_cache(maxsize=2)
def _epoch(order: Order, number: int) -> list[Ids]:
    return order.epoch(number)


def _generator(seed: int, epoch: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, epoch))))


@final
@dataclass(frozen=True, eq=False)
class ByPairs(Order):
    """So many pairs a batch: shuffled in each epoch, pairs of like length together."""

    lengths: Ids = field(repr=False)
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def epoch(self, number: int) -> list[Ids]:
        generator = _generator(self.seed, number)
        shuffled = generator.permutation(len(self.lengths))
        batches: list[Ids] = []
        for start in range(0, len(shuffled), self.batch_size * _POOL):
            pool = shuffled[start : start + self.batch_size * _POOL]
            pool = pool[np.argsort(self.lengths[pool], kind="stable")]
            batches += [pool[at : at + self.batch_size] for at in range(0, len(pool), self.batch_size)]
        return [batches[index] for index in generator.permutation(len(batches))]


@final
@dataclass(frozen=True, eq=False)
class ByTokens(Order):
    """So many tokens a batch, counted on the longer side and with padding.

    Pairs are sorted into classes by the length of their longer side; a class has one number of rows. Pairs of more
    than `longest` tokens are left out.
    """

    widths: Ids = field(repr=False)
    tokens: int
    seed: int
    longest: int

    @cached_property
    def _classes(self) -> list[tuple[Ids, int]]:
        """The members of each class of lengths, and how many rows a batch of it has."""
        order = np.argsort(self.widths, kind="stable")
        order = order[: np.searchsorted(self.widths[order], self.longest, side="right")]
        sorted_widths = self.widths[order]
        ends: list[tuple[int, int]] = []
        start, floor = 0, 0.0
        distinct, counts = np.unique(sorted_widths, return_counts=True)
        for width, end in zip(distinct.tolist(), np.cumsum(counts).tolist(), strict=True):
            if width >= floor and end - start >= _FILLED * self._rows(width):
                ends.append((end, width))
                start, floor = end, max(width + 1, width * _GROWTH)
        if start < len(order):  # what fills no class of its own joins the last
            ends = [*ends[:-1], (len(order), int(sorted_widths[-1]))]
        starts = [0, *(end for end, _ in ends)]
        return [(order[first:end], self._rows(width)) for first, (end, width) in zip(starts, ends, strict=False)]

    def _rows(self, width: int) -> int:
        rows = max(1, self.tokens // max(1, width))
        return rows - rows % 8 if rows >= 16 else rows

    @cached_property
    def steps_per_epoch(self) -> int:
        return sum(-(-len(members) // rows) for members, rows in self._classes)

    def epoch(self, number: int) -> list[Ids]:
        generator = _generator(self.seed, number)
        batches: list[Ids] = []
        for members, rows in self._classes:
            shuffled = members[generator.permutation(len(members))]
            batches += [shuffled[at : at + rows] for at in range(0, len(shuffled), rows)]
        return [batches[index] for index in generator.permutation(len(batches))]


def padding_share(order: Order, lengths: Ids) -> float:
    """Of the places in the tensors of an epoch, how many hold nothing."""
    held = places = 0
    for batch in _epoch(order, 0):
        own = lengths[batch]
        held, places = held + int(own.sum()), places + len(own) * max(1, int(own.max()))
    return 1 - held / max(1, places)


def by_length(lengths: Sequence[int] | Ids, batch_size: int) -> list[list[int]]:
    """Everything once, in batches of like length, longest first: for validation and prediction."""
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable").tolist()
    return [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
