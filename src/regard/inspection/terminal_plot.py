"""Curves in a terminal: lines in braille dots, two across and four down in a character, with axes and marks."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from rich.text import Text

from regard.inspection.curves import COLORS, Curve, Panel, runs_of

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a braille character, by row and column."""

_HEIGHT = 8


class _Canvas:
    """Characters of dots; a mark takes the place of a character, and the last to draw decides its color."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._bits = np.zeros((height, width), dtype=np.uint8)
        self._marks: dict[tuple[int, int], str] = {}
        self._styles: dict[tuple[int, int], str] = {}

    def line(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """Through points (across, up), each from 0 to 1."""
        wide, high = 2 * self.width - 1, 4 * self.height - 1
        dots = [(across * wide, (1 - up) * high) for across, up in points]
        for (x, y), (next_x, next_y) in pairwise([*dots, dots[-1]]):
            count = math.ceil(max(abs(next_x - x), abs(next_y - y))) + 1
            for column, row in zip(np.linspace(x, next_x, count), np.linspace(y, next_y, count), strict=True):
                place = (round(row) // 4, round(column) // 2)
                self._bits[place] |= _DOTS[round(row) % 4][round(column) % 2]
                self._styles[place] = style

    def mark(self, across: float, up: float, sign: str, style: str) -> None:
        row, column = round((1 - up) * (4 * self.height - 1)) // 4, round(across * (2 * self.width - 1)) // 2
        self._marks[row, column] = sign
        self._styles[row, column] = style

    def row(self, number: int) -> Text:
        line = Text()
        for column in range(self.width):
            place = (number, column)
            dots = chr(0x2800 + int(self._bits[place])) if self._bits[place] else " "
            line.append(self._marks.get(place, dots), self._styles.get(place))
        return line


def plot(panels: Sequence[Panel], width: int = 100) -> Text:
    """Every panel under the other. Training is a line, validation has its points marked, and the model that was kept
    is ◆; of several runs each is a letter, and the model that was kept its capital.
    """
    runs = runs_of(panels)
    last = max(step for panel in panels for curve in panel.curves for step in curve.steps)
    lines = [line for panel in panels for line in [Text(), *_panel(panel, runs, last, width)]]
    return Text("\n").join([*_legend(panels, runs), *lines])


def _legend(panels: Sequence[Panel], runs: Sequence[str]) -> list[Text]:
    """Each run with the model that was kept of it."""
    lines = []
    for place, run in enumerate(runs):
        curves = [(panel.name, curve) for panel in panels for curve in panel.curves if curve.run == run]
        kept = [f"{name} {_number(curve.kept)}" for name, curve in curves if curve.kept is not None]
        best = curves[0][1].best
        told = f"   kept: step {best:,}, {', '.join(kept)}" if kept else "   not validated yet"
        sign = f"{_sign(place)}  " if len(runs) > 1 else ""
        lines.append(Text.assemble((sign, _style(place)), run, told))
    return lines


def _sign(run: int) -> str:
    return chr(ord("a") + run % 26)


def _style(run: int) -> str:
    # Black is the last of the colors, and invisible on a dark terminal.
    return COLORS[run % (len(COLORS) - 1)]


def _panel(panel: Panel, runs: Sequence[str], last: int, width: int) -> list[Text]:
    low, high = _range(panel)
    ticks = [_number(_value(panel, low + (high - low) * share)) for share in (1.0, 0.5, 0.0)]
    margin = max(7, *map(len, ticks))
    canvas = _Canvas(max(10, width - margin - 2), _HEIGHT)
    # Training first, so that the points of validation stand on top.
    for curve in sorted(panel.curves, key=lambda curve: curve.validated):
        heights = [(_height(panel, value) - low) / (high - low) for value in curve.values]
        points = [(step / last, height) for step, height in zip(curve.steps, heights, strict=True)]
        _draw(canvas, curve, points, runs)
    labels = {0: ticks[0], _HEIGHT // 2: ticks[1], _HEIGHT - 1: ticks[2]}
    rows = [
        Text(f"{labels.get(number, ''):>{margin}} {'┤' if number in labels else '│'}") + canvas.row(number)
        for number in range(_HEIGHT)
    ]
    end = f"{last:,}"
    return [
        Text.assemble((panel.name.replace("_", " "), "bold"), _note(panel)),
        *rows,
        Text(" " * (margin + 1) + "└" + "─" * canvas.width),
        Text(" " * (margin + 2) + "0" + "step".center(canvas.width - 1 - len(end)) + end),
    ]


def _draw(canvas: _Canvas, curve: Curve, points: Sequence[tuple[float, float]], runs: Sequence[str]) -> None:
    run = runs.index(curve.run)
    style = _style(run) if curve.validated else f"dim {_style(run)}"
    sign = _sign(run) if len(runs) > 1 else "o"
    canvas.line(_means(points, 2 * canvas.width), style)
    if curve.validated and len(points) <= canvas.width // 3:
        for point in points:
            canvas.mark(*point, sign, style)
    elif len(runs) > 1:
        canvas.mark(*points[-1], sign, style)
    if curve.kept is not None:
        best = points[curve.steps.index(curve.best or 0)]
        canvas.mark(*best, "◆" if len(runs) == 1 else sign.upper(), f"bold {style}")


def _means(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """No more points than there are dots across: each then stands for its neighbors."""
    parts = np.array_split(np.array(points), min(most, len(points)))
    return [(float(part[:, 0].mean()), float(part[:, 1].mean())) for part in parts]


def _note(panel: Panel) -> str:
    """What must be known to read a panel: which curve is which, and its scale."""
    notes = []
    if {curve.validated for curve in panel.curves} == {True, False}:
        notes.append("training: line, validation: marks")
    if panel.logarithmic:
        notes.append("logarithmic")
    return f"   ({'; '.join(notes)})" if notes else ""


def _range(panel: Panel) -> tuple[float, float]:
    heights = [_height(panel, value) for curve in panel.curves for value in curve.values]
    low, high = min(heights), max(heights)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _height(panel: Panel, value: float) -> float:
    return math.log(value) if panel.logarithmic else value


def _value(panel: Panel, height: float) -> float:
    return math.exp(height) if panel.logarithmic else height


def _number(value: float) -> str:
    return f"{value:.3g}"
