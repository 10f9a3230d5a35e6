"""Batches: which pairs stand together at which step, and the tensors that they become.

The batch at step n is a pure function of (seed, n): a run stopped anywhere goes on with the very same batches.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.corpora import Pairs
from regard.data.tokenizers import END, PAD, START, TokenizerPair
from regard.models.contracts import Padded

log = logging.getLogger(__name__)

Indices = NDArray[np.int64]

_POOL = 64
"""Batches whose pairs are sorted by length together: enough for little padding, few enough to stay mixed."""


class Batch(NamedTuple):
    """Sources and targets in tensors; a target ends in END. `ids` are their places in the corpus."""

    source: Padded
    target: Padded
    ids: list[int]

    @property
    def given(self) -> torch.Tensor:
        """The targets shifted by one: what the decoder is told at each step."""
        start = torch.full_like(self.target.tokens_BT[:, :1], START)
        return torch.cat([start, self.target.tokens_BT[:, :-1]], dim=1)

    def cut(self, pieces: int) -> list["Batch"]:
        """The batch in so many pieces, or in single pairs where it has no more."""
        size = -(-len(self.ids) // pieces)
        return [self._rows(slice(start, start + size)) for start in range(0, len(self.ids), size)]

    def _rows(self, rows: slice) -> "Batch":
        source, target = (Padded(part.tokens_BT[rows], part.lengths_B[rows]) for part in self[:2])
        return Batch(source, target, self.ids[rows])


@dataclass(frozen=True)
class Encoded:
    """A corpus in token ids."""

    sources: list[list[int]]
    targets: list[list[int]]

    @classmethod
    def of(cls, pairs: Pairs, tokenizers: TokenizerPair, max_length: int) -> "Encoded":
        sources, targets = tokenizers.source.ids(pairs.sources), tokenizers.target.ids(pairs.targets)
        note_cut(sum(len(ids) > max_length for ids in (*sources, *targets)), max_length, "sequence")
        return cls([ids[:max_length] for ids in sources], [[*ids[:max_length], END] for ids in targets])

    def __len__(self) -> int:
        return len(self.sources)

    def batch(self, ids: Sequence[int], device: torch.device) -> Batch:
        source = pad([self.sources[index] for index in ids])
        target = pad([self.targets[index] for index in ids])
        return Batch(source.to(device), target.to(device), list(ids))


def note_cut(count: int, longest: int, what: str = "source") -> None:
    """Say that some texts were longer than the model takes."""
    if count:
        name, were = (what, "was") if count == 1 else (f"{what}s", "were")
        log.warning("%d %s longer than %s tokens %s cut (tokenizer.max_length).", count, name, f"{longest:,}", were)


def pad(rows: Sequence[Sequence[int]]) -> Padded:
    """Rows of ids as one tensor, filled up with PAD to the longest, and to a width of at least 1."""
    width = max(1, *map(len, rows))
    tokens_BT = torch.full((len(rows), width), PAD)
    for index, row in enumerate(rows):
        tokens_BT[index, : len(row)] = torch.as_tensor(row, dtype=torch.long)
    return Padded(tokens_BT, torch.tensor([len(row) for row in rows]))


@dataclass(frozen=True)
class BatchOrder:
    """The order of batches: shuffled in each epoch, pairs of like length together."""

    lengths: Indices = field(repr=False)
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def at(self, step: int) -> list[int]:
        """The pairs of the batch at a step, counted from 0 through all epochs."""
        epoch, index = divmod(step, self.steps_per_epoch)
        batch: list[int] = _epoch(self, epoch)[index].tolist()
        return batch

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


@lru_cache(maxsize=2)
def _epoch(order: BatchOrder, epoch: int) -> list[Indices]:
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((order.seed, epoch))))
    shuffled = generator.permutation(len(order.lengths))
    batches: list[Indices] = []
    for start in range(0, len(shuffled), order.batch_size * _POOL):
        pool = shuffled[start : start + order.batch_size * _POOL]
        pool = pool[np.argsort(order.lengths[pool], kind="stable")]
        batches += [pool[at : at + order.batch_size] for at in range(0, len(pool), order.batch_size)]
    return [batches[index] for index in generator.permutation(len(batches))]


def by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Everything once, in batches of like length, longest first: for validation and prediction."""
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable").tolist()
    return [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
