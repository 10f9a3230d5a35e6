"""Rows of ids of many lengths, end to end in one array: in memory, or mapped from a file however large."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[Any]
"""Whole numbers of any width."""


@dataclass(frozen=True)
class Ragged:
    """Row n is `flat[offsets[n] : offsets[n + 1]]`."""

    flat: Ids = field(repr=False)
    offsets: Ids = field(repr=False)

    @classmethod
    def of(cls, rows: Iterable[Sequence[int] | Ids]) -> "Ragged":
        listed = [np.asarray(row, dtype=np.int64) for row in rows]
        flat = np.concatenate(listed) if listed else np.empty(0, np.int64)
        return cls(flat, offsets_of([len(row) for row in listed]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Ids:
        part: Ids = self.flat[self.offsets[row] : self.offsets[row + 1]]
        return part

    @property
    def lengths(self) -> Ids:
        return np.diff(self.offsets)

    def epoch_lengths(self, epoch: int) -> Ids:
        """They are the same in every epoch."""
        del epoch
        return self.lengths

    def rows(self) -> list[list[int]]:
        return [self[row].tolist() for row in range(len(self))]

    def take(self, rows: Sequence[int] | Ids, epoch: int = 0) -> "Ragged":
        """Some of the rows, in the order given; they are the same in every epoch."""
        del epoch
        rows = np.asarray(rows, dtype=np.int64)
        starts = self.offsets[rows]
        offsets = offsets_of(self.offsets[rows + 1] - starts)
        within = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], np.diff(offsets))
        return Ragged(self.flat[within].astype(np.int64), offsets)

    def ended(self, longest: int, end: int | None) -> "Ragged":
        """The rows cut to a length, and with an end behind each where there is one."""
        kept = np.minimum(self.lengths, longest)
        offsets = offsets_of(kept if end is None else kept + 1)
        flat = np.full(offsets[-1], 0 if end is None else end, np.int64)
        within = np.arange(int(kept.sum())) - np.repeat(offsets_of(kept)[:-1], kept)
        flat[np.repeat(offsets[:-1], kept) + within] = self.flat[np.repeat(self.offsets[:-1], kept) + within]
        return Ragged(flat, offsets)


def offsets_of(lengths: Sequence[int] | Ids) -> Ids:
    """Where rows of these lengths begin, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


class RaggedFile:
    """Writes rows to `NAME.uint16` or `.uint32` as they come, and their offsets to `NAME.offsets.npy` at the end."""

    def __init__(self, folder: Path, name: str, largest: int) -> None:
        self._type = np.dtype(np.uint16 if largest < 1 << 16 else np.uint32)
        self._handle = (folder / f"{name}.{self._type.name}").open("wb")
        self._offsets = folder / f"{name}.offsets.npy"
        self._lengths: list[Ids] = []

    def write(self, rows: Ragged) -> None:
        self._lengths.append(rows.lengths.astype(np.int32))
        self._handle.write(rows.flat.astype(self._type).tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._handle.close()
        if failure[0] is None:
            offsets = io.BytesIO()  # numpy itself does not say why a file cannot be written
            np.save(offsets, offsets_of(np.concatenate([np.empty(0, np.int32), *self._lengths])))
            self._offsets.write_bytes(offsets.getbuffer())


def map_ragged(folder: Path, name: str) -> Ragged:
    """What a `RaggedFile` wrote, read from the disk as it is needed."""
    [path] = folder.glob(f"{name}.uint*")
    offsets = np.load(folder / f"{name}.offsets.npy", allow_pickle=False)
    if not offsets[-1]:  # an empty file cannot be mapped
        return Ragged(np.empty(0, np.int64), offsets)
    return Ragged(np.memmap(path, dtype=path.suffix.removeprefix("."), mode="r"), offsets)
