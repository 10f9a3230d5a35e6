"""Ragged arrays: rows of ids of different lengths in one flat array, in memory or memory-mapped."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[Any]
"""Integers of any width."""


@dataclass(frozen=True)
class Ragged:
    """Row n is `flat[offsets[n] : offsets[n + 1]]`."""

    flat: Ids = field(repr=False)
    offsets: Ids = field(repr=False)

    @classmethod
    def of(cls, rows: Iterable[Sequence[int] | Ids]) -> "Ragged":
        listed = list(rows)
        offsets = compute_offsets(list(map(len, listed)))
        return cls(np.fromiter(chain.from_iterable(listed), np.int64, int(offsets[-1])), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Ids:
        part: Ids = self.flat[self.offsets[row] : self.offsets[row + 1]]
        return part

    @property
    def lengths(self) -> Ids:
        return np.diff(self.offsets)

    def epoch_lengths(self, epoch: int) -> Ids:
        """Return the lengths, which are the same in every epoch."""
        del epoch
        return self.lengths

    def rows(self) -> list[list[int]]:
        flat: list[int] = self.flat.tolist()
        bounds: list[int] = self.offsets.tolist()
        return [flat[start:end] for start, end in pairwise(bounds)]

    def take(self, rows: Sequence[int] | Ids, epoch: int = 0) -> "Ragged":
        """Select rows, which are the same in every epoch."""
        del epoch
        rows = np.asarray(rows, dtype=np.int64)
        starts = self.offsets[rows]
        offsets = compute_offsets(self.offsets[rows + 1] - starts)
        within = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], np.diff(offsets))
        return Ragged(self.flat[within].astype(np.int64), offsets)

    def truncate(self, max_length: int, end: int | None) -> "Ragged":
        """Truncate the rows, and append `end` to each unless it is None."""
        if end is None and self.lengths.max(initial=0) <= max_length:
            return self
        lengths = np.minimum(self.lengths, max_length)
        offsets = compute_offsets(lengths if end is None else lengths + 1)
        flat = np.full(offsets[-1], 0 if end is None else end, np.int64)
        within = np.arange(int(lengths.sum())) - np.repeat(compute_offsets(lengths)[:-1], lengths)
        flat[np.repeat(offsets[:-1], lengths) + within] = self.flat[np.repeat(self.offsets[:-1], lengths) + within]
        return Ragged(flat, offsets)


def compute_offsets(lengths: Sequence[int] | Ids) -> Ids:
    """Return the start of each row, and the end of the last one."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


class RaggedFile:
    """Appends rows to `NAME.uint16` or `NAME.uint32`, and writes their offsets to `NAME.offsets.npy` when closed."""

    def __init__(self, folder: Path, name: str, max_id: int) -> None:
        self._dtype = np.dtype(np.uint16 if max_id < 1 << 16 else np.uint32)
        self._handle = (folder / f"{name}.{self._dtype.name}").open("wb")
        self._offsets = folder / f"{name}.offsets.npy"
        self._lengths: list[Ids] = []

    def write(self, rows: Ragged) -> None:
        self._lengths.append(rows.lengths.astype(np.int32))
        self._handle.write(rows.flat.astype(self._dtype).tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._handle.close()
        if failure[0] is None:
            offsets = io.BytesIO()  # errors of `np.save` on a file do not contain the reason
            np.save(offsets, compute_offsets(np.concatenate([np.empty(0, np.int32), *self._lengths])))
            self._offsets.write_bytes(offsets.getbuffer())


def map_ragged(folder: Path, name: str) -> Ragged:
    """Memory-map the rows that a `RaggedFile` wrote."""
    [path] = folder.glob(f"{name}.uint*")
    offsets = np.asarray(np.load(folder / f"{name}.offsets.npy", mmap_mode="r", allow_pickle=False))
    if not offsets[-1]:  # an empty file cannot be memory-mapped
        return Ragged(np.empty(0, np.int64), offsets)
    return Ragged(np.memmap(path, dtype=path.suffix.removeprefix("."), mode="r"), offsets)
