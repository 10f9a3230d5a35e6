"""Features: the output of the frozen part of an encoder, computed once for each source.

They are memory-mapped from the cache.

N distinct sources.
"""

import hashlib
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.cache import cache_key, get_or_build
from regard.data.corpora import RawSource, identify
from regard.data.preparation import Report
from regard.data.ragged import Ids
from regard.data.sources import EncodedSources, SourceItem, SourceReader
from regard.errors import ModelError
from regard.formatting import quantity
from regard.models.contracts import FrozenPart, Source

_FORMAT = 1
"""The version of the cache format; increase it when the content of entries changes."""

_BATCH = 32
"""The number of sources whose features are computed at a time."""

_FILE = "features.npy"


@final
@dataclass(frozen=True, eq=False)
class CachedFeatures:
    """The sources of a corpus, as the features that the frozen part of an encoder computes from them."""

    part: FrozenPart
    features_N: NDArray[np.floating]
    """The features of each distinct source."""
    index: Ids
    """The number of each source among the distinct ones."""
    lengths: Ids

    def __len__(self) -> int:
        return len(self.index)

    def epoch_lengths(self, epoch: int) -> Ids:
        """Return the lengths, which are the same in every epoch."""
        del epoch
        return self.lengths

    def batch(self, rows: Sequence[int], epoch: int = 0, *, bucketed_shapes: bool = False) -> Source:
        """Return the features of some sources, which are the same in every epoch."""
        del epoch, bucketed_shapes  # all have one shape
        return self.part.wrap(torch.from_numpy(self.features_N[self.index[list(rows)]]))


@final
@dataclass(frozen=True)
class FeatureItem(SourceItem):
    """A source whose features are cached."""

    item: SourceItem
    row: int
    """The number of the source among the cached ones."""

    @property
    def label(self) -> str:
        return self.item.label

    @property
    def length(self) -> int:
        return self.item.length


@final
@dataclass(frozen=True)
class FeatureReader(SourceReader):
    """Reads the cached features of a fixed set of sources instead of the sources, for repeated validation."""

    noun: ClassVar[str] = "source"
    accepts: ClassVar[str] = "source whose features are cached"

    reader: SourceReader
    features: CachedFeatures
    rows: Mapping[Hashable, int]
    """The row of each source in the features, by its identity."""

    @classmethod
    def of(
        cls,
        part: FrozenPart,
        reader: SourceReader,
        sources: Sequence[RawSource],
        device: torch.device,
        report: Report,
    ) -> "FeatureReader":
        """Compute the features of some sources, or get them from the cache."""
        features = cache_features(part, reader.encode(sources), sources, reader, device, report)
        return cls(reader, features, {identify(source): row for row, source in enumerate(sources)})

    def is_source(self, value: object) -> bool:
        return self.reader.is_source(value)

    def read(self, sources: Sequence[RawSource]) -> list[FeatureItem]:
        items = zip(self.reader.read(sources), self._find_rows(sources), strict=True)
        return [FeatureItem(item, row) for item, row in items]

    def collate(self, items: Sequence[FeatureItem]) -> Source:
        return self.features.batch([item.row for item in items])

    def encode(self, sources: Sequence[RawSource]) -> CachedFeatures:
        rows = self._find_rows(sources)
        return replace(self.features, index=self.features.index[rows], lengths=self.features.lengths[rows])

    def fingerprint(self, source: RawSource) -> str:
        return self.reader.fingerprint(source)

    def _find_rows(self, sources: Sequence[RawSource]) -> list[int]:
        return [self.rows[identify(source)] for source in sources]


def cache_features(
    part: FrozenPart,
    encoded: EncodedSources,
    sources: Sequence[RawSource],
    reader: SourceReader,
    device: torch.device,
    report: Report,
) -> CachedFeatures:
    """Compute the features of the sources of a corpus, or get them from the cache.

    An entry is identified by the content of all sources, the weights of the frozen part, and how the reader
    preprocesses sources. A source that occurs several times is computed once.
    """
    rows_by_content: dict[str, list[int]] = {}
    for row, source in enumerate(sources):
        rows_by_content.setdefault(reader.fingerprint(source), []).append(row)
    index = np.empty(len(sources), np.int64)
    for number, rows in enumerate(rows_by_content.values()):
        index[rows] = number
    first_rows = [rows[0] for rows in rows_by_content.values()]
    name = type(part.module).__qualname__
    key = cache_key(_FORMAT, list(rows_by_content), name, hash_weights(part.module), repr(reader), str(part.dtype))

    def build(folder: Path) -> None:
        start = time.monotonic()
        _write_features(part, encoded, first_rows, device, folder / _FILE)
        images = quantity(len(first_rows), reader.noun)
        report(
            f"Computed the features of {images} in {time.monotonic() - start:.1f} s; they are cached in "
            f"{folder.parent}."
        )

    folder = get_or_build("features", key, build)
    features_N = np.load(folder / _FILE, mmap_mode="r", allow_pickle=False)
    return CachedFeatures(part, features_N, index, encoded.lengths)


@torch.inference_mode()
def _write_features(
    part: FrozenPart, encoded: EncodedSources, rows: Sequence[int], device: torch.device, path: Path
) -> None:
    """Write the features of some sources to a file, batch by batch, so that they need not fit into memory."""
    file: np.memmap[Any, Any] | None = None
    for start in range(0, len(rows), _BATCH):
        chunk = rows[start : start + _BATCH]
        features: Tensor = part.compute(encoded.batch(chunk).to(device)).to(part.dtype)
        if not features.isfinite().all():
            dtype = str(part.dtype).removeprefix("torch.")
            raise ModelError(
                f"The features of the sources {min(chunk) + 1} to {max(chunk) + 1} contain values that {dtype} cannot "
                "represent. Set model.encoder.cache=float32, or model.encoder.cache=none."
            )
        values = features.cpu().numpy()
        if file is None:
            shape = (len(rows), *values.shape[1:])
            file = np.lib.format.open_memmap(path, mode="w+", dtype=values.dtype, shape=shape)
        file[start : start + len(chunk)] = values
    if file is not None:
        file.flush()


def hash_weights(module: nn.Module) -> str:
    """Return a hash of the names and values of all tensors of a module."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).numpy().tobytes())
    return digest.hexdigest()
