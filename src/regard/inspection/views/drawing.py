"""Matplotlib figures of attention weights. Save them with `bbox_inches="tight"`: labels are outside the figure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from regard.inspection.views.labels import Labels
from regard.inspection.views.pictures import PixelArray

_CELL = 0.28
"""Width and height of a cell of a heat map in inches; a line of text fits into it."""

_BAR_WIDTH, _BAR_HEIGHT, _BAR_GAP = 0.14, 2.5, 0.15
"""Size of the color bar in inches; it is never taller than the heat map."""

_PANEL_SIDE, _MIN_PANEL_WIDTH, _MAX_PANEL_WIDTH, _SHEET_WIDTH = 1.6, 0.8, 2.8, 9.0
"""Side of a square panel of a contact sheet, limits for other panels, and the width that panels are wrapped at, in
inches.
"""

_SMALL_CELL, _SMALL_SIZE, _MIN_MAP_SIDE, _MAX_GRID_WIDTH = 0.105, 6.0, 0.6, 14.0
"""Size of a cell and of its label in a grid of maps, the minimum size of a map, and the width of a grid above which
cells are smaller and not labeled. Sizes are in inches, except the size of the labels, which is in points.
"""

_LINES_WIDTH, _LINES_ROW = 1.9, 0.24
"""Width of lines between tokens, and height of a token, in inches."""

_PANEL_GAP, _TITLE_HEIGHT, _LINE_HEIGHT = 0.12, 0.24, 0.2
_WORD_SIZE, _MIN_WORD_SIZE, _WEIGHT_SIZE, _CAPTION_SIZE = 10.0, 5.0, 8.0, 11.0
_GRAY, _FRAME, _OUTLINE = "#666666", "#b0b0b0", "#ffd640"


class Colors(NamedTuple):
    """A color map of matplotlib, the weights of its last and of its first color, and what the weights are."""

    color_map: Any
    limit: float
    start: float = 0.0
    quantity: str = "attention weight"


class GridPanel(NamedTuple):
    """A map in a grid, its place, and the titles above it and on its left."""

    weights_TS: NDArray[np.float32]
    row: int
    column: int
    title: str
    side_title: str


class Line(NamedTuple):
    """A line from a column label to a row label. Fractions are positions between labels."""

    column: float
    row: float
    opacity: float
    color: str


def build_heat_map(weights_TS: NDArray[np.float32], labels: Labels, title: str, colors: Colors) -> Any:
    """Draw a heat map as a figure of its exact size."""
    width, height = (_CELL * max(1, len(part)) for part in (labels.columns, labels.rows))
    figure = _new_figure(width, height)
    axes = figure.add_axes((0, 0, 1, 1))
    image = _draw_map(axes, weights_TS, colors)
    axes.set_yticks(range(len(labels.rows)), labels.rows)
    _set_column_labels(axes, labels.columns)
    axes.set_xlabel(labels.column_axis, color=_GRAY)
    axes.set_ylabel(labels.row_axis, color=_GRAY)
    axes.set_title(title, loc="left", fontsize=_CAPTION_SIZE, pad=8)
    bar_height = min(height, _BAR_HEIGHT)
    bar = figure.add_axes((1 + _BAR_GAP / width, 1 - bar_height / height, _BAR_WIDTH / width, bar_height / height))
    _draw_color_bar(figure, image, bar, colors, bar_height)
    return figure


def _draw_map(axes: Any, weights_TS: NDArray[np.float32], colors: Colors) -> Any:
    """Draw the cells of a map in a thin frame: cells without weight are as white as the paper."""
    weights = weights_TS if weights_TS.size else np.zeros((1, 1))
    image = axes.imshow(weights, cmap=colors.color_map, vmin=colors.start, vmax=colors.limit, aspect="auto")
    axes.tick_params(length=0)
    axes.spines[:].set(color=_FRAME, linewidth=0.6)
    return image


def _draw_color_bar(figure: Any, image: Any, axes: Any, colors: Colors, height: float) -> None:
    start, limit, quantity = colors.start, colors.limit, colors.quantity
    # A long name does not fit beside a short bar.
    middle, name = ([(start + limit) / 2], quantity) if height > 1.2 else ([], quantity.split()[-1])
    ticks = [start, *middle, limit]
    bar = figure.colorbar(image, cax=axes, ticks=ticks, format="{x:g}")
    bar.set_label(name, color=_GRAY, fontsize=_WEIGHT_SIZE)
    bar.outline.set(edgecolor=_FRAME, linewidth=0.6)
    axes.tick_params(length=2, color=_FRAME, labelsize=_WEIGHT_SIZE)


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


def build_grid(panels: Sequence[GridPanel], labels: Labels, title: str, colors: Colors) -> Any:
    """Draw maps in rows and columns, with one color bar. Tokens are labeled on the left and above, if they fit."""
    rows, columns = (1 + max(place) for place in zip(*((panel.row, panel.column) for panel in panels), strict=True))
    across, down = max(1, len(labels.columns)), max(1, len(labels.rows))
    labeled = columns * across * _SMALL_CELL <= _MAX_GRID_WIDTH
    cell = _SMALL_CELL if labeled else _MAX_GRID_WIDTH / (columns * across)
    width, height = max(cell * across, _MIN_MAP_SIDE), max(cell * down, _MIN_MAP_SIDE)
    gap_above = _TITLE_HEIGHT if any(panel.title and panel.row for panel in panels) else 0.0
    total_width = columns * (width + _PANEL_GAP) - _PANEL_GAP
    total_height = rows * (height + _PANEL_GAP + gap_above) - _PANEL_GAP - gap_above
    figure = _new_figure(total_width, total_height)
    image = None
    for panel in panels:
        left = panel.column * (width + _PANEL_GAP)
        bottom = total_height - height - panel.row * (height + _PANEL_GAP + gap_above)
        axes = figure.add_axes((left / total_width, bottom / total_height, width / total_width, height / total_height))
        image = _draw_map(axes, panel.weights_TS, colors)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.xaxis.set_label_position("top")
        axes.set_title(panel.title, fontsize=_WEIGHT_SIZE, pad=3)
        axes.set_ylabel(panel.side_title, fontsize=_WEIGHT_SIZE)
        if labeled and panel.row == 0:
            axes.xaxis.tick_top()
            rotation = 0 if max(map(cell_len, labels.columns), default=0) == 1 else 90
            axes.set_xticks(range(across), labels.columns, rotation=rotation, fontsize=_SMALL_SIZE)
        if labeled and panel.column == 0:
            axes.set_yticks(range(down), labels.rows, fontsize=_SMALL_SIZE)
    bar_height = min(total_height, _BAR_HEIGHT)
    box = (
        1 + _BAR_GAP / total_width,
        1 - bar_height / total_height,
        _BAR_WIDTH / total_width,
        bar_height / total_height,
    )
    _draw_color_bar(figure, image, figure.add_axes(box), colors, bar_height)
    _add_title(figure, title)
    return figure


def build_lines(lines: Sequence[Line], labels: Labels, title: str, legend: Sequence[tuple[str, str]]) -> Any:
    """Draw column labels on the left, row labels on the right, and lines between them."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba
    from matplotlib.lines import Line2D

    columns, rows = len(labels.columns), len(labels.rows)
    figure = _new_figure(_LINES_WIDTH, _LINES_ROW * max(1, columns, rows))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(1, 0)
    segments = [[(0.0, (line.column + 0.5) / columns), (1.0, (line.row + 0.5) / rows)] for line in lines]
    shown = [to_rgba(line.color, line.opacity) for line in lines]
    axes.add_collection(LineCollection(segments, colors=shown, linewidths=1.6, capstyle="round"), autolim=False)
    for x, side, tokens, name in (
        (-0.02, "right", labels.columns, labels.column_axis),
        (1.02, "left", labels.rows, labels.row_axis),
    ):
        for index, token in enumerate(tokens):
            axes.text(x, (index + 0.5) / len(tokens), token, ha=side, va="center_baseline", fontsize=_WORD_SIZE)
        axes.annotate(
            name, (x, 0), (0, 6), textcoords="offset points", ha=side, va="bottom", color=_GRAY, annotation_clip=False
        )
    if legend:
        handles = [Line2D([], [], color=color, linewidth=2, label=name) for name, color in legend]
        figure.legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=min(4, len(handles)), frameon=False,
            fontsize=_WEIGHT_SIZE, handlelength=1.2, columnspacing=1.2,
        )  # fmt: skip
    _add_title(figure, title)
    return figure


def _add_title(figure: Any, title: str) -> None:
    """Write a title above everything else in a figure, at the left edge of its contents."""
    if not title:
        return
    box = figure.get_tightbbox(figure.canvas.get_renderer())
    width, height = figure.get_size_inches()
    figure.text(box.x0 / width, (box.y1 + 0.1) / height, title, va="bottom", fontsize=_CAPTION_SIZE)


@dataclass(frozen=True, eq=False)
class Panel:
    """An image in a contact sheet, with a title on the left and a note on the right above it."""

    pixels_HW3: PixelArray
    title: str
    note: str = ""
    grid: tuple[int, int] | None = None
    """The numbers of rows and columns whose borders are drawn."""
    outlined: tuple[float, float, float, float] | None = None
    """The left, top, width and height of a cell, as shares of the image."""


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
    """Reduce the size of a title that would overlap the note or the next panel, and cut it if that is not enough."""
    renderer = axes.figure.canvas.get_renderer()
    room = axes.get_window_extent(renderer).width
    if note.get_text():
        room -= note.get_window_extent(renderer).width + 4

    def is_too_wide() -> bool:
        return bool(title.get_window_extent(renderer).width > room)

    # Hinted glyphs do not scale exactly with the size.
    size = _WORD_SIZE
    while size > _MIN_WORD_SIZE and is_too_wide():
        size -= 0.5
        title.set_fontsize(size)
    text = title.get_text()
    while text and is_too_wide():
        text = text[:-1]
        title.set_text(text + "…")


def _new_figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure
