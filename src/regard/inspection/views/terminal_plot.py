"""Learning curves in a terminal: lines of braille dots (2 × 4 in a character), with axes and markers."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from rich.text import Text

from regard.inspection.views.appearance import CATEGORY_COLORS
from regard.inspection.views.curves import ROLE_MARKERS, Curve, Panel, run_names

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot in a braille character, by row and column."""

_HEIGHT = 8


class _Canvas:
    """A grid of braille characters. A marker replaces a character; the last line or marker determines its color."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._bits = np.zeros((height, width), dtype=np.uint8)
        self._markers: dict[tuple[int, int], str] = {}
        self._styles: dict[tuple[int, int], str] = {}

    def draw_line(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """Draw a line through points (x, y), with coordinates from 0 to 1."""
        max_column, max_row = 2 * self.width - 1, 4 * self.height - 1
        dots = [(x * max_column, (1 - y) * max_row) for x, y in points]
        for (x, y), (next_x, next_y) in pairwise([*dots, dots[-1]]):
            count = math.ceil(max(abs(next_x - x), abs(next_y - y))) + 1
            for column, row in zip(np.linspace(x, next_x, count), np.linspace(y, next_y, count), strict=True):
                cell = (round(row) // 4, round(column) // 2)
                self._bits[cell] |= _DOTS[round(row) % 4][round(column) % 2]
                self._styles[cell] = style

    def draw_marker(self, x: float, y: float, marker: str, style: str) -> None:
        row, column = round((1 - y) * (4 * self.height - 1)) // 4, round(x * (2 * self.width - 1)) // 2
        self._markers[row, column] = marker
        self._styles[row, column] = style

    def row(self, index: int) -> Text:
        line = Text()
        for column in range(self.width):
            cell = (index, column)
            dots = chr(0x2800 + int(self._bits[cell])) if self._bits[cell] else " "
            line.append(self._markers.get(cell, dots), self._styles.get(cell))
        return line


def plot(panels: Sequence[Panel], width: int = 100) -> Text:
    """Draw the panels below each other.

    Training is a line; validation has markers, and ◆ is the best checkpoint. If there are several runs, the markers of
    each are a letter, and its capital is the best checkpoint.
    """
    runs = run_names(panels)
    last_step = max(step for panel in panels for curve in panel.curves for step in curve.steps)
    lines = [line for panel in panels for line in [Text(), *_draw_panel(panel, runs, last_step, width)]]
    return Text("\n").join([*_legend(panels, runs), *lines])


def _legend(panels: Sequence[Panel], runs: Sequence[str]) -> list[Text]:
    """List the runs with the validation values of their best checkpoints."""
    lines = []
    for index, run in enumerate(runs):
        curves = [(panel.name, curve) for panel in panels for curve in panel.curves if curve.run == run]
        values = [f"{name} {_format(curve.best_value)}" for name, curve in curves if curve.best_value is not None]
        best_step = curves[0][1].best_step
        summary = f"   best: step {best_step:,}, {', '.join(values)}" if values else "   not validated yet"
        marker = f"{_marker(index)}  " if len(runs) > 1 else ""
        lines.append(Text.assemble((marker, _style(index)), run, summary))
    return lines


def _marker(run: int) -> str:
    return chr(ord("a") + run % 26)


def _style(run: int) -> str:
    # The last color is black, which is invisible on a dark terminal.
    return CATEGORY_COLORS[run % (len(CATEGORY_COLORS) - 1)]


def _draw_panel(panel: Panel, runs: Sequence[str], last_step: int, width: int) -> list[Text]:
    low, high = _range(panel)
    ticks = [_format(_from_axis(panel, low + (high - low) * share)) for share in (1.0, 0.5, 0.0)]
    margin = max(7, *map(len, ticks))
    canvas = _Canvas(max(10, width - margin - 2), _HEIGHT)
    # Training first, so that the markers of validation are on top.
    for curve in sorted(panel.curves, key=lambda curve: curve.validated):
        heights = [(_to_axis(panel, value) - low) / (high - low) for value in curve.values]
        points = [(step / last_step, height) for step, height in zip(curve.steps, heights, strict=True)]
        _draw_curve(canvas, curve, points, runs)
    labels = {0: ticks[0], _HEIGHT // 2: ticks[1], _HEIGHT - 1: ticks[2]}
    rows = [
        Text(f"{labels.get(index, ''):>{margin}} {'┤' if index in labels else '│'}") + canvas.row(index)
        for index in range(_HEIGHT)
    ]
    end = f"{last_step:,}"
    return [
        Text.assemble((panel.name.replace("_", " "), "bold"), _describe(panel)),
        *rows,
        Text(" " * (margin + 1) + "└" + "─" * canvas.width),
        Text(" " * (margin + 2) + "0" + "step".center(canvas.width - 1 - len(end)) + end),
    ]


def _draw_curve(canvas: _Canvas, curve: Curve, points: Sequence[tuple[float, float]], runs: Sequence[str]) -> None:
    color = _style(curve.color_index(runs))
    style = color if curve.validated else f"dim {color}"
    marker = _marker(runs.index(curve.run)) if len(runs) > 1 else ROLE_MARKERS.get(curve.role or "", "o")
    canvas.draw_line(_average(points, 2 * canvas.width), style)
    if curve.validated and len(points) <= canvas.width // 3:
        for point in points:
            canvas.draw_marker(*point, marker, style)
    elif len(runs) > 1 or curve.role is not None:
        canvas.draw_marker(*points[-1], marker, style)
    if curve.best_value is not None:
        best = points[curve.steps.index(curve.best_step or 0)]
        canvas.draw_marker(*best, "◆" if len(runs) == 1 else marker.upper(), f"bold {style}")


def _average(points: Sequence[tuple[float, float]], max_points: int) -> list[tuple[float, float]]:
    """Average neighboring points, so that there are at most `max_points`."""
    parts = np.array_split(np.array(points), min(max_points, len(points)))
    return [(float(part[:, 0].mean()), float(part[:, 1].mean())) for part in parts]


def _describe(panel: Panel) -> str:
    """Describe how curves are drawn, and the scale, if a reader needs it."""
    notes = []
    if {curve.validated for curve in panel.curves} == {True, False}:
        notes.append("training: line, validation: markers")
    if len(panel.roles) > 1:
        notes.append(", ".join(f"{role}: {ROLE_MARKERS[role]}" for role in panel.roles))
    if panel.logarithmic:
        notes.append("logarithmic scale")
    return f"   ({'; '.join(notes)})" if notes else ""


def _range(panel: Panel) -> tuple[float, float]:
    heights = [_to_axis(panel, value) for curve in panel.curves for value in curve.values]
    low, high = min(heights), max(heights)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _to_axis(panel: Panel, value: float) -> float:
    return math.log(value) if panel.logarithmic else value


def _from_axis(panel: Panel, height: float) -> float:
    return math.exp(height) if panel.logarithmic else height


def _format(value: float) -> str:
    return f"{value:.3g}"
