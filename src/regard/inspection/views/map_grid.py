"""Grids of attention maps: a small heat map for each layer and head, with one scale of colors."""

import html as markup
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np
from rich.text import Text

from regard.decoding.search import AttentionWeights
from regard.inspection.views import drawing
from regard.inspection.views.appearance import Appearance
from regard.inspection.views.heatmap import ColoredView, shade
from regard.inspection.views.labels import Labels
from regard.inspection.views.maps import AttentionMap
from regard.inspection.views.pictures import PixelArray, arrange, draw_half_blocks, to_data_uri

_COLUMNS = 8
"""The number of maps in a row, if there is only one layer or only one map per layer."""

_CELL, _LONGEST_SIDE = 12, 240
"""The size of a cell and the maximum size of a map in a page, in pixels."""

_TERMINAL_CELLS = 40
"""The maximum number of rows and columns of a map in a terminal."""


class _Place(NamedTuple):
    row: int
    column: int


@final
@dataclass(frozen=True, eq=False)
class MapGrid(ColoredView):
    """A map for each layer (rows) and head (columns)."""

    maps: Sequence[AttentionMap]
    labels: Labels
    title: str = ""
    appearance: Appearance = field(default_factory=Appearance)

    @property
    def limit(self) -> float:
        return self.appearance.find_limit([part.weights_TS for part in self.maps])

    def to_text(self, width: int = 100) -> str:
        limit = self.limit
        blocks = [
            [Text(part.name), *(Text("".join(shade(weight / limit) for weight in row)) for row in weights_TS.tolist())]
            for part, weights_TS in ((part, abs(_shrink(part.weights_TS))) for part in self.maps)
        ]
        return "\n".join(line.plain.rstrip() for line in arrange(blocks, width))

    def to_color(self, width: int = 100) -> Text:
        colors = partial(self.appearance.to_rgb, limit=self.limit, terminal=True)
        blocks = [
            [Text(part.name), *draw_half_blocks(_pad_to_even(colors(_shrink(part.weights_TS))))] for part in self.maps
        ]
        return Text("\n").join(arrange(blocks, width))

    def to_html(self) -> str:
        """Draw each map as a small image."""
        colors = partial(self.appearance.to_rgb, limit=self.limit)
        panels: dict[int, list[str]] = {}
        for place, part in self._places():
            rows, columns = part.weights_TS.shape
            scale = min(_CELL, _LONGEST_SIDE / max(1, rows, columns))
            uri = to_data_uri(colors(part.weights_TS)) if part.weights_TS.size else ""
            name = markup.escape(part.name)
            panels.setdefault(place.row, []).append(
                f'<td style="padding:4px;text-align:left">{name}<br><img src="{uri}" alt="{name}" '
                f'style="width:{scale * columns:.0f}px;height:{scale * rows:.0f}px;image-rendering:pixelated;'
                'border:1px solid #ccc"></td>'
            )
        body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in panels.values())
        return self.add_scale(f'<table style="font:12px sans-serif;border-collapse:collapse">{body}</table>')

    def build_figure(self) -> Any:
        panels = [
            drawing.GridPanel(part.weights_TS, *place, *self._titles(place, part)) for place, part in self._places()
        ]
        return drawing.build_grid(panels, self.labels.drawn, self.title, self.colors)

    @property
    def _is_table(self) -> bool:
        """Whether there are several layers and several heads, so that the rows are layers and the columns heads."""
        return len({part.layer for part in self.maps}) > 1 and len({part.head for part in self.maps}) > 1

    def _places(self) -> Iterator[tuple[_Place, AttentionMap]]:
        """Yield the place of each map: by layer and head, or one after the other."""
        layers = list(dict.fromkeys(part.layer for part in self.maps))
        for index, part in enumerate(self.maps):
            if self._is_table:
                yield _Place(layers.index(part.layer), (part.head or 1) - 1), part
            else:
                yield _Place(*divmod(index, _COLUMNS)), part

    def _titles(self, place: _Place, part: AttentionMap) -> tuple[str, str]:
        """Return the title above a map and the title on its left."""
        if not self._is_table:
            several_heads = len({part.head for part in self.maps}) > 1
            return f"head {part.head}" if several_heads else f"layer {part.layer}", ""
        return f"head {part.head}" if place.row == 0 else "", f"layer {part.layer}" if place.column == 0 else ""


def _shrink(weights_TS: AttentionWeights) -> AttentionWeights:
    """Combine neighboring cells of a map that is too large for a terminal: keep the largest weight of each group."""
    for axis, count in enumerate(weights_TS.shape):
        if count > _TERMINAL_CELLS:
            starts = np.arange(_TERMINAL_CELLS) * count // _TERMINAL_CELLS
            weights_TS = np.maximum.reduceat(weights_TS, starts, axis)
    return weights_TS


def _pad_to_even(pixels_TS3: PixelArray) -> PixelArray:
    """Repeat the last row if the number of rows is odd: a character of a terminal shows two rows."""
    return np.concatenate([pixels_TS3, pixels_TS3[-1:]]) if len(pixels_TS3) % 2 else pixels_TS3
