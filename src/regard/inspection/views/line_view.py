"""Lines of attention weights: source tokens on the left, target tokens on the right, and a line for each weight."""

import html as markup
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from regard.decoding.search import AttentionWeights
from regard.inspection.views import drawing
from regard.inspection.views.appearance import HEAD_COLORS, LINE_COLOR, Appearance
from regard.inspection.views.heatmap import AttentionView, to_html_title
from regard.inspection.views.labels import Labels, isolate

_MIN_OPACITY = 0.02
"""Lines with less opacity are invisible, and are not drawn."""

_MIN_SHARE = 0.1
"""Source tokens with at least this share of the largest weight are listed in a terminal."""

_SPREAD = 0.5
"""The share of the height of a token over which the lines of several heads are spread."""

_ROW, _GAP, _CHARACTER = 20, 170, 8.5
"""The height of a row, the width between both columns of tokens, and the width of a character, in pixels of a page."""


class _Line(NamedTuple):
    column: int
    row: int
    weight: float
    opacity: float
    color: str
    offset: float
    """The distance from the middle of the token, in rows: the lines of several heads do not hide each other."""


@final
@dataclass(frozen=True, eq=False)
class LineView(AttentionView):
    """Lines from source tokens to target tokens; the opacity of a line is its weight. Each head has a color."""

    maps: Sequence[AttentionWeights]
    labels: Labels
    title: str = ""
    names: Sequence[str] = ()
    """The name of each map, for the legend."""
    appearance: Appearance = field(default_factory=Appearance)

    @property
    def characters(self) -> str:
        return self.title + self.labels.characters

    def to_text(self, width: int = 100) -> str:
        return "\n".join(line.plain.rstrip() for line in self._list_tokens(width))

    def to_color(self, width: int = 100) -> Text:
        return Text("\n").join(self._list_tokens(width))

    def build_figure(self) -> Any:
        labels = self.labels.drawn
        lines = [
            drawing.Line(line.column + line.offset, line.row + line.offset, line.opacity, line.color)
            for line in self._lines()
        ]
        legend = list(zip(self.names, self._colors, strict=True)) if len(self.maps) > 1 else []
        return drawing.build_lines(lines, labels, self.title, legend)

    def to_html(self) -> str:
        """Draw as inline SVG. The title of each line, which browsers show under the pointer, is its weight."""
        labels = self.labels.visible
        columns, rows = labels.columns, labels.rows
        left, right = (_CHARACTER * max([6, *map(cell_len, tokens)]) + 8 for tokens in (columns, rows))
        height = _ROW * max(1, len(columns), len(rows))
        lines = "".join(
            f'<line x1="{left}" y1="{_place(line.column + line.offset, len(columns), height):.1f}" x2="{left + _GAP}" '
            f'y2="{_place(line.row + line.offset, len(rows), height):.1f}" stroke="{line.color}" '
            f'stroke-opacity="{line.opacity:.3f}">'
            f"<title>{markup.escape(f'{rows[line.row]} ← {columns[line.column]}: {line.weight:.3f}')}</title></line>"
            for line in self._lines()
        )
        texts = "".join(
            f'<text x="{x}" y="{_place(index, len(tokens), height) + 4:.1f}" text-anchor="{anchor}">'
            f"{markup.escape(isolate(token))}</text>"
            for tokens, x, anchor in ((columns, left - 6, "end"), (rows, left + _GAP + 6, "start"))
            for index, token in enumerate(tokens)
        )
        width = left + _GAP + right
        content = (
            f'<g stroke-width="2">{lines}</g><g font-family="sans-serif" font-size="13" fill="currentColor">{texts}</g>'
        )
        legend = "".join(
            f'<span style="margin-right:12px"><span style="color:{color}">━</span> {markup.escape(name)}</span>'
            for name, color in zip(self.names, self._colors, strict=False)
            if len(self.maps) > 1
        )
        return (
            f"{to_html_title(self.title)}"
            f'<svg viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" '
            f'style="display:block">{content}</svg><div style="font:13px sans-serif">{legend}</div>'
        )

    @property
    def _colors(self) -> list[str]:
        if len(self.maps) == 1:
            return [LINE_COLOR]
        return [HEAD_COLORS[index % len(HEAD_COLORS)] for index in range(len(self.maps))]

    def _lines(self) -> list[_Line]:
        """Return the visible lines, the weakest first, so that the strongest are on top."""
        limit, count = self.appearance.find_limit(self.maps), len(self.maps)
        lines = [
            _Line(column, row, weight, min(1.0, weight / limit), color, _SPREAD * (index - (count - 1) / 2) / count)
            for index, (weights_TS, color) in enumerate(zip(self.maps, self._colors, strict=True))
            for row, weights_S in enumerate(weights_TS.tolist())
            for column, weight in enumerate(weights_S)
            if weight / limit >= _MIN_OPACITY
        ]
        return sorted(lines, key=lambda line: line.opacity)

    def _list_tokens(self, width: int) -> Iterator[Text]:
        """Yield a line for each target token and map, with the source tokens of the largest weights."""
        labels = self.labels.visible
        columns, rows = ([isolate(token) for token in tokens] for tokens in (labels.columns, labels.rows))
        margin = max([2, *map(cell_len, rows)])
        names = [f" {name}" for name in self.names] if len(self.maps) > 1 else [""]
        for index, row in enumerate(rows):
            for name, weights_TS in zip(names, self.maps, strict=True):
                weights_S = weights_TS[index]
                line = Text(" " * (margin - cell_len(row)) + row + f"{name} ←")
                for column in (-weights_S).argsort(kind="stable").tolist():
                    entry = Text(f"  {columns[column]} ").append(f"{weights_S[column]:.2f}", Style(dim=True))
                    too_wide = cell_len(line.plain) + cell_len(entry.plain) > width
                    if too_wide or weights_S[column] < _MIN_SHARE * max(1e-9, weights_S.max(initial=0)):
                        break
                    line.append_text(entry)
                yield line


def _place(index: float, count: int, height: float) -> float:
    """Return the vertical position of a token, in the middle of an equal part of the height."""
    return height * (index + 0.5) / count
