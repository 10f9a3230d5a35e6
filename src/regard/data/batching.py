"""Batches: a corpus in token ids, and the tensors that pairs of it become."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import torch

from regard.data.ragged import Ids, Ragged
from regard.data.sampler import round_up_lengths
from regard.data.tokens.tokenizers import END, PAD, START, TokenizerPair
from regard.models.contracts import Padded

log = logging.getLogger(__name__)


class Batch(NamedTuple):
    """Sources and targets in tensors; a target ends in END. `ids` are their places in the corpus, `tokens` counts those
    of the targets.
    """

    source: Padded
    target: Padded
    ids: list[int]
    tokens: int

    @property
    def decoder_inputs(self) -> torch.Tensor:
        """The targets shifted by one: what the decoder is told at each step."""
        start = torch.full_like(self.target.tokens_BT[:, :1], START)
        return torch.cat([start, self.target.tokens_BT[:, :-1]], dim=1)

    def split(self, count: int) -> list["Batch"]:
        """The batch in so many pieces, or in single pairs where it has no more."""
        if count == 1:
            return [self]
        size = -(-len(self.ids) // count)
        return [self._rows(slice(start, start + size)) for start in range(0, len(self.ids), size)]

    def _rows(self, rows: slice) -> "Batch":
        source, target = (Padded(part.tokens_BT[rows], part.lengths_B[rows]) for part in self[:2])
        return Batch(source, target, self.ids[rows], int(target.lengths_B.sum()))


class EncodedSide(Protocol):
    """The sources of a corpus, or its targets, in token ids; they may be others in each epoch."""

    @property
    def lengths(self) -> Ids:
        """Of each row; about, where that is not the same in each epoch."""

    def epoch_lengths(self, epoch: int) -> Ids: ...

    def __len__(self) -> int: ...

    def take(self, rows: Sequence[int], epoch: int = 0) -> Ragged: ...


@dataclass(frozen=True, eq=False)
class EncodedCorpus:
    """A corpus in token ids; its targets end in END."""

    sources: EncodedSide
    targets: EncodedSide

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]], tokenizers: TokenizerPair, max_length: int) -> "EncodedCorpus":
        """Held in memory."""
        listed = list(pairs)
        sources = tokenizers.source.ids([source for source, _ in listed])
        targets = tokenizers.target.ids([target for _, target in listed])
        warn_truncated(sum(len(ids) > max_length for ids in (*sources, *targets)), max_length, "sequence")
        return cls(
            Ragged.of(ids[:max_length] for ids in sources), Ragged.of([*ids[:max_length], END] for ids in targets)
        )

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def lengths_N2(self) -> Ids:
        """Of each pair, the lengths of its source and its target; about, where they are others in each epoch."""
        return np.stack([self.sources.lengths, self.targets.lengths], axis=1)

    def epoch_lengths(self, epoch: int) -> Ids:
        """The same as an epoch sees them → (N, 2)."""
        return _lengths_in(self, epoch)

    @cached_property
    def _longest(self) -> tuple[int, int]:
        return int(self.sources.lengths.max(initial=0)), int(self.targets.lengths.max(initial=0))

    def batch(
        self, ids: Sequence[int], device: torch.device, epoch: int = 0, *, bucketed_shapes: bool = False
    ) -> Batch:
        """Some of the pairs; with `bucketed_shapes`, padded to one of a few widths."""
        sides = zip((self.sources, self.targets), self._longest if bucketed_shapes else (0, 0), strict=True)
        source, target = (pad_ragged(side.take(ids, epoch), longest) for side, longest in sides)
        return Batch(source.to(device), target.to(device), list(ids), int(target.lengths_B.sum()))


@lru_cache(maxsize=1)
def _lengths_in(corpus: EncodedCorpus, epoch: int) -> Ids:
    return np.stack([corpus.sources.epoch_lengths(epoch), corpus.targets.epoch_lengths(epoch)], axis=1)


def warn_truncated(count: int, longest: int, what: str = "source") -> None:
    """Say that some texts were longer than the model takes."""
    if count:
        name, were = (what, "was") if count == 1 else (f"{what}s", "were")
        log.warning("%d %s longer than %s tokens %s cut (tokenizer.max_length).", count, name, f"{longest:,}", were)


def pad(rows: Sequence[Sequence[int]]) -> Padded:
    """Rows of ids as one tensor, filled up with PAD to the longest, and to a width of at least 1."""
    return pad_ragged(Ragged.of(rows))


def pad_ragged(rows: Ragged, longest: int = 0) -> Padded:
    """As `pad`; where it is known about how long the longest row of all is, to one of a few widths, of which that is
    one.
    """
    lengths_B = rows.lengths
    width = max(1, int(lengths_B.max(initial=0)))
    if longest:
        few = int(round_up_lengths(np.array(width), 4))
        width = min(few, longest) if width <= longest else few
    tokens_BT = np.full((len(rows), width), PAD, np.int64)
    tokens_BT[np.arange(tokens_BT.shape[1]) < lengths_B[:, None]] = rows.flat
    return Padded(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B))
