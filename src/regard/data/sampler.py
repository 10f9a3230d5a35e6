"""The order of batches: the batch at step n is a pure function of (seed, n), so that a run stopped anywhere goes on
with the very same batches.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import final

import numpy as np

from regard.data.ragged import Ids

_POOL = 64
"""Batches whose pairs are sorted by length together: enough for little padding, few enough to stay mixed."""

_BLUR = 4.0
"""Tokens by which lengths may differ and yet count as the same, so that pairs meet others in each epoch."""


class BatchSampler(ABC):
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


def round_up_lengths(lengths: Ids, parts: int) -> Ids:
    """Lengths rounded up so that few are left: so many between each power of two and the next."""
    lengths = np.maximum(1, lengths)
    step = np.maximum(1, 2 ** np.floor(np.log2(lengths)).astype(np.int64) // parts)
    rounded: Ids = -(-lengths // step) * step
    return rounded


@lru_cache(maxsize=2)
def _epoch(order: BatchSampler, number: int) -> list[Ids]:
    return order.epoch(number)


def _generator(seed: int, epoch: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, epoch))))


@final
@dataclass(frozen=True, eq=False)
class PairBatchSampler(BatchSampler):
    """So many pairs a batch: shuffled in each epoch, pairs of like length together."""

    lengths: Ids = field(repr=False)
    batch_size: int
    seed: int
    epoch_lengths: Callable[[int], Ids] | None = field(default=None, repr=False)
    """The lengths as an epoch sees them, where they are not always `lengths`."""

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def epoch(self, number: int) -> list[Ids]:
        generator = _generator(self.seed, number)
        lengths = self.lengths if self.epoch_lengths is None else self.epoch_lengths(number)
        shuffled = generator.permutation(len(self.lengths))
        batches: list[Ids] = []
        for start in range(0, len(shuffled), self.batch_size * _POOL):
            pool = shuffled[start : start + self.batch_size * _POOL]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            batches += [pool[at : at + self.batch_size] for at in range(0, len(pool), self.batch_size)]
        return [batches[index] for index in generator.permutation(len(batches))]


@final
@dataclass(frozen=True, eq=False)
class TokenBatchSampler(BatchSampler):
    """So many tokens a batch, counted on the longer side and with padding.

    Pairs stand in the order of their longer side, those of about the same length shuffled in each epoch, and are cut
    into batches where one is full. Where the cuts are depends on the lengths alone, so that every epoch has as many.
    Pairs of more than `longest` tokens are left out.

    Lengths may be others in each epoch. Pairs then stand in the order of what they have, and the cuts are those of the
    first epoch: of many pairs about as many are of each length in every one.
    """

    lengths_N2: Ids = field(repr=False)
    tokens: int
    seed: int
    longest: int
    epoch_lengths: Callable[[int], Ids] | None = field(default=None, repr=False)
    """The lengths as an epoch sees them, where they are not always `lengths_N2`."""

    @cached_property
    def _members(self) -> Ids:
        return np.flatnonzero(self.lengths_N2.max(1, initial=0) <= self.longest)

    def lengths_at(self, epoch: int) -> Ids:
        """The lengths of both sides as an epoch sees them → (N, 2)."""
        return self.lengths_N2 if self.epoch_lengths is None else self.epoch_lengths(epoch)

    @staticmethod
    def _widths(lengths_N2: Ids) -> Ids:
        """The length of each pair's longer side, rounded up so that there are few."""
        return round_up_lengths(lengths_N2.max(1, initial=0), 8)

    @cached_property
    def _cuts(self) -> list[int]:
        """Where batches end, in the order of widths."""
        widths: list[int] = np.sort(self._widths(self.lengths_at(0)[self._members])).tolist()
        cuts = [0]
        while cuts[-1] < len(widths):
            start = cuts[-1]
            # The first pair that would make the batch too large.
            end = bisect_left(
                range(start + 1, len(widths)), True, key=lambda at: (at + 1 - start) * widths[at] > self.tokens
            )
            rows = end + 1
            full = start + rows < len(widths)
            cuts.append(start + (rows - rows % 8 if full and rows >= 16 else rows))
        return cuts

    @property
    def steps_per_epoch(self) -> int:
        return len(self._cuts) - 1

    def epoch(self, number: int) -> list[Ids]:
        generator = _generator(self.seed, number)
        # Of pairs as wide as each other, those stand together whose sources are about as long.
        seen_N2 = self.lengths_at(number)[self._members]
        about = seen_N2[:, 0] + generator.random(len(self._members)) * _BLUR
        ordered = self._members[np.lexsort((about, self._widths(seen_N2)))]
        batches = [ordered[start:end] for start, end in pairwise(self._cuts)]
        return [batches[index] for index in generator.permutation(len(batches))]


def padding_share(order: BatchSampler, lengths: Ids) -> float:
    """Of the places in the tensors of an epoch, how many hold nothing."""
    held = places = 0
    for batch in _epoch(order, 0):
        own = lengths[batch]
        held, places = held + int(own.sum()), places + len(own) * max(1, int(own.max()))
    return 1 - held / max(1, places)


def batch_by_length(lengths: Sequence[int] | Ids, batch_size: int) -> list[list[int]]:
    """Everything once, in batches of like length, longest first: for validation and prediction."""
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable").tolist()
    return [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
