"""Plots of a comparison, as SVG to be included in an HTML page.

Text and axes are drawn in the text color of the page, so that the plots are readable on light and dark backgrounds.
"""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from regard.evaluation.comparison import System, SystemComparison
from regard.evaluation.settings import Metric
from regard.inspection.views import curves
from regard.inspection.views.appearance import CATEGORY_COLORS
from regard.inspection.views.fonts import drawing_settings

_TEXT_COLOR, _BACKGROUND = "#010101", "#ffffff"
"""Not black, which matplotlib omits in SVG, because it is the default."""

_PAGE_COLORS = {_TEXT_COLOR: "currentColor", "#000000": "currentColor", _BACKGROUND: "var(--page)"}
"""Colors that are replaced with those of the page."""

_BETTER, _WORSE = "#0072b2", "#d55e00"

PANEL_WIDTH, _MAX_WIDTH, _MAX_COLUMNS = 3.9, 13.0, 3
"""The width of a panel and of a figure in inches, and the number of panels in a row."""


def draw_svg(name: str, description: str, text: str, build: Callable[[], Any]) -> str:
    """Build a figure, and return it as an SVG element.

    Args:
        name: Makes the ids in the element unique on the page.
        description: For screen readers.
        text: Contains the characters of the labels, to choose fonts.
        build: Returns the figure.
    """
    colors = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    settings = {
        "svg.hashsalt": f"regard-{name}",
        "font.size": 9,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        **dict.fromkeys(colors, _TEXT_COLOR),
    }
    with drawing_settings(text, settings):
        buffer = io.StringIO()
        build().savefig(buffer, format="svg", metadata={"Date": None})
    return _embed(buffer.getvalue(), name, description)


def _embed(document: str, name: str, description: str) -> str:
    """Return the `svg` element of a document without metadata, scalable, with unique ids and the page's text color."""
    element = document[document.index("<svg") :].strip()
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    element = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", element)
    element = re.sub(r'^<svg([^>]*?) height="[^"]*"', r"<svg\1", element)
    attributes = rf'role="img" aria-label="{description}"'
    element = re.sub(r'^<svg([^>]*?) width="([^"]*)"', rf'<svg\1 {attributes} style="max-width: \2"', element)
    # The reader may not have the font.
    element = re.sub(r"font-family: ([^;\"]+)", r"font-family: \1, sans-serif", element)
    for color, replacement in _PAGE_COLORS.items():
        element = element.replace(color, replacement)
    return element


def draw_differences(numbers: SystemComparison) -> str:
    """Draw a forest plot: the difference of each system to the baseline, with its confidence interval."""
    return draw_svg(
        "differences", "Differences from the baseline", _names(numbers.systems), lambda: _build_differences(numbers)
    )


def draw_lengths(numbers: SystemComparison) -> str:
    """Draw each metric against the length of the source."""
    return draw_svg("lengths", "Metrics by length", _names(numbers.systems), lambda: _build_lengths(numbers))


def draw_pairwise(numbers: SystemComparison) -> str:
    """Draw the difference of each pair of systems in a matrix; significant ones are filled."""
    return draw_svg(
        "pairwise", "Differences of all pairs of systems", _names(numbers.systems), lambda: _build_pairwise(numbers)
    )


def draw_curves(panels: Sequence[curves.Panel]) -> str:
    """Draw learning curves."""
    return draw_svg("curves", "Learning curves", "".join(curves.run_names(panels)), lambda: curves.build_figure(panels))


def _names(systems: Sequence[System]) -> str:
    return "".join(system.name for system in systems)


def new_grid(panels: int, height: float, width: float = PANEL_WIDTH) -> tuple[Any, list[Any]]:
    """Return a figure with a number of panels of a size in inches, and the axes of each."""
    from matplotlib.figure import Figure

    columns = max(1, min(_MAX_COLUMNS, panels, int(_MAX_WIDTH / width)))
    rows = -(-panels // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, index) for index in range(1, panels + 1)]


def set_title(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")


def _format_ticks(axis: Any, metric: Metric) -> None:
    """Label the ticks in the unit in which tables show the metric."""
    from matplotlib.ticker import PercentFormatter

    if metric.format_spec.endswith("%"):
        axis.set_major_formatter(PercentFormatter(1.0))
    elif metric.unit:
        axis.set_major_formatter(f"{{x:g}}{metric.unit}")


def _color(index: int) -> str:
    return CATEGORY_COLORS[index % len(CATEGORY_COLORS)]


def _line_style(index: int) -> Literal["-", "--", ":"]:
    """Return a style that distinguishes lines of the same color."""
    styles: tuple[Literal["-", "--", ":"], ...] = ("-", "--", ":")
    return styles[index // len(CATEGORY_COLORS) % len(styles)]


def _build_differences(numbers: SystemComparison) -> Any:
    others = [(index, system) for index, system in enumerate(numbers.systems) if system is not numbers.baseline]
    figure, panels = new_grid(len(numbers.metrics), 0.9 + 0.32 * len(others))
    for axes, metric in zip(panels, numbers.metrics, strict=True):
        axes.axvline(0, color=_TEXT_COLOR, linewidth=0.8, alpha=0.5)
        for row, (index, system) in enumerate(others):
            tested = numbers.differences[system.name, metric]
            low, high = tested.difference.interval
            color = _color(index)
            axes.plot([low, high], [row, row], color=color, linewidth=2, solid_capstyle="butt")
            fill = color if tested.significant else _BACKGROUND
            axes.plot(tested.difference.value, row, "o", color=color, markerfacecolor=fill, markersize=7)
        axes.set_yticks(range(len(others)), [system.name for _, system in others])
        axes.tick_params(axis="y", length=0, labelleft=axes.get_subplotspec().is_first_col())
        axes.set_ylim(len(others) - 0.4, -0.6)
        axes.margins(x=0.1)
        axes.grid(axis="x", alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right", "left"]].set_visible(False)
        set_title(axes, metric.label)
        _format_ticks(axes.xaxis, metric)
        axes.set_xlabel("better →" if metric.higher_is_better else "← better")
    return figure


def _build_lengths(numbers: SystemComparison) -> Any:
    from matplotlib.lines import Line2D

    figure, panels = new_grid(len(numbers.metrics), 2.9)
    by_system = [numbers.break_down_by_length(system) for system in numbers.systems]
    for axes, metric in zip(panels, numbers.metrics, strict=True):
        for index, groups in enumerate(by_system):
            values = [group.values[metric.label] for group in groups]
            axes.plot(range(len(values)), values, "o", linestyle=_line_style(index), color=_color(index), markersize=4)
        labels = [f"{group.bucket.label}\n({group.sentences:,})" for group in by_system[0]]
        axes.set_xticks(range(len(labels)), labels, fontsize=8)
        axes.set_xlabel(f"{numbers.lengths.title} (sentences)")
        axes.margins(y=0.12)
        axes.grid(axis="y", alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        set_title(axes, metric.label)
        _format_ticks(axes.yaxis, metric)
    handles = [
        Line2D([], [], color=_color(index), linestyle=_line_style(index), linewidth=2.5, label=system.name)
        for index, system in enumerate(numbers.systems)
    ]
    columns = curves.count_legend_columns(handles, figure.get_figwidth())
    height = figure.get_figheight() + 0.2 * -(-len(handles) // columns)
    figure.set_figheight(height)
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False)
    return figure


def _build_pairwise(numbers: SystemComparison) -> Any:
    from matplotlib.patches import Rectangle

    names = [system.name for system in numbers.systems]
    # A cell is 0.62 inches wide; an inch fits about twelve characters of a name, which is slanted below the matrix.
    cells, label = 0.62 * len(names), max(map(len, names)) / 12
    figure, panels = new_grid(len(numbers.metrics), cells + 0.6 * label + 0.6, max(PANEL_WIDTH, cells + label + 0.5))
    for axes, metric in zip(panels, numbers.metrics, strict=True):
        for row, first in enumerate(names):
            for column, second in enumerate(names):
                text, color, alpha = _describe_cell(numbers, metric, first, second)
                box = Rectangle((column - 0.47, row - 0.47), 0.94, 0.94, color=color, alpha=alpha, linewidth=0)
                axes.add_patch(box)
                axes.text(column, row, text, ha="center", va="center", fontsize=8)
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        set_title(axes, metric.label)
    return figure


def _describe_cell(numbers: SystemComparison, metric: Metric, first: str, second: str) -> tuple[str, str, float]:
    """Return the text, color and opacity for the difference of the row (first) minus the column (second)."""
    if first == second:
        return "", _TEXT_COLOR, 0.06
    if (first, second, metric) in numbers.pairwise:
        tested, sign = numbers.pairwise[first, second, metric], -1.0
    else:
        tested, sign = numbers.pairwise[second, first, metric], 1.0
    difference = sign * tested.difference.value
    better = difference > 0 if metric.higher_is_better else difference < 0
    p_value = tested.corrected_p_value
    p_text = "p<0.001" if p_value < 0.001 else f"p={p_value:.3f}"
    shown = metric.format(abs(difference))
    text = f"{'−' if difference < 0 else '+'}{shown}\n{p_text}"
    return text, _BETTER if better else _WORSE, 0.55 if tested.significant else 0.1
