"""Heat maps of attention weights (T target tokens × S source tokens) as text, in color, and as HTML."""

import html as markup
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.color import Color
from rich.style import Style
from rich.text import Text

from regard.inspection import drawing

Weights = NDArray[np.float32]


class AttentionView(ABC):
    """How attention weights are shown: as a heat map, or over a picture."""

    note: str
    """What the weights are, if the model has several attentions or heads."""

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


@final
@dataclass(frozen=True, eq=False)
class HeatMap(AttentionView):
    """Attention weights with a column for each source token and a row for each target token."""

    weights_TS: Weights
    columns: Sequence[str]
    rows: Sequence[str]
    note: str = ""

    @property
    def characters(self) -> str:
        return "".join(map(label, [*self.columns, *self.rows]))

    def to_text(self, width: int = 100) -> str:
        return to_text(self.weights_TS, self.columns, self.rows, width)

    def to_color(self, width: int = 100) -> Text:
        return to_color(self.weights_TS, self.columns, self.rows, width)

    def to_html(self) -> str:
        return to_html(self.weights_TS, self.columns, self.rows)

    def build_figure(self) -> Any:
        columns, rows = list(map(label, self.columns)), list(map(label, self.rows))
        return drawing.build_heat_map(self.weights_TS, columns, rows, self.note)


_SHADES = " ░▒▓█"
_DARK, _BRIGHT = np.array([24, 24, 60]), np.array([255, 214, 64])


def label(token: str) -> str:
    """Return a visible label of a token: ␣ for white space, and a dotted circle before a combining character."""
    if token.isspace():
        return "␣"
    if token and unicodedata.category(token[0]) in {"Mn", "Me", "Mc"}:
        return "◌" + token
    if token and unicodedata.category(token[0]) in {"Cf", "Cc"}:
        return f"U+{ord(token[0]):04X}"
    return token


_REORDERED = {"R", "AL", "AN", "RLE", "RLO", "RLI", "LRE", "LRO", "LRI", "FSI"}
"""Bidirectional classes of characters that reorder the text around them."""


def isolate(text: str) -> str:
    """Isolate a text with right-to-left parts (U+2068, U+2069), so that the rest of the line stays in order."""
    if any(unicodedata.bidirectional(character) in _REORDERED for character in text):
        return f"\u2068{text}\u2069"
    return text


def to_text(weights_TS: Weights, source: Sequence[str], target: Sequence[str], width: int = 100) -> str:
    """Draw the heat map in block characters, for files and pipes."""
    return "\n".join(line.plain.rstrip() for line in _draw_lines(weights_TS, source, target, width, color=False))


def to_color(weights_TS: Weights, source: Sequence[str], target: Sequence[str], width: int = 100) -> Text:
    """Draw the heat map in colors, for a terminal."""
    return Text("\n").join(_draw_lines(weights_TS, source, target, width, color=True))


def _draw_lines(
    weights_TS: Weights, source: Sequence[str], target: Sequence[str], width: int, *, color: bool
) -> Iterator[Text]:
    """Draw a header of source tokens and a line for each target token. Split a source that is too wide into parts."""
    columns, rows = ([isolate(label(token)) for token in tokens] for tokens in (source, target))
    margin = max([2, *map(cell_len, rows)])
    cell = max([2, *(cell_len(column) + 1 for column in columns)])
    per_part = max(1, (width - margin - 2) // cell)
    for start in range(0, max(1, len(columns)), per_part):
        if start:
            yield Text()
        part = slice(start, start + per_part)
        header = "".join(_pad(column, cell) for column in columns[part])
        yield Text(" " * (margin + 2) + header)
        for row, weights_S in zip(rows, weights_TS, strict=True):
            line = Text(" " * (margin - cell_len(row)) + row + "  ")
            for weight in weights_S[part]:
                line.append_text(_cell(float(weight), cell, color=color))
            yield line


def _pad(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _cell(weight: float, width: int, *, color: bool) -> Text:
    if color:
        return Text(" " * width, Style(bgcolor=Color.from_rgb(*_blend(weight))))
    return Text(_SHADES[round(max(0.0, min(1.0, weight)) * (len(_SHADES) - 1))] * width)


def _blend(weight: float) -> list[int]:
    share = max(0.0, min(1.0, weight)) ** 0.7
    return [round(value) for value in _DARK + (_BRIGHT - _DARK) * share]


def to_html(weights_TS: Weights, source: Sequence[str], target: Sequence[str]) -> str:
    """Draw the heat map as a self-contained HTML table. Tokens are escaped."""

    def header_cell(token: str) -> str:
        return f'<th style="padding:2px 5px;font-weight:normal"><bdi>{markup.escape(label(token))}</bdi></th>'

    header = "".join(map(header_cell, source))
    body = []
    for token, weights_S in zip(target, weights_TS, strict=True):
        cells = "".join(
            f'<td title="{markup.escape(label(token))} ← {markup.escape(label(other))}: {weight:.3f}" '
            f'style="background:rgb{tuple(_blend(float(weight)))};min-width:1.2em"></td>'
            for other, weight in zip(source, weights_S, strict=True)
        )
        body.append(f"<tr>{header_cell(token)}{cells}</tr>")
    return (
        '<table style="border-collapse:collapse;font-family:sans-serif">'
        f"<tr><th></th>{header}</tr>{''.join(body)}</table>"
    )
