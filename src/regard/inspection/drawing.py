"""Matplotlib figures of attention weights. Save them with `bbox_inches="tight"`: labels are outside the figure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.inspection.pictures import PixelArray

_CELL = 0.28
"""Width and height of a cell of a heat map in inches; a line of text fits into it."""

_BAR_WIDTH, _BAR_HEIGHT, _BAR_GAP = 0.14, 2.5, 0.15
"""Size of the color bar in inches; it is never taller than the heat map."""

_PANEL_SIDE, _MIN_PANEL_WIDTH, _MAX_PANEL_WIDTH, _SHEET_WIDTH = 1.6, 0.8, 2.8, 9.0
"""Side of a square panel of a contact sheet, limits for other panels, and the width that panels are wrapped at, in
inches.
"""

_PANEL_GAP, _TITLE_HEIGHT, _LINE_HEIGHT = 0.12, 0.24, 0.2
_WORD_SIZE, _MIN_WORD_SIZE, _WEIGHT_SIZE, _CAPTION_SIZE = 10.0, 5.0, 8.0, 11.0
_GRAY, _OUTLINE = "#666666", "#ffd640"


def build_heat_map(weights_TS: NDArray[np.float32], columns: Sequence[str], rows: Sequence[str], title: str) -> Any:
    """Draw a heat map as a figure of its exact size."""
    width, height = (_CELL * max(1, len(labels)) for labels in (columns, rows))
    figure = _new_figure(width, height)
    axes = figure.add_axes((0, 0, 1, 1))
    image = axes.imshow(
        weights_TS if weights_TS.size else np.zeros((1, 1)), cmap="viridis", vmin=0.0, vmax=1.0, aspect="auto"
    )
    axes.set_yticks(range(len(rows)), rows)
    _set_column_labels(axes, columns)
    axes.set_xlabel("source")
    axes.set_ylabel("output")
    axes.set_title(title, loc="left", fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar_height = min(height, _BAR_HEIGHT)
    bar = figure.add_axes((1 + _BAR_GAP / width, 1 - bar_height / height, _BAR_WIDTH / width, bar_height / height))
    ticks, name = ([0, 0.5, 1], "attention weight") if bar_height > 1.2 else ([0, 1], "weight")
    figure.colorbar(image, cax=bar, ticks=ticks, label=name)
    return figure


def _set_column_labels(axes: Any, labels: Sequence[str]) -> None:
    """Put labels above the columns, slanted if one is wider than its column."""
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    texts = axes.set_xticks(range(len(labels)), labels)
    figure = axes.figure
    renderer = figure.canvas.get_renderer()
    widest = max((tick.label2.get_window_extent(renderer).width for tick in texts), default=0)
    if widest > 0.9 * _CELL * figure.dpi:
        axes.tick_params(axis="x", labelrotation=45)
        for tick in texts:
            tick.label2.set(horizontalalignment="left", verticalalignment="baseline", rotation_mode="anchor")


@dataclass(frozen=True, eq=False)
class Panel:
    """A picture in a contact sheet, with a title on the left and a note on the right above it."""

    pixels_HW3: PixelArray
    title: str
    note: str = ""
    grid: tuple[int, int] | None = None
    """The numbers of rows and columns whose borders are drawn."""
    outlined: tuple[float, float, float, float] | None = None
    """The left, top, width and height of a cell, as shares of the picture."""


def build_contact_sheet(panels: Sequence[Panel], caption: str, note: str = "") -> Any:
    """Draw panels in rows, below a caption and a note."""
    height, width = panels[0].pixels_HW3.shape[:2]
    panel_width = min(_MAX_PANEL_WIDTH, max(_MIN_PANEL_WIDTH, _PANEL_SIDE * math.sqrt(width / height)))
    panel_height = panel_width * height / width
    columns = min(len(panels), max(1, int((_SHEET_WIDTH + _PANEL_GAP) / (panel_width + _PANEL_GAP))))
    rows = math.ceil(len(panels) / columns)
    sheet_width = columns * (panel_width + _PANEL_GAP) - _PANEL_GAP
    lines = wrap(caption, max(24, int(12 * sheet_width))) or [""]
    notes = note.split("\n") if note else []
    top = _LINE_HEIGHT * (len(lines) + len(notes)) + 0.06
    sheet_height = top + rows * (panel_height + _TITLE_HEIGHT + _PANEL_GAP) - _PANEL_GAP
    figure = _new_figure(sheet_width, sheet_height)
    figure.text(0, 1, "\n".join(lines), va="top", fontsize=_CAPTION_SIZE)
    figure.text(0, 1 - _LINE_HEIGHT * len(lines) / sheet_height, "\n".join(notes), va="top", fontsize=8, color=_GRAY)
    for index, panel in enumerate(panels):
        row, column = divmod(index, columns)
        bottom = sheet_height - top - (row + 1) * (panel_height + _TITLE_HEIGHT) - row * _PANEL_GAP
        left = column * (panel_width + _PANEL_GAP)
        box = (
            left / sheet_width, bottom / sheet_height, panel_width / sheet_width, panel_height / sheet_height
        )  # fmt: skip
        _draw_panel(figure.add_axes(box), panel)
    return figure


def _draw_panel(axes: Any, panel: Panel) -> None:
    from matplotlib.patches import Rectangle

    axes.imshow(panel.pixels_HW3, extent=(0, 1, 1, 0), aspect="auto")
    axes.set_axis_off()
    if panel.grid is not None:
        rows, columns = panel.grid
        axes.hlines(np.arange(1, rows) / rows, 0, 1, colors="white", linewidth=0.3, alpha=0.6)
        axes.vlines(np.arange(1, columns) / columns, 0, 1, colors="white", linewidth=0.3, alpha=0.6)
    if panel.outlined is not None:
        left, top, *size = panel.outlined
        axes.add_patch(Rectangle((left, top), *size, fill=False, edgecolor=_OUTLINE, linewidth=1.6, clip_on=False))
    axes.set_xlim(0, 1)
    axes.set_ylim(1, 0)
    note = axes.set_title(panel.note, loc="right", fontsize=_WEIGHT_SIZE, color=_GRAY, pad=3)
    title = axes.set_title(panel.title, loc="left", fontsize=_WORD_SIZE, pad=3)
    _shrink_to_fit(axes, title, note)


def _shrink_to_fit(axes: Any, title: Any, note: Any) -> None:
    """Reduce the size of a title that would overlap the note."""
    renderer = axes.figure.canvas.get_renderer()
    room = axes.get_window_extent(renderer).width
    if note.get_text():
        room -= note.get_window_extent(renderer).width + 4
    # Hinted glyphs do not scale exactly with the size.
    size = _WORD_SIZE
    while size > _MIN_WORD_SIZE and title.get_window_extent(renderer).width > room:
        size -= 0.5
        title.set_fontsize(size)


def _new_figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure
