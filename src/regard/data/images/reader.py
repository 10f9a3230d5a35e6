"""Images as a source: files, arrays and Pillow images, fitted to the size that the encoder reads.

B rows, N images, H height, W width.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.corpora import RawSource, identify
from regard.data.images.files import hash_file
from regard.data.images.pixels import PixelArray, Resize, import_pillow, read_pixels
from regard.data.ragged import Ids
from regard.data.sources import MaskRegion, SourceItem, SourceReader, check_index
from regard.data.tokens.tokenizers import UNKNOWN
from regard.errors import ConfigError, DataError
from regard.models.contracts import Grid
from regard.models.vision.sources import LENGTH_HINT, Pixels

_MAX_BYTES_IN_MEMORY = 1 << 30
"""The pixels of a corpus are kept in memory if they need at most this many bytes."""


@final
@dataclass(frozen=True)
class ImageItem(SourceItem):
    """An image that is read when its batch is formed."""

    source: RawSource
    reader: "ImageReader"
    name: str | None = None
    """The label of an image that was edited."""

    @property
    def label(self) -> str:
        if self.name is not None:
            return self.name
        return os.fspath(self.source) if isinstance(self.source, str | os.PathLike) else "image"

    @property
    def length(self) -> int:
        return LENGTH_HINT

    @property
    def pixels(self) -> PixelArray:
        """The image as the encoder reads it, (H, W, 3)."""
        return self.reader.read_pixels(self.source)


@final
@dataclass(frozen=True)
class ImageReader(SourceReader):
    """Reads images of any size and mode, and fits them to the height and width of the encoder."""

    noun: ClassVar[str] = "image"
    accepts: ClassVar[str] = "file name, array or PIL.Image"

    height: int = 224
    width: int = 224
    resize: Resize = "squash"

    def is_source(self, value: object) -> bool:
        if isinstance(value, str | os.PathLike | np.ndarray):
            return True
        return isinstance(value, import_pillow().Image.Image)

    def read(self, sources: Sequence[RawSource]) -> list[ImageItem]:
        import_pillow()
        return [ImageItem(source, self) for source in sources]

    def find_problem(self, source: RawSource) -> str | None:
        try:
            self.read_pixels(source)
        except DataError as error:
            return str(error)
        return None

    def collate(self, items: Sequence[ImageItem]) -> Pixels:
        return to_batch(np.stack([item.pixels for item in items]))

    def edit(self, item: ImageItem, edit: MaskRegion, layout: Grid | None) -> ImageItem:
        """Fill cells of the grid with the average color of the image."""
        if layout is None:
            raise ConfigError("the encoder does not arrange the slots of an image in a grid, so it has no cells.")
        hidden_1S = torch.zeros(1, layout.height * layout.width, dtype=torch.bool)
        check_index("cell", max(edit.cells), hidden_1S.shape[1], "cell", "the grid of the image")
        hidden_1S[0, list(edit.cells)] = True
        pixels_3HW = self.collate([item]).occlude(hidden_1S, UNKNOWN, layout).pixels_B3HW[0]
        return ImageItem(pixels_3HW.permute(1, 2, 0).numpy(), self, item.label)

    def encode(self, sources: Sequence[RawSource]) -> "EncodedImages":
        return EncodedImages(self, sources)

    def fingerprint(self, source: RawSource) -> str:
        if isinstance(source, str | os.PathLike):
            return hash_file(os.fspath(source))
        pixels = np.ascontiguousarray(source)
        return hashlib.sha256(f"{pixels.shape} {pixels.dtype}".encode() + pixels.tobytes()).hexdigest()

    def read_pixels(self, source: RawSource) -> PixelArray:
        """Read an image as the encoder reads it, (H, W, 3)."""
        return read_pixels(source, self.height, self.width, self.resize)


def to_batch(pixels_BHW3: PixelArray) -> Pixels:
    """Return images as a batch on the CPU."""
    return Pixels(torch.from_numpy(np.ascontiguousarray(pixels_BHW3.transpose(0, 3, 1, 2))))


@final
@dataclass(frozen=True, eq=False)
class EncodedImages:
    """The images of a corpus. Each is read when a batch first needs it, and kept in memory if all of them fit.

    An image with several captions is one image.
    """

    reader: ImageReader
    sources: Sequence[RawSource]
    max_bytes: int = _MAX_BYTES_IN_MEMORY
    _is_stored_N: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_is_stored_N", np.zeros(len(self._distinct), bool))

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def lengths(self) -> Ids:
        return np.full(len(self.sources), LENGTH_HINT)

    def epoch_lengths(self, epoch: int) -> Ids:
        """Return the lengths, which are the same in every epoch."""
        del epoch
        return self.lengths

    def batch(self, rows: Sequence[int], epoch: int = 0, *, bucketed_shapes: bool = False) -> Pixels:
        """Return some images, which are the same in every epoch."""
        del epoch, bucketed_shapes  # all images have one shape
        return to_batch(np.stack([self._read(self._index[row]) for row in rows]))

    @cached_property
    def _distinct(self) -> list[RawSource]:
        return list({identify(source): source for source in self.sources}.values())

    @cached_property
    def _index(self) -> list[int]:
        """The index of each source among the distinct ones."""
        numbers = {identify(source): number for number, source in enumerate(self._distinct)}
        return [numbers[identify(source)] for source in self.sources]

    @cached_property
    def _stored_NHW3(self) -> PixelArray | None:
        """Memory for all images, which the operating system provides as it is filled; None if they need too much."""
        shape = (len(self._distinct), self.reader.height, self.reader.width, 3)
        return np.empty(shape, np.uint8) if np.prod(shape) <= self.max_bytes else None

    def _read(self, number: int) -> PixelArray:
        stored_NHW3 = self._stored_NHW3
        if stored_NHW3 is None:
            return self.reader.read_pixels(self._distinct[number])
        if not self._is_stored_N[number]:
            stored_NHW3[number] = self.reader.read_pixels(self._distinct[number])
            self._is_stored_N[number] = True
        stored: PixelArray = stored_NHW3[number]
        return stored
