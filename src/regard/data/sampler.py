"""Batch samplers. The batch at step n is a pure function of (seed, n), so that a resumed run sees the same batches."""

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
"""The number of batches whose pairs are sorted by length together: large enough for little padding, small enough to
keep the order random.
"""

_LENGTH_NOISE = 4.0
"""The maximum random number added to a length before sorting, so that batches differ between epochs."""


class BatchSampler(ABC):
    """Determines the pairs of the batch at each step."""

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int: ...

    @abstractmethod
    def epoch(self, number: int) -> list[Ids]:
        """Return the batches of an epoch, in order."""

    def at(self, step: int) -> list[int]:
        """Return the indices of the pairs of a batch. Steps are counted from 0 over all epochs."""
        number, index = divmod(step, self.steps_per_epoch)
        batch: list[int] = _epoch(self, number)[index].tolist()
        return batch

    def epoch_at(self, step: int) -> int:
        return step // self.steps_per_epoch

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def round_up_lengths(lengths: Ids) -> Ids:
    """Round lengths up to one of a few values: eight between each power of two and the next."""
    lengths = np.maximum(1, lengths)
    step = np.maximum(1, 2 ** np.floor(np.log2(lengths)).astype(np.int64) // 8)
    rounded: Ids = -(-lengths // step) * step
    return rounded


@lru_cache(maxsize=2)
def _epoch(sampler: BatchSampler, number: int) -> list[Ids]:
    return sampler.epoch(number)


def _generator(seed: int, epoch: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, epoch))))


@final
@dataclass(frozen=True, eq=False)
class PairBatchSampler(BatchSampler):
    """Batches of `batch_size` pairs of similar length, shuffled in each epoch."""

    lengths: Ids = field(repr=False)
    batch_size: int
    seed: int
    epoch_lengths: Callable[[int], Ids] | None = field(default=None, repr=False)
    """Returns the lengths in an epoch, if these differ between epochs."""

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
    """Batches of at most `tokens` tokens, counted on the longer side and with padding.

    Pairs are sorted by the length of their longer side, with pairs of similar length shuffled in each epoch, and are
    split into batches. The batch sizes depend on the lengths alone, so that every epoch has the same number of batches.
    Pairs of more than `max_length` tokens are ignored.

    If lengths differ between epochs, pairs are sorted by their length in the epoch, and the batch sizes are those of
    the first epoch, because the distribution of lengths of a large corpus hardly changes.
    """

    lengths_N2: Ids = field(repr=False)
    tokens: int
    seed: int
    max_length: int
    epoch_lengths: Callable[[int], Ids] | None = field(default=None, repr=False)
    """Returns the lengths in an epoch, if these differ between epochs."""

    @cached_property
    def _members(self) -> Ids:
        return np.flatnonzero(self.lengths_N2.max(1, initial=0) <= self.max_length)

    def lengths_at(self, epoch: int) -> Ids:
        """Return the lengths of both sides in an epoch → (N, 2)."""
        return self.lengths_N2 if self.epoch_lengths is None else self.epoch_lengths(epoch)

    @staticmethod
    def _widths(lengths_N2: Ids) -> Ids:
        """Return the length of the longer side of each pair, rounded up to one of a few values."""
        return round_up_lengths(lengths_N2.max(1, initial=0))

    @cached_property
    def _boundaries(self) -> list[int]:
        """The boundaries of the batches in the sorted pairs."""
        widths: list[int] = np.sort(self._widths(self.lengths_at(0)[self._members])).tolist()
        boundaries = [0]
        while boundaries[-1] < len(widths):
            start = boundaries[-1]
            # The first pair that would make the batch too large.
            end = bisect_left(
                range(start + 1, len(widths)), True, key=lambda at: (at + 1 - start) * widths[at] > self.tokens
            )
            rows = end + 1
            full = start + rows < len(widths)
            boundaries.append(start + (rows - rows % 8 if full and rows >= 16 else rows))
        return boundaries

    @property
    def steps_per_epoch(self) -> int:
        return len(self._boundaries) - 1

    def epoch(self, number: int) -> list[Ids]:
        generator = _generator(self.seed, number)
        # Pairs of equal width are sorted by the approximate length of their sources.
        lengths_N2 = self.lengths_at(number)[self._members]
        noisy_N = lengths_N2[:, 0] + generator.random(len(self._members)) * _LENGTH_NOISE
        ordered = self._members[np.lexsort((noisy_N, self._widths(lengths_N2)))]
        batches = [ordered[start:end] for start, end in pairwise(self._boundaries)]
        return [batches[index] for index in generator.permutation(len(batches))]


def padding_share(sampler: BatchSampler, lengths: Ids) -> float:
    """Return the share of padding in the tensors of the first epoch."""
    used = total = 0
    for batch in _epoch(sampler, 0):
        batch_lengths = lengths[batch]
        used += int(batch_lengths.sum())
        total += len(batch_lengths) * max(1, int(batch_lengths.max()))
    return 1 - used / max(1, total)


def batch_by_length(lengths: Sequence[int] | Ids, batch_size: int, max_tokens: int | None = None) -> list[list[int]]:
    """Return batches of similar length, longest first, that contain each index once: for validation and prediction.

    A batch has at most `max_tokens` tokens with padding, or one row.
    """
    order: list[int] = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable").tolist()
    batches, start = [], 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        rows = batch_size if max_tokens is None else min(batch_size, max(1, max_tokens // longest))
        batches.append(order[start : start + rows])
        start += rows
    return batches
