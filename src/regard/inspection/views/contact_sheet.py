"""Contact sheets: the attention weights of each word, drawn over the image that a model describes.

T words, Y and X rows and columns of the grid of memory slots, H height and W width of the image.
"""

import hashlib
import html as markup
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from rich.style import Style as TextStyle
from rich.text import Text

from regard.decoding.search import AttentionWeights
from regard.inspection.views import drawing
from regard.inspection.views.heatmap import AttentionView, to_html_title
from regard.inspection.views.labels import isolate, label
from regard.inspection.views.pictures import (
    PixelArray,
    Style,
    arrange,
    compose,
    draw_half_blocks,
    resize,
    shade,
    to_data_uri,
    upsample,
)

_SHADES = "·░▒▓█"

_LONGEST_SIDE = 288
"""The longest side of a panel in figures and pages, in pixels."""

_TERMINAL_COLUMNS = 20
"""The approximate width of a panel in a terminal, in characters."""

_LAYER_SCALE = 6
"""Pixels per cell of the smooth layer in a page; the browser interpolates between them."""

_HARD = 0.999
"""A cell with at least this weight has been chosen by hard attention."""


class _Cell(NamedTuple):
    row: int
    column: int


@final
@dataclass(frozen=True, eq=False)
class ContactSheet(AttentionView):
    """One panel for the image, and one for each word: its attention weights over the image."""

    pixels_HW3: PixelArray
    """The image as the encoder reads it."""
    name: str
    caption: str
    words: Sequence[str]
    weights_TYX: AttentionWeights
    title: str = ""
    style: Style = "smooth"

    @property
    def characters(self) -> str:
        return "".join([self.name, self.caption, self.title, *map(label, self.words)])

    def build_figure(self) -> Any:
        picture_HW3 = self._scale_picture(_LONGEST_SIDE)
        panels = [drawing.Panel(picture_HW3, os.path.basename(self.name))]
        rows, columns = self._grid
        for word, weights_YX in self._panels():
            cell = _find_chosen(weights_YX)
            panels.append(
                drawing.Panel(
                    compose(picture_HW3, weights_YX, self.style),
                    word,
                    _format_weight(weights_YX),
                    self._grid if self.style == "grid" else None,
                    cell and (cell.column / columns, cell.row / rows, 1 / columns, 1 / rows),
                )
            )
        return drawing.build_contact_sheet(panels, self.caption, self.title)

    def to_text(self, width: int = 100) -> str:
        """Draw a grid of shades for each word, relative to its largest weight."""
        blocks = []
        for word, weights_YX in self._panels():
            levels_YX = upsample(weights_YX, *self._grid, "grid")
            shades = [[_SHADES[round(level * (len(_SHADES) - 1))] * 2 for level in row] for row in levels_YX.tolist()]
            title = Text(f"{isolate(word)} {_format_weight(weights_YX)}")
            blocks.append([title, *(Text("".join(line)) for line in shades)])
        return "\n".join(line.plain.rstrip() for line in arrange(blocks, width))

    def to_color(self, width: int = 100) -> Text:
        """Draw the image and each panel in half blocks, two pixels above each other in a character."""
        rows, columns = self._grid
        scale = max(1, round(_TERMINAL_COLUMNS / columns))
        height = scale * rows + scale * rows % 2
        picture_HW3 = resize(self.pixels_HW3, height, scale * columns)
        blocks = [[Text(isolate(os.path.basename(self.name))), *draw_half_blocks(picture_HW3)]]
        for word, weights_YX in self._panels():
            title = Text(isolate(word)).append(f" {_format_weight(weights_YX)}", TextStyle(dim=True))
            blocks.append([title, *draw_half_blocks(compose(picture_HW3, weights_YX, self.style))])
        return Text("\n").join(arrange(blocks, width))

    def to_html(self) -> str:
        """Draw the panels as inline SVG. The image is stored once, and each panel has a layer of its own."""
        picture_HW3 = self._scale_picture(_LONGEST_SIDE)
        height, width = picture_HW3.shape[:2]
        uri = to_data_uri(picture_HW3)
        reference = f"picture-{hashlib.sha256(uri.encode()).hexdigest()[:12]}"
        size = f'width="{width}" height="{height}"'
        source = f'<image id="{reference}" {size} preserveAspectRatio="none" href="{uri}"/>'
        name = markup.escape(os.path.basename(self.name))
        figures = [_html_panel(width, height, source, f"<bdi>{name}</bdi>")]
        for word, weights_YX in self._panels():
            layer = f'<use href="#{reference}"/>{self._html_layer(weights_YX, width, height)}'
            title = f'<bdi>{markup.escape(word)}</bdi> <span style="color:#888">{_format_weight(weights_YX)}</span>'
            figures.append(_html_panel(width, height, layer, title))
        heading = f'<div style="margin-bottom:6px"><bdi>{markup.escape(self.caption)}</bdi></div>'
        return f'<div style="font-family:sans-serif">{heading}{to_html_title(self.title)}{"".join(figures)}</div>'

    def _html_layer(self, weights_YX: AttentionWeights, width: int, height: int) -> str:
        rows, columns = self._grid
        smooth = self.style == "smooth"
        scale = _LAYER_SCALE if smooth else 1
        uri = to_data_uri(shade(upsample(weights_YX, scale * rows, scale * columns, self.style)))
        rendering = "" if smooth else ' style="image-rendering:pixelated"'
        layer = f'<image width="{width}" height="{height}" preserveAspectRatio="none"{rendering} href="{uri}"/>'
        cell_width, cell_height = width / columns, height / rows
        if not smooth:
            lines = "".join(f"M0 {row * cell_height:.1f}H{width}" for row in range(1, rows))
            lines += "".join(f"M{column * cell_width:.1f} 0V{height}" for column in range(1, columns))
            layer += f'<path d="{lines}" stroke="#fff" stroke-opacity="0.6" stroke-width="0.5"/>'
        if cell := _find_chosen(weights_YX):
            layer += (
                f'<rect x="{cell.column * cell_width:.1f}" y="{cell.row * cell_height:.1f}" '
                f'width="{cell_width:.1f}" height="{cell_height:.1f}" fill="none" stroke="#ffd640" stroke-width="3"/>'
            )
        return layer

    @property
    def _grid(self) -> tuple[int, int]:
        rows, columns = self.weights_TYX.shape[1:]
        return rows, columns

    def _panels(self) -> Iterator[tuple[str, AttentionWeights]]:
        return zip(map(label, self.words), self.weights_TYX, strict=True)

    def _scale_picture(self, longest: int) -> PixelArray:
        height, width = self.pixels_HW3.shape[:2]
        scale = longest / max(height, width)
        return resize(self.pixels_HW3, max(1, round(scale * height)), max(1, round(scale * width)))


def _find_chosen(weights_YX: AttentionWeights) -> _Cell | None:
    """Return the cell that hard attention chose; None if several cells have weight."""
    row, column = np.unravel_index(int(weights_YX.argmax()), weights_YX.shape)
    return _Cell(int(row), int(column)) if weights_YX[row, column] >= _HARD else None


def _format_weight(weights_YX: AttentionWeights) -> str:
    """Format the largest weight."""
    return f"{weights_YX.max():.2f}"


def _html_panel(width: int, height: int, content: str, title: str) -> str:
    shown = min(width, round(170 * (width / height) ** 0.5))
    return (
        '<figure style="display:inline-block;margin:0 10px 10px 0;vertical-align:top">'
        f'<figcaption style="max-width:{shown}px;overflow-wrap:anywhere">{title}</figcaption>'
        f'<svg viewBox="0 0 {width} {height}" width="{shown}" style="display:block">{content}</svg></figure>'
    )
