"""Batches: a corpus in token ids, and the tensors that pairs of it become."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from regard.data.ragged import Ids, Ragged, RaggedFile, map_ragged
from regard.data.tokenizers import END, PAD, START, TokenizerPair
from regard.models.contracts import Padded

log = logging.getLogger(__name__)

_CHUNK = 20_000
"""Pairs that are tokenised together: enough to keep all cores at work, few enough to stay small."""


class Batch(NamedTuple):
    """Sources and targets in tensors; a target ends in END. `ids` are their places in the corpus, `tokens` counts those
    of the targets.
    """

    source: Padded
    target: Padded
    ids: list[int]
    tokens: int

    @property
    def given(self) -> torch.Tensor:
        """The targets shifted by one: what the decoder is told at each step."""
        start = torch.full_like(self.target.tokens_BT[:, :1], START)
        return torch.cat([start, self.target.tokens_BT[:, :-1]], dim=1)

    def cut(self, pieces: int) -> list["Batch"]:
        """The batch in so many pieces, or in single pairs where it has no more."""
        if pieces == 1:
            return [self]
        size = -(-len(self.ids) // pieces)
        return [self._rows(slice(start, start + size)) for start in range(0, len(self.ids), size)]

    def _rows(self, rows: slice) -> "Batch":
        source, target = (Padded(part.tokens_BT[rows], part.lengths_B[rows]) for part in self[:2])
        return Batch(source, target, self.ids[rows], int(target.lengths_B.sum()))


@dataclass(frozen=True)
class Encoded:
    """A corpus in token ids; its targets end in END."""

    sources: Ragged
    targets: Ragged

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]], tokenizers: TokenizerPair, max_length: int) -> "Encoded":
        """Held in memory."""
        chunks = list(_encoded(pairs, tokenizers, max_length))
        sources, targets = ([row for chunk in chunks for row in chunk[side]] for side in (0, 1))
        return cls(Ragged.of(sources), Ragged.of(targets))

    @staticmethod
    def write(folder: Path, pairs: Iterable[tuple[str, str]], tokenizers: TokenizerPair, max_length: int) -> None:
        """To files, a piece at a time: memory does not grow with the corpus."""
        with (
            RaggedFile(folder, "source", len(tokenizers.source)) as sources,
            RaggedFile(folder, "target", len(tokenizers.target)) as targets,
        ):
            for chunk in _encoded(pairs, tokenizers, max_length):
                sources.write(chunk[0])
                targets.write(chunk[1])

    @classmethod
    def open(cls, folder: Path) -> "Encoded":
        """What was written, mapped from its files."""
        return cls(map_ragged(folder, "source"), map_ragged(folder, "target"))

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def widths(self) -> Ids:
        """Of each pair, the length of its longer side."""
        return np.maximum(self.sources.lengths, self.targets.lengths)

    def batch(self, ids: Sequence[int], device: torch.device) -> Batch:
        source, target = (pad_ragged(side.take(ids)) for side in (self.sources, self.targets))
        return Batch(source.to(device), target.to(device), list(ids), int(target.lengths_B.sum()))


def _encoded(
    pairs: Iterable[tuple[str, str]], tokenizers: TokenizerPair, max_length: int
) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    remaining = iter(pairs)
    cut = 0
    while chunk := list(islice(remaining, _CHUNK)):
        sources = tokenizers.source.ids([source for source, _ in chunk])
        targets = tokenizers.target.ids([target for _, target in chunk])
        cut += sum(len(ids) > max_length for ids in (*sources, *targets))
        yield [ids[:max_length] for ids in sources], [[*ids[:max_length], END] for ids in targets]
    note_cut(cut, max_length, "sequence")


def note_cut(count: int, longest: int, what: str = "source") -> None:
    """Say that some texts were longer than the model takes."""
    if count:
        name, were = (what, "was") if count == 1 else (f"{what}s", "were")
        log.warning("%d %s longer than %s tokens %s cut (tokenizer.max_length).", count, name, f"{longest:,}", were)


def pad(rows: Sequence[Sequence[int]]) -> Padded:
    """Rows of ids as one tensor, filled up with PAD to the longest, and to a width of at least 1."""
    return pad_ragged(Ragged.of(rows))


def pad_ragged(rows: Ragged) -> Padded:
    lengths_B = rows.lengths
    tokens_BT = np.full((len(rows), max(1, int(lengths_B.max(initial=0)))), PAD, np.int64)
    tokens_BT[np.arange(tokens_BT.shape[1]) < lengths_B[:, None]] = rows.flat
    return Padded(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B))
