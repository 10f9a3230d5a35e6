"""Encoded corpora, and batches of padded tensors."""

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
    """Padded sources and targets, which end in END. `ids` are the indices of the pairs in the corpus; `tokens` is the
    number of target tokens.
    """

    source: Padded
    target: Padded
    ids: list[int]
    tokens: int

    @property
    def decoder_inputs(self) -> torch.Tensor:
        """The targets shifted right by one, starting with START."""
        start = torch.full_like(self.target.tokens_BT[:, :1], START)
        return torch.cat([start, self.target.tokens_BT[:, :-1]], dim=1)

    def split(self, count: int) -> list["Batch"]:
        """Split the batch into `count` micro-batches, or fewer if it has fewer pairs."""
        if count == 1:
            return [self]
        size = -(-len(self.ids) // count)
        return [self._rows(slice(start, start + size)) for start in range(0, len(self.ids), size)]

    def _rows(self, rows: slice) -> "Batch":
        source, target = (Padded(part.tokens_BT[rows], part.lengths_B[rows]) for part in self[:2])
        return Batch(source, target, self.ids[rows], int(target.lengths_B.sum()))


class EncodedSide(Protocol):
    """The sources or the targets of a corpus as token ids, which may differ between epochs."""

    @property
    def lengths(self) -> Ids:
        """The length of each row; approximate if lengths differ between epochs."""

    def epoch_lengths(self, epoch: int) -> Ids: ...

    def __len__(self) -> int: ...

    def take(self, rows: Sequence[int], epoch: int = 0) -> Ragged: ...


@dataclass(frozen=True, eq=False)
class EncodedCorpus:
    """A corpus as token ids. Targets end in END."""

    sources: EncodedSide
    targets: EncodedSide

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]], tokenizers: TokenizerPair, max_length: int) -> "EncodedCorpus":
        """Encode pairs in memory."""
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
        """The source and target length of each pair; approximate if lengths differ between epochs."""
        return np.stack([self.sources.lengths, self.targets.lengths], axis=1)

    def epoch_lengths(self, epoch: int) -> Ids:
        """Return the source and target length of each pair in an epoch → (N, 2)."""
        return _lengths_in(self, epoch)

    @cached_property
    def _max_lengths(self) -> tuple[int, int]:
        return int(self.sources.lengths.max(initial=0)), int(self.targets.lengths.max(initial=0))

    def batch(
        self, ids: Sequence[int], device: torch.device, epoch: int = 0, *, bucketed_shapes: bool = False
    ) -> Batch:
        """Return a batch of some pairs. With `bucketed_shapes`, its widths are rounded up to one of a few values."""
        sides = zip((self.sources, self.targets), self._max_lengths if bucketed_shapes else (0, 0), strict=True)
        source, target = (pad_ragged(side.take(ids, epoch), max_length) for side, max_length in sides)
        return Batch(source.to(device), target.to(device), list(ids), int(target.lengths_B.sum()))


@lru_cache(maxsize=1)
def _lengths_in(corpus: EncodedCorpus, epoch: int) -> Ids:
    return np.stack([corpus.sources.epoch_lengths(epoch), corpus.targets.epoch_lengths(epoch)], axis=1)


def warn_truncated(count: int, max_length: int, name: str = "source") -> None:
    """Log a warning if texts were longer than the maximum length."""
    if count:
        log.warning(
            "Truncated %d %s to %s tokens (tokenizer.max_length).",
            count, name if count == 1 else f"{name}s", f"{max_length:,}",
        )  # fmt: skip


def pad(rows: Sequence[Sequence[int]]) -> Padded:
    """Pad rows of ids with PAD to the length of the longest, and at least to 1."""
    return pad_ragged(Ragged.of(rows))


def pad_ragged(rows: Ragged, max_length: int = 0) -> Padded:
    """As `pad`. With `max_length`, the length of the longest row of the corpus, the width is rounded up to one of a few
    values, but not beyond `max_length` if it fits.
    """
    lengths_B = rows.lengths
    width = max(1, int(lengths_B.max(initial=0)))
    if max_length:
        rounded = int(round_up_lengths(np.array(width), 4))
        width = min(rounded, max_length) if width <= max_length else rounded
    tokens_BT = np.full((len(rows), width), PAD, np.int64)
    tokens_BT[np.arange(tokens_BT.shape[1]) < lengths_B[:, None]] = rows.flat
    return Padded(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B))
