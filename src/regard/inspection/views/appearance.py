"""The appearance of attention weights: color maps, the weight of the strongest color, and the title."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.errors import ArgumentTypeError, ConfigError, check_choice
from regard.formatting import did_you_mean
from regard.inspection.views.pictures import Style

Rgb = NDArray[np.uint8]
"""Colors: the last axis is red, green and blue."""

LIGHT, DARK, SIGNED = "light", "dark", "signed"

_ANCHORS = {
    LIGHT: "ffffff deebf7 c6dbef 9ecae1 6baed6 4292c6 2171b5 08519c 08306b",
    DARK: "18183c 3c3060 7a4a5a b98a4c ffd640",
    SIGNED: "b2182b d6604d f4a582 fddbc7 ffffff d1e5f0 92c5de 4393c3 2166ac",
}
"""The colors that our color maps pass through: ColorBrewer's Blues from white, dark blue to yellow, and ColorBrewer's
RdBu with white in the middle.
"""

_LEVELS = 256

CATEGORY_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colors that people with color blindness can distinguish (Okabe and Ito)."""

HEAD_COLORS = (
    *CATEGORY_COLORS, "#332288", "#88ccee", "#44aa99", "#117733", "#999933", "#ddcc77", "#cc6677", "#882255", "#aa4499",
)  # fmt: skip
"""Colors of heads, followed by those of Tol's palette "muted"."""

LINE_COLOR = "#08519c"


@dataclass(frozen=True)
class Appearance:
    """How attention weights are drawn.

    Attributes:
        colors: A color map: `light` (white to dark blue), `dark` (dark blue to yellow), or a name that matplotlib
            knows. By default, `light`, and `dark` in a terminal. Both are perceptually uniform: equal differences
            between weights are equal differences between colors in CIELAB.
        max_weight: The weight of the strongest color. By default 1, 0.5, 0.2, 0.1, …: the smallest of these that is at
            least the largest weight.
        title: The title. By default, which weights are drawn; "" for none.
        style: How weights are drawn over an image: `smooth` or `grid`.
        signed: Whether there are negative numbers. Then white is 0, blue is positive and red is negative by default.
        quantity: What the numbers are, for the scale of the colors.
    """

    colors: str | None = None
    max_weight: float | None = None
    title: str | None = None
    style: Style = "smooth"
    signed: bool = False
    quantity: str = "attention weight"

    def __post_init__(self) -> None:
        for name, text in (("colors", self.colors), ("title", self.title)):
            if text is not None and not isinstance(text, str):
                raise ArgumentTypeError(f"{name} must be a text, not {text!r}.")
        check_choice("style", self.style, get_args(Style))
        if self.colors is not None:
            _color_table(self.colors)
        if self.max_weight is None:
            return
        if isinstance(self.max_weight, bool) or not isinstance(self.max_weight, int | float):
            raise ArgumentTypeError(f"max_weight must be a positive number, not {self.max_weight!r}.")
        if not (math.isfinite(self.max_weight) and self.max_weight > 0):
            raise ConfigError(f"max_weight must be a positive number, not {self.max_weight}.")

    def find_limit(self, maps: Sequence[NDArray[np.float32]]) -> float:
        """Return the weight of the strongest color, for maps that share their colors."""
        if self.max_weight is not None:
            return self.max_weight
        largest = (float((abs(weights) if self.signed else weights).max(initial=0)) for weights in maps)
        return round_up(max(largest, default=0.0))

    def find_start(self, limit: float) -> float:
        """Return the weight of the first color, given that of the last."""
        return -limit if self.signed else 0.0

    def to_rgb(self, weights: ArrayLike, limit: float, *, terminal: bool = False) -> Rgb:
        """Return the color of each weight."""
        start = self.find_start(limit)
        levels = ((np.asarray(weights, np.float64) - start) / (limit - start)).clip(0, 1)
        colors: Rgb = _color_table(self._name(terminal=terminal))[np.rint(levels * (_LEVELS - 1)).astype(int)]
        return colors

    def build_color_map(self) -> Any:
        """Return a color map of matplotlib."""
        from matplotlib.colors import ListedColormap

        return ListedColormap(_color_table(self._name()) / 255, name=self._name())

    def _name(self, *, terminal: bool = False) -> str:
        if self.signed:
            return self.colors or SIGNED
        return self.colors or (DARK if terminal else LIGHT)


def round_up(weight: float) -> float:
    """Return the smallest of 1, 0.5, 0.2, 0.1, 0.05, … that is at least the weight, with a tolerance of 1 %."""
    limit = 1.0
    for power in range(1, 5):
        for candidate in (0.5, 0.2, 0.1):
            smaller = round(candidate * 10.0 ** (1 - power), 6)
            if weight > 1.01 * smaller or weight <= 0:
                return limit
            limit = smaller
    return limit


@cache
def _color_table(name: str) -> Rgb:
    """Return the colors of a map, at equal distances."""
    if name in _ANCHORS:
        anchors = np.array([list(bytes.fromhex(color)) for color in _ANCHORS[name].split()], np.float64)
        if name != SIGNED:
            return _interpolate(anchors, _LEVELS)
        # Both halves have the same number of colors, so that 0 is white.
        middle = len(anchors) // 2
        halves = (anchors[: middle + 1], anchors[middle:])
        return np.concatenate([_interpolate(half, _LEVELS // 2) for half in halves])

    from matplotlib import colormaps

    if name not in colormaps:
        known = [*_ANCHORS, *colormaps]
        raise ConfigError(
            f"'{name}' is not a color map.{did_you_mean(name, known)} Use light, dark, or a color map of matplotlib "
            "such as viridis, magma_r or Greys."
        )
    table: Rgb = np.rint(colormaps[name](np.linspace(0, 1, _LEVELS))[:, :3] * 255).astype(np.uint8)
    return table


def _interpolate(anchors_N3: NDArray[np.float64], levels: int) -> Rgb:
    """Interpolate between sRGB colors with equal steps in CIELAB, so that the map is perceptually uniform."""
    lab_N3 = to_lab(anchors_N3)
    # Interpolate densely, then choose points at equal distances along the curve.
    dense = np.linspace(0, len(lab_N3) - 1, 8 * levels)
    curve_D3 = np.stack([np.interp(dense, np.arange(len(lab_N3)), channel) for channel in lab_N3.T], -1)
    steps = np.linalg.norm(np.diff(curve_D3, axis=0), axis=-1)
    distance_D = np.concatenate([[0], steps.cumsum()])
    even = np.linspace(0, distance_D[-1], levels)
    return _to_srgb(np.stack([np.interp(even, distance_D, channel) for channel in curve_D3.T], -1))


_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
"""Linear sRGB to CIE XYZ, for the white point D65."""

_DELTA = 6 / 29


def to_lab(srgb: NDArray[Any]) -> NDArray[np.float64]:
    """Convert sRGB (0 to 255) to CIELAB."""
    share = np.asarray(srgb, np.float64) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    xyz = linear @ _XYZ.T / _XYZ.sum(1)
    f = np.where(xyz > _DELTA**3, np.cbrt(xyz), xyz / (3 * _DELTA**2) + 4 / 29)
    x, y, z = f[..., 0], f[..., 1], f[..., 2]
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


def _to_srgb(lab: NDArray[np.float64]) -> Rgb:
    y = (lab[..., 0] + 16) / 116
    f = np.stack([y + lab[..., 1] / 500, y, y - lab[..., 2] / 200], -1)
    xyz = np.where(f > _DELTA, f**3, 3 * _DELTA**2 * (f - 4 / 29)) * _XYZ.sum(1)
    linear = (xyz @ np.linalg.inv(_XYZ).T).clip(0, 1)
    share = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    rgb: Rgb = np.rint(share * 255).astype(np.uint8)
    return rgb
