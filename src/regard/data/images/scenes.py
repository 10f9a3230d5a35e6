"""The built-in corpus of scenes: images of colored shapes, with captions that name the objects.

The bounding box of every object that a caption mentions is known, and the words that mention it, so that attention can
be compared with it: while a word is generated, the weight should be on its object. A scene is a pure function of the
seed, the split and its number.

An image has one correct caption: it mentions the larger of two objects first, and of two equal sizes the left or the
upper one.

H height, W width.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.images.pixels import PixelArray
from regard.data.images.settings import ScenesData
from regard.data.settings import SPLITS, SplitName

COLORS = {
    "red": (214, 39, 40), "green": (44, 160, 44), "blue": (31, 84, 214), "yellow": (240, 214, 40),
    "purple": (148, 60, 189), "orange": (255, 127, 14), "black": (20, 20, 20),
}  # fmt: skip

_BACKGROUNDS = (200, 255)
"""The range of the gray values of backgrounds."""

_SIZES = {"small": (0.17, 0.22), "large": (0.32, 0.40)}
"""The range of the height and width of an object, as a share of those of the image."""

_GAP = 0.06
"""The minimum distance between two objects along the axis of their relation, as a share of the image."""

_RELATIONS = ("left of", "right of", "above", "below")
_READING_ORDER, _HORIZONTAL = ("left of", "above"), ("left of", "right of")


def _circle(y: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.bool_]:
    return y**2 + x**2 <= 1


def _square(y: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.maximum(abs(y), abs(x)) <= 1


def _triangle(y: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.bool_]:
    return 2 * abs(x) <= 1 + y


def _diamond(y: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.bool_]:
    return abs(y) + abs(x) <= 1


def _cross(y: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.minimum(abs(y), abs(x)) <= 0.33


SHAPES: dict[str, Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.bool_]]] = {
    "circle": _circle, "square": _square, "triangle": _triangle, "diamond": _diamond, "cross": _cross,
}  # fmt: skip
"""Whether points belong to a shape, in coordinates from −1 to 1: down and right are positive."""


class Box(NamedTuple):
    """The bounding box of an object in pixels, and the words of the caption that mention it. Ends are exclusive."""

    top: int
    left: int
    bottom: int
    right: int
    first_word: int
    end_word: int


@dataclass(frozen=True, eq=False)
class Scene:
    """An image, its caption, and the boxes of the objects, in the order in which the caption mentions them."""

    pixels: PixelArray
    caption: str
    boxes: tuple[Box, ...]


class _Object(NamedTuple):
    size: str
    color: str
    shape: str

    def __str__(self) -> str:
        return f"a {self.size} {self.color} {self.shape}"


def sample(settings: ScenesData, split: SplitName = "train") -> list[Scene]:
    """Draw the scenes of a split."""
    count: int = getattr(settings, split)
    return [_draw_scene(settings, random.Random(f"{settings.seed} {split} {number}")) for number in range(count)]


def sample_pairs(settings: ScenesData) -> dict[str, list[tuple[PixelArray, str]]]:
    """Draw all splits. Return the images with their captions."""
    return {split: [(scene.pixels, scene.caption) for scene in sample(settings, split)] for split in SPLITS}


def _draw_scene(settings: ScenesData, generator: random.Random) -> Scene:
    """Draw one object, or two with a relation between them."""
    height, width = settings.height, settings.width
    gray = generator.randint(*_BACKGROUNDS)
    pixels_HW3 = np.full((height, width, 3), gray, np.uint8)
    first = _choose_object(generator)
    if generator.random() < settings.single:
        spot = _place(generator, first, (0.0, 1.0), (0.0, 1.0))
        box = _draw(pixels_HW3, first, spot, first_word=0)
        return Scene(pixels_HW3, str(first), (box,))
    first, second = sorted((first, _choose_object(generator)), key=lambda thing: thing.size)  # large before small
    relation = generator.choice(_RELATIONS if first.size != second.size else _READING_ORDER)
    spots = _place_both(generator, first, second, relation)
    words = len(str(first).split()) + len(relation.split())
    boxes = (_draw(pixels_HW3, first, spots[0], 0), _draw(pixels_HW3, second, spots[1], words))
    return Scene(pixels_HW3, f"{first} {relation} {second}", boxes)


def _choose_object(generator: random.Random) -> _Object:
    return _Object(generator.choice(list(_SIZES)), generator.choice(list(COLORS)), generator.choice(list(SHAPES)))


class _Spot(NamedTuple):
    """The position and the size of an object, as shares of the height and width of the image."""

    top: float
    left: float
    height: float
    width: float


Range = tuple[float, float]


def _place(generator: random.Random, thing: _Object, vertical: Range, horizontal: Range) -> _Spot:
    """Choose a position inside a part of the image, and a size."""
    side = generator.uniform(*_SIZES[thing.size])
    top = generator.uniform(vertical[0], max(vertical[0], vertical[1] - side))
    left = generator.uniform(horizontal[0], max(horizontal[0], horizontal[1] - side))
    return _Spot(top, left, side, side)


def _place_both(generator: random.Random, first: _Object, second: _Object, relation: str) -> tuple[_Spot, _Spot]:
    """Place two objects on different sides of a line. Across it, they overlap by at least half of the smaller one, so
    that no other relation describes them.
    """
    ordered = (first, second) if relation in _READING_ORDER else (second, first)
    near, far = (_SIZES[thing.size][1] for thing in ordered)
    line = generator.uniform(near + _GAP / 2, 1 - far - _GAP / 2)
    sides = ((0.0, line - _GAP / 2), (line + _GAP / 2, 1.0))
    own, other = sides if relation in _READING_ORDER else sides[::-1]
    if relation in _HORIZONTAL:
        one = _place(generator, first, (0.0, 1.0), own)
        two = _place(generator, second, (0.0, 1.0), other)
        return one, two._replace(top=_align(generator, one.top, one.height, two.height))
    one = _place(generator, first, own, (0.0, 1.0))
    two = _place(generator, second, other, (0.0, 1.0))
    return one, two._replace(left=_align(generator, one.left, one.width, two.width))


def _align(generator: random.Random, start: float, size: float, other_size: float) -> float:
    """Choose the start of another object whose center differs by at most a quarter of the sizes."""
    center = start + size / 2 + generator.uniform(-0.25, 0.25) * min(size, other_size)
    return min(max(0.0, center - other_size / 2), 1 - other_size)


def _draw(pixels_HW3: PixelArray, thing: _Object, spot: _Spot, first_word: int) -> Box:
    """Draw an object, and return its bounding box. The box contains every pixel that has changed."""
    height, width = pixels_HW3.shape[:2]
    top, left = round(spot.top * height), round(spot.left * width)
    bottom = min(height, top + max(3, round(spot.height * height)))
    right = min(width, left + max(3, round(spot.width * width)))
    y, x = np.meshgrid(_pixel_centers(bottom - top), _pixel_centers(right - left), indexing="ij")
    pixels_HW3[top:bottom, left:right][SHAPES[thing.shape](y, x)] = COLORS[thing.color]
    return Box(top, left, bottom, right, first_word, first_word + len(str(thing).split()))


def _pixel_centers(count: int) -> NDArray[np.float64]:
    return (2 * np.arange(count) + 1) / count - 1
