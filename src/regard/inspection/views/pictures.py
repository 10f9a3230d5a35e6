"""Images: attention weights over an image, and images in the characters of a terminal, side by side.

H height and W width of the image in pixels, Y and X rows and columns of the grid of weights.
"""

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.color import Color
from rich.style import Style as TextStyle
from rich.text import Text

PixelArray = NDArray[np.uint8]
Levels = NDArray[np.float64]
"""Weights relative to the largest one, from 0 to 1."""

Style = Literal["smooth", "grid"]

_SIGMA = 20 / 224
"""Standard deviation of the smoothing as a share of the shorter side of the image: Xu et al. (2015) smooth by 20 of
224 pixels, about the receptive field of a cell.
"""

_SHADOW, _LIGHT = np.array([12, 12, 32]), np.array([255, 200, 40])
_SHADOW_OPACITY, _LIGHT_OPACITY = 0.74, 0.22
"""Colors and opacities at weights 0 and 1. The light shows attention to a dark part of an image."""


def upsample(weights_YX: NDArray[np.float32], height: int, width: int, style: Style = "smooth") -> Levels:
    """Upsample weights to a size in pixels, and divide them by their maximum.

    `grid` repeats the weight of each cell. `smooth` interpolates between the centers of the cells, and applies a
    Gaussian filter as in Xu et al. (2015).
    """
    if style == "grid":
        rows, columns = _resize_matrix(weights_YX.shape[0], height), _resize_matrix(weights_YX.shape[1], width)
    else:
        sigma = _SIGMA * min(height, width)
        rows, columns = (
            _smooth_matrix(cells, pixels, sigma)
            for cells, pixels in zip(weights_YX.shape, (height, width), strict=True)
        )
    levels_HW: Levels = rows @ weights_YX.astype(np.float64) @ columns.T
    largest = levels_HW.max(initial=0)
    return levels_HW / largest if largest > 0 else levels_HW


def resize(pixels_HW3: PixelArray, height: int, width: int) -> PixelArray:
    """Resize an image by averaging the pixels that each new pixel covers."""
    rows, columns = _resize_matrix(pixels_HW3.shape[0], height), _resize_matrix(pixels_HW3.shape[1], width)
    resized = np.einsum("hy,yxc,wx->hwc", rows, pixels_HW3.astype(np.float64), columns, optimize=True)
    return _to_bytes(resized)


def shade(levels_HW: Levels) -> PixelArray:
    """Return the layer (H, W, 4) that is drawn over an image: a dark shadow where the level is low, and a faint light
    where it is high.
    """
    shadow_HW1 = _SHADOW_OPACITY * (1 - levels_HW)[..., None]
    light_HW1 = _LIGHT_OPACITY * levels_HW[..., None]
    # The light is drawn over the shadow.
    opacity_HW1 = shadow_HW1 + light_HW1 - shadow_HW1 * light_HW1
    color_HW3 = (light_HW1 * _LIGHT + (1 - light_HW1) * shadow_HW1 * _SHADOW) / opacity_HW1
    return _to_bytes(np.concatenate([color_HW3, 255 * opacity_HW1], -1))


def compose(pixels_HW3: PixelArray, weights_YX: NDArray[np.float32], style: Style = "smooth") -> PixelArray:
    """Draw weights over an image."""
    height, width = pixels_HW3.shape[:2]
    layer_HW4 = shade(upsample(weights_YX, height, width, style)).astype(np.float64)
    opacity_HW1 = layer_HW4[..., 3:] / 255
    return _to_bytes(pixels_HW3 * (1 - opacity_HW1) + layer_HW4[..., :3] * opacity_HW1)


def to_data_uri(pixels: PixelArray) -> str:
    """Encode an image (H, W, 3) or a layer (H, W, 4) as PNG, in a URI that contains the file."""
    from matplotlib.image import imsave

    file = io.BytesIO()
    imsave(file, np.ascontiguousarray(pixels), format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _to_bytes(values: NDArray[np.float64]) -> PixelArray:
    rounded: PixelArray = np.rint(values).astype(np.uint8)
    return rounded


def _resize_matrix(before: int, after: int) -> NDArray[np.float64]:
    """Return the matrix (after × before) that averages the pixels in each of `after` equal parts of a line."""
    edges = np.arange(after + 1) * before / after
    starts, ends = np.maximum.outer(edges[:-1], np.arange(before)), np.minimum.outer(edges[1:], np.arange(before) + 1)
    matrix: NDArray[np.float64] = (ends - starts).clip(0) * after / before
    return matrix


def _smooth_matrix(cells: int, pixels: int, sigma: float) -> NDArray[np.float64]:
    """Return the matrix (pixels × cells) of linear interpolation between cell centers and a Gaussian filter."""
    centers = ((np.arange(pixels) + 0.5) * cells / pixels - 0.5).clip(0, cells - 1)
    interpolation = (1 - abs(centers[:, None] - np.arange(cells))).clip(0)
    distances = np.subtract.outer(np.arange(pixels), np.arange(pixels))
    gaussian = np.exp(-(distances**2) / (2 * sigma**2))
    matrix: NDArray[np.float64] = (gaussian / gaussian.sum(1, keepdims=True)) @ interpolation
    return matrix


def draw_half_blocks(pixels_HW3: PixelArray) -> list[Text]:
    """Draw an image of even height: the upper half of a character is the foreground, the lower half the background."""
    lines = []
    for upper, lower in zip(pixels_HW3[::2].tolist(), pixels_HW3[1::2].tolist(), strict=True):
        line = Text()
        for above, below in zip(upper, lower, strict=True):
            line.append("▀", TextStyle(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below)))
        lines.append(line)
    return lines


def arrange(blocks: Sequence[Sequence[Text]], width: int) -> Iterator[Text]:
    """Put blocks of lines side by side, up to a width, with a blank line between the rows of blocks."""
    widest = max((cell_len(line.plain) for block in blocks for line in block), default=0)
    height = max(map(len, blocks), default=0)
    per_row = max(1, (width + 2) // (widest + 2))
    for start in range(0, len(blocks), per_row):
        if start:
            yield Text()
        row = blocks[start : start + per_row]
        for index in range(height):
            line = Text()
            for block in row:
                part = block[index] if index < len(block) else Text()
                line.append_text(part)
                line.append(" " * (widest + 2 - cell_len(part.plain)))
            yield line
