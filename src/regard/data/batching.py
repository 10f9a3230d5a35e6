"""Encoded corpora, and batches of padded tensors."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, final

import numpy as np
import torch

from regard.data.corpora import RawSource
from regard.data.guidance import EncodedAlignments
from regard.data.ragged import Ids, Ragged
from regard.data.sampler import round_up_lengths
from regard.data.sources import EncodedSources, SourceReader
from regard.data.tokens.segmentation import SampledSide
from regard.data.tokens.tokenizers import END, PAD, START, Tokenizer
from regard.models.contracts import Source, Tokens, move_tensor

log = logging.getLogger(__name__)


class Batch(NamedTuple):
    """Sources, and padded targets, which end in END. `ids` are the indices of the pairs in the corpus; `tokens` is the
    number of target tokens. With guided alignment, `alignment_BTS` is a distribution over source tokens for each step.
    `seed` determines the random numbers of training on the batch, such as those of dropout.
    """

    source: Source
    target: Tokens
    ids: list[int]
    tokens: int
    alignment_BTS: torch.Tensor | None = None
    seed: int = 0

    @property
    def decoder_inputs(self) -> torch.Tensor:
        """The targets shifted right by one, starting with START."""
        start = torch.full_like(self.target.tokens_BT[:, :1], START)
        return torch.cat([start, self.target.tokens_BT[:, :-1]], dim=1)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors of the batch."""
        alignment = () if self.alignment_BTS is None else (self.alignment_BTS,)
        return *self.source.tensors, *self.target.tensors, *alignment

    def clone(self) -> "Batch":
        """Copy all tensors."""
        alignment_BTS = None if self.alignment_BTS is None else self.alignment_BTS.clone()
        return self._replace(source=self.source.clone(), target=self.target.clone(), alignment_BTS=alignment_BTS)


TokenRows = Ragged | SampledSide
"""Texts as token ids, which differ between epochs if segmentations are sampled."""


@final
@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """The texts of one side of a corpus as token ids."""

    rows: TokenRows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Ids:
        return self.rows.lengths

    def epoch_lengths(self, epoch: int) -> Ids:
        return self.rows.epoch_lengths(epoch)

    @cached_property
    def _max_length(self) -> int:
        return int(self.lengths.max(initial=0))

    def batch(self, rows: Sequence[int], epoch: int = 0, *, bucketed_shapes: bool = False) -> Tokens:
        """Return some texts, padded. With `bucketed_shapes`, the width is rounded up to one of a few values."""
        return pad_ragged(self.rows.take(rows, epoch), self._max_length if bucketed_shapes else 0)


@dataclass(frozen=True, eq=False)
class EncodedCorpus:
    """A corpus that is ready for training. Targets end in END."""

    sources: EncodedSources
    targets: EncodedTexts
    alignments: EncodedAlignments | None = None

    @classmethod
    def of(
        cls, pairs: Iterable[tuple[RawSource, str]], reader: SourceReader, tokenizer: Tokenizer, max_length: int
    ) -> "EncodedCorpus":
        """Encode pairs in memory, with the reader of the sources and the tokenizer of the targets."""
        listed = list(pairs)
        targets = tokenizer.ids([target for _, target in listed])
        warn_truncated(sum(len(ids) > max_length for ids in targets), max_length, "target")
        return cls(
            reader.encode([source for source, _ in listed]),
            EncodedTexts(Ragged.of([*ids[:max_length], END] for ids in targets)),
        )

    def __len__(self) -> int:
        return len(self.sources)

    @cached_property
    def lengths_N2(self) -> Ids:
        """The source and target length of each pair; approximate if lengths differ between epochs."""
        lengths_N2 = np.empty((len(self), 2), np.int32)
        lengths_N2[:, 0] = self.sources.lengths
        lengths_N2[:, 1] = self.targets.lengths
        return lengths_N2

    @property
    def average_lengths(self) -> dict[str, float]:
        """The average lengths of `source` and `target`."""
        return dict(zip(("source", "target"), self.lengths_N2.mean(0).round(2).tolist(), strict=True))

    def epoch_lengths(self, epoch: int) -> Ids:
        """Return the source and target length of each pair in an epoch → (N, 2)."""
        return _lengths_in(self, epoch)

    def count_target_tokens(self, ids: Sequence[int], epoch: int) -> int:
        """Return the number of target tokens of some pairs, without reading them."""
        return int(self.epoch_lengths(epoch)[ids, 1].sum())

    def batch(
        self, ids: Sequence[int], device: torch.device, epoch: int = 0, *, bucketed_shapes: bool = False
    ) -> Batch:
        """Return a batch of some pairs.

        With `bucketed_shapes`, its widths are rounded up, so that more batches have equal shapes.
        """
        source = self.sources.batch(ids, epoch, bucketed_shapes=bucketed_shapes)
        target = self.targets.batch(ids, epoch, bucketed_shapes=bucketed_shapes)
        alignment_BTS = None
        if self.alignments is not None:
            widths = source.tensors[0].shape[1], target.tokens_BT.shape[1]
            alignment_BTS = move_tensor(self.alignments.batch(ids, *widths, epoch), device)
        tokens = int(target.lengths_B.sum())
        return Batch(source.to(device), target.to(device), list(ids), tokens, alignment_BTS)


@lru_cache(maxsize=1)
def _lengths_in(corpus: EncodedCorpus, epoch: int) -> Ids:
    lengths_N2 = np.empty((len(corpus), 2), np.int32)
    lengths_N2[:, 0] = corpus.sources.epoch_lengths(epoch)
    lengths_N2[:, 1] = corpus.targets.epoch_lengths(epoch)
    # Lengths that are the same in every epoch are kept in memory once.
    return corpus.lengths_N2 if np.array_equal(lengths_N2, corpus.lengths_N2) else lengths_N2


def warn_truncated(count: int, max_length: int, name: str = "source") -> None:
    """Log a warning if texts were longer than the maximum length."""
    if count:
        log.warning(
            "Truncated %d %s to %s tokens (tokenizer.max_length).",
            count, name if count == 1 else f"{name}s", f"{max_length:,}",
        )  # fmt: skip


def pad(rows: Sequence[Sequence[int]]) -> Tokens:
    """Pad rows of ids with PAD to the length of the longest, and at least to 1."""
    return pad_ragged(Ragged.of(rows))


def pad_ragged(rows: Ragged, max_length: int = 0) -> Tokens:
    """As `pad`. With `max_length`, the length of the longest row of the corpus, the width is rounded up to one of a few
    values, but not beyond `max_length` if it fits.
    """
    lengths_B = rows.lengths
    width = max(1, int(lengths_B.max(initial=0)))
    if max_length:
        rounded = int(round_up_lengths(np.array(width)))
        width = min(rounded, max_length) if width <= max_length else rounded
    tokens_BT = np.full((len(rows), width), PAD, np.int64)
    tokens_BT[np.arange(tokens_BT.shape[1]) < lengths_B[:, None]] = rows.flat
    return Tokens(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B))
