"""A plugin that captions pictures: a kind of source, its reader, an encoder and a corpus.

A picture is a 3 × 3 grid of cells of 4 × 4 pixels. Two of the cells contain a shape. The caption names the shapes in
reading order: `cross ring`. Pictures are .npy files, or arrays in Python.

B rows, H and W height and width in pixels, S slots, D width.
"""

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import regard

Picture = NDArray[np.float32]

SIDE, CELL, LENGTH = 3, 4, 4
"""Cells in a row, pixels in a row of a cell, and the length from which search computes its limit."""

SHAPES = {
    "block": ["####", "####", "####", "####"],
    "bar": ["....", "####", "####", "...."],
    "cross": ["#..#", ".##.", ".##.", "#..#"],
    "ring": ["####", "#..#", "#..#", "####"],
}


def draw_picture(generator: random.Random) -> tuple[Picture, str]:
    """Draw two shapes in two cells. Return the picture and its caption."""
    picture = np.zeros((SIDE * CELL, SIDE * CELL), np.float32)
    names = generator.choices(list(SHAPES), k=2)
    for cell, name in zip(sorted(generator.sample(range(SIDE * SIDE), 2)), names, strict=True):
        row, column = (CELL * position for position in divmod(cell, SIDE))
        pixels = [[mark == "#" for mark in line] for line in SHAPES[name]]
        picture[row : row + CELL, column : column + CELL] = pixels
    return picture, " ".join(names)


def write_pictures(folder: Path, count: int, seed: int = 0) -> None:
    """Write pictures as .npy files, and a file with their names and captions."""
    generator = random.Random(seed)
    lines = []
    for number in range(count):
        picture, caption = draw_picture(generator)
        np.save(folder / f"{number}.npy", picture)
        lines.append(f"{number}.npy\t{caption}\n")
    (folder / "captions.tsv").write_text("".join(lines), "utf-8")


def load_captions(folder: str, dev: int = 50, test: int = 50) -> regard.Corpus:
    """Pictures with captions, as `write_pictures` writes them."""
    path = Path(folder) / "captions.tsv"
    rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    pairs = [(str(Path(folder) / name), caption) for name, caption in rows]
    dev_pairs, test_pairs, train = pairs[:dev], pairs[dev : dev + test], pairs[dev + test :]
    return regard.Corpus(
        regard.Pairs.of(train), regard.Pairs.of(dev_pairs), regard.Pairs.of(test_pairs), files=(str(path),)
    )


@final
@dataclass(frozen=True, eq=False)
class Pictures(regard.Source):
    """A batch of pictures."""

    pixels_BHW: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.pixels_BHW,)

    def with_tensors(self, tensors: Iterable[Tensor]) -> "Pictures":
        return Pictures(*tensors)

    @property
    def length_hint_B(self) -> Tensor:
        return torch.full((len(self.pixels_BHW),), LENGTH, device=self.pixels_BHW.device)


@final
@dataclass(frozen=True)
class PictureItem(regard.SourceItem):
    """A picture, and its name."""

    name: str
    pixels_HW: Picture

    @property
    def label(self) -> str:
        return self.name

    @property
    def length(self) -> int:
        return LENGTH

    @property
    def pixels(self) -> NDArray[np.uint8]:
        gray_HW = np.rint(255 * self.pixels_HW).astype(np.uint8)
        return np.repeat(gray_HW[..., None], 3, axis=2)


@final
@dataclass(frozen=True)
class PictureReader(regard.SourceReader):
    """Reads pictures from .npy files, or takes arrays."""

    noun: ClassVar[str] = "picture"
    accepts: ClassVar[str] = "file name or array"

    invert: bool = False

    def is_source(self, value: object) -> bool:
        return isinstance(value, str | np.ndarray)

    def read(self, sources: Sequence[Any]) -> list[PictureItem]:
        return [PictureItem(_name(source), self._load(source)) for source in sources]

    def collate(self, items: Sequence[Any]) -> Pictures:
        return Pictures(torch.from_numpy(np.stack([item.pixels_HW for item in items])))

    def encode(self, sources: Sequence[Any]) -> regard.LazySources:
        return regard.LazySources(self, sources, LENGTH)

    def fingerprint(self, source: Any) -> str:
        return hashlib.sha256(self._load(source).tobytes()).hexdigest()

    def _load(self, source: Any) -> Picture:
        if isinstance(source, str):
            try:
                source = np.load(source, allow_pickle=False)
            except (OSError, ValueError) as error:
                raise regard.DataError(f"{source} is not a picture: {error}. Give the name of a .npy file.") from None
        pixels: Picture = np.asarray(source, np.float32)
        if pixels.shape != (SIDE * CELL, SIDE * CELL):
            raise regard.DataError(f"A picture must have {SIDE * CELL} × {SIDE * CELL} pixels, not {pixels.shape}.")
        return 1 - pixels if self.invert else pixels


def _name(source: Any) -> str:
    return Path(source).name if isinstance(source, str) else "picture"


class PictureEncoder(regard.Encoder[Pictures]):
    """A convolution with one output for each cell, and learned positions."""

    source_kind = "picture"

    def __init__(self, channels: int = 48, invert: bool = False) -> None:
        super().__init__()
        del invert  # an option of the reader
        self.channels = channels
        self.convolution = nn.Conv2d(1, channels, CELL, stride=CELL)
        self.positions_SD = nn.Parameter(0.1 * torch.randn(SIDE * SIDE, channels))
        self.output = nn.Linear(channels, channels)

    @property
    def size(self) -> int:
        return self.channels

    def forward(self, source: Pictures) -> regard.Memory:
        cells_BDHW = torch.relu(self.convolution(source.pixels_BHW.unsqueeze(1)))
        slots_BSD = self.output(cells_BDHW.flatten(2).transpose(1, 2)) + self.positions_SD
        allowed_BS = slots_BSD.new_ones(slots_BSD.shape[:2], dtype=torch.bool)
        return regard.Memory(slots_BSD, allowed_BS, slots_BSD.mean(1), layout=regard.Grid(SIDE, SIDE))


regard.register_reader("picture", PictureReader)
regard.register_encoder("toy_pictures", PictureEncoder)
regard.register_corpus("toy_captions", load_captions, source_kind="picture")
