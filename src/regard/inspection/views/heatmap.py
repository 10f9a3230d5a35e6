"""Heat maps of attention weights (T target tokens × S source tokens) as text, in color, and as HTML."""

import html as markup
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from rich.cells import cell_len
from rich.color import Color
from rich.style import Style
from rich.text import Text

from regard.decoding.search import AttentionWeights
from regard.inspection.views import drawing
from regard.inspection.views.appearance import Appearance
from regard.inspection.views.labels import Labels, isolate

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The Content-Security-Policy of pages with views: a browser that follows it makes no request for the page."""


class AttentionView(ABC):
    """How attention weights are shown: as a heat map, a grid of heat maps, lines, or over an image."""

    title: str
    """Which weights are shown."""

    @property
    def scale(self) -> str:
        """Describe the scale of the colors, if it does not end at 1."""
        return ""

    @property
    @abstractmethod
    def characters(self) -> str:
        """All characters that are shown, for the choice of fonts."""

    @abstractmethod
    def to_text(self, width: int = 100) -> str:
        """Draw in block characters, for files and pipes."""

    @abstractmethod
    def to_color(self, width: int = 100) -> Text:
        """Draw in colors, for a terminal."""

    @abstractmethod
    def to_html(self) -> str:
        """Draw as HTML that works offline. All text is escaped."""

    @abstractmethod
    def build_figure(self) -> Any:
        """Draw as a matplotlib figure. Labels are outside the figure: save it with `bbox_inches="tight"`."""

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return self.to_html()


class ColoredView(AttentionView):
    """A view of maps in colors that share a scale, with a label for each row and column."""

    labels: Labels
    appearance: Appearance

    @property
    @abstractmethod
    def limit(self) -> float:
        """The weight of the strongest color."""

    @property
    def characters(self) -> str:
        return self.title + self.labels.characters

    @property
    def scale(self) -> str:
        start = self.appearance.find_start(self.limit)
        return "" if (start, self.limit) == (0, 1) else f"colors from {start:g} to {self.limit:g}"

    @property
    def colors(self) -> drawing.Colors:
        """The colors of a figure."""
        appearance, limit = self.appearance, self.limit
        return drawing.Colors(appearance.build_color_map(), limit, appearance.find_start(limit), appearance.quantity)

    def add_scale(self, table: str) -> str:
        """Return a table as HTML, with the title above and the scale of the colors below."""
        limit, start = self.limit, self.appearance.find_start(self.limit)
        colors_N3 = self.appearance.to_rgb(np.linspace(start, limit, 9), limit)
        colors = ",".join(f"#{bytes(color).hex()}" for color in colors_N3.tolist())
        bar = f'<span style="{_SCALE};background:linear-gradient(to right,{colors})"></span>'
        name = self.appearance.quantity.split()[-1]
        scale = f'<div style="font:11px sans-serif;margin:6px 0">{name} {start:g}{bar}{limit:g}</div>'
        return f"{to_html_title(self.title)}{table}{scale}"


@final
@dataclass(frozen=True, eq=False)
class HeatMap(ColoredView):
    """Attention weights with a column for each source token and a row for each target token."""

    weights_TS: AttentionWeights
    labels: Labels
    title: str = ""
    appearance: Appearance = field(default_factory=Appearance)

    @property
    def limit(self) -> float:
        return self.appearance.find_limit([self.weights_TS])

    def to_text(self, width: int = 100) -> str:
        return "\n".join(line.plain.rstrip() for line in self._draw_lines(width, color=False))

    def to_color(self, width: int = 100) -> Text:
        return Text("\n").join(self._draw_lines(width, color=True))

    def to_html(self) -> str:
        """Draw a table. The title of each cell, which browsers show under the pointer, is its weight."""
        labels = self.labels.visible
        columns, rows = ([markup.escape(token) for token in tokens] for tokens in (labels.columns, labels.rows))
        upright = max(map(cell_len, labels.columns), default=0) <= 3
        header = "".join(f"<th{'' if upright else _VERTICAL}><bdi>{column}</bdi></th>" for column in columns)
        body = []
        colors_TS3 = self.appearance.to_rgb(self.weights_TS, self.limit)
        for row, weights_S, colors_S3 in zip(rows, self.weights_TS.tolist(), colors_TS3.tolist(), strict=True):
            cells = "".join(
                f'<td title="{row} ← {column}: {weight:.3f}" style="background:#{bytes(color).hex()}"></td>'
                for column, weight, color in zip(columns, weights_S, colors_S3, strict=True)
            )
            body.append(f'<tr><th style="text-align:right"><bdi>{row}</bdi></th>{cells}</tr>')
        return self.add_scale(f'<table class="regard">{_CSS}<tr><th></th>{header}</tr>{"".join(body)}</table>')

    def build_figure(self) -> Any:
        return drawing.build_heat_map(self.weights_TS, self.labels.drawn, self.title, self.colors)

    def _draw_lines(self, width: int, *, color: bool) -> Iterator[Text]:
        """Draw a header of source tokens and a line for each target token. Split a source that is too wide."""
        labels = self.labels.visible
        columns, rows = ([isolate(token) for token in tokens] for tokens in (labels.columns, labels.rows))
        margin = max([2, *map(cell_len, rows)])
        cell = max([2, *(cell_len(column) + 1 for column in columns)])
        per_part = max(1, (width - margin - 2) // cell)
        for start in range(0, max(1, len(columns)), per_part):
            if start:
                yield Text()
            part = slice(start, start + per_part)
            header = "".join(_pad(column, cell) for column in columns[part])
            yield Text(" " * (margin + 2) + header)
            for row, cells in zip(rows, self._draw_cells(part, cell, color=color), strict=True):
                yield Text(" " * (margin - cell_len(row)) + row + "  ").append_text(cells)

    def _draw_cells(self, columns: slice, width: int, *, color: bool) -> Iterator[Text]:
        """Draw the cells of each row, for some of the columns."""
        limit, weights_TC = self.limit, self.weights_TS[:, columns]
        if not color:
            yield from (
                Text("".join(_shade_cell(weight / limit, width) for weight in row)) for row in weights_TC.tolist()
            )
            return
        for colors in self.appearance.to_rgb(weights_TC, limit, terminal=True).tolist():
            line = Text()
            for rgb in colors:
                line.append(" " * width, Style(bgcolor=Color.from_rgb(*rgb)))
            yield line


_SHADES = " ░▒▓█"
_VERTICAL = ' class="vertical"'
_CSS = (
    "<style>table.regard{border-collapse:collapse;font:13px sans-serif;color:inherit}"
    "table.regard th{padding:1px 5px;font-weight:normal;text-align:center;white-space:nowrap}"
    "table.regard td{min-width:19px;height:19px;padding:0;border:1px solid #ddd}"
    "table.regard th.vertical{vertical-align:bottom}"
    "table.regard th.vertical bdi{writing-mode:vertical-rl;text-orientation:sideways;transform:rotate(180deg)}"
    "</style>"
)

_SCALE = "display:inline-block;width:120px;height:9px;margin:0 6px;border:1px solid #ddd"


def _shade_cell(level: float, width: int) -> str:
    """Return the block characters of a cell, after a minus sign if the level is negative."""
    cell = shade(abs(level)) * width
    return f"−{cell[1:]}" if level < 0 and cell.strip() else cell


def shade(level: float) -> str:
    """Return the block character for a level from 0 to 1."""
    return _SHADES[round(max(0.0, min(1.0, level)) * (len(_SHADES) - 1))]


def to_html_title(title: str) -> str:
    """Return a title as HTML; nothing if it is empty."""
    return f'<div style="font:13px sans-serif;margin:4px 0">{markup.escape(title)}</div>' if title else ""


def _pad(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
