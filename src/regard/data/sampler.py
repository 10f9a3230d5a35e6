"""Batch samplers. The batch at step n is a pure function of (seed, n), so that a resumed run sees the same batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple, final

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
        """The indices of the pairs that are not too long, in as few bytes as possible: a large corpus has many."""
        members = np.flatnonzero(self.lengths_N2.max(1, initial=0) <= self.max_length)
        return members.astype(np.min_scalar_type(len(self.lengths_N2)))

    def lengths_at(self, epoch: int) -> Ids:
        """Return the lengths of both sides in an epoch → (N, 2)."""
        return self.lengths_N2 if self.epoch_lengths is None else self.epoch_lengths(epoch)

    def _group(self, lengths_N2: Ids) -> "_WidthGroups":
        """Group the members by the length of their longer side, rounded up to one of a few values."""
        longer_M = lengths_N2.max(1, initial=0)[self._members]
        width_of_length = round_up_lengths(np.arange(longer_M.max(initial=0) + 1))
        widths, rank_of_length = np.unique(width_of_length, return_inverse=True)
        ranks_M = rank_of_length.astype(np.uint16)[longer_M]  # NumPy sorts 16-bit integers in linear time
        order_M = np.argsort(ranks_M, kind="stable").astype(self._members.dtype)
        return _WidthGroups(order_M, widths.tolist(), np.cumsum(np.bincount(ranks_M, minlength=len(widths))).tolist())

    @cached_property
    def _average_groups(self) -> "_WidthGroups":
        return self._group(self.lengths_N2)

    def _groups_of(self, lengths_N2: Ids) -> "_WidthGroups":
        return self._average_groups if lengths_N2 is self.lengths_N2 else self._group(lengths_N2)

    @cached_property
    def _boundaries(self) -> list[int]:
        """The boundaries of the batches in the sorted pairs."""
        _, widths, ends = self._groups_of(self.lengths_at(0))
        boundaries, first = [0], 0
        while (start := boundaries[-1]) < len(self._members):
            while ends[first] <= start:
                first += 1
            # The batch grows until a pair, which all others are padded to, would make it too large.
            end = start + 1
            for width, group_end in zip(widths[first:], ends[first:], strict=True):
                end = max(end, min(group_end, start + self.tokens // width))
                if end < group_end:
                    break
            rows = end - start
            full = end < len(self._members)
            boundaries.append(start + (rows - rows % 8 if full and rows >= 16 else rows))
        return boundaries

    @property
    def steps_per_epoch(self) -> int:
        return len(self._boundaries) - 1

    def epoch(self, number: int) -> list[Ids]:
        generator = _generator(self.seed, number)
        lengths_N2 = self.lengths_at(number)
        order_M, _, ends = self._groups_of(lengths_N2)
        # Pairs of equal width are sorted by the approximate length of their sources.
        noisy_M = generator.random(len(self._members)) * _LENGTH_NOISE
        noisy_M += lengths_N2[self._members, 0]
        ordered = np.empty_like(self._members)
        for start, end in pairwise((0, *ends)):
            group = order_M[start:end]
            ordered[start:end] = self._members[group[np.argsort(noisy_M[group], kind="stable")]]
        batches = [ordered[start:end] for start, end in pairwise(self._boundaries)]
        return [batches[index] for index in generator.permutation(len(batches))]


class _WidthGroups(NamedTuple):
    """The positions of pairs among the members of a sampler, sorted by width; the distinct widths; and the position
    where the pairs of each width end.
    """

    order_M: Ids
    widths: list[int]
    ends: list[int]


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
