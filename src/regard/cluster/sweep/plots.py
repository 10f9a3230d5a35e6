"""Figures of a sweep: the importance of its settings, and its history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.evaluation.settings import Metric
from regard.inspection.compare.plots import PANEL_WIDTH, new_grid, set_title
from regard.inspection.views.appearance import CATEGORY_COLORS
from regard.inspection.views.fonts import drawing_settings, save_figure

_HEIGHT = 2.8
"""The height of a panel in inches."""

_LOG_SCALE_RATIO = 30.0
"""A setting is drawn on a logarithmic scale if its largest value exceeds its smallest by this factor."""

_COLOR, _BEST = CATEGORY_COLORS[:2]


@dataclass(frozen=True)
class Point:
    """A trial: its number, the values of its settings, and its result."""

    number: int
    values: Mapping[str, Any]
    score: float


def draw_importance(points: Sequence[Point], importance: Mapping[str, float], metric: Metric, path: Path) -> None:
    """Draw the importance of each setting, if it is known, and the results against each setting."""
    keys = list(importance) or list(points[0].values)
    text = "".join(f"{key}{point.values[key]}" for key in keys for point in points)
    with drawing_settings(text, {"font.size": 9, "text.parse_math": True}):
        figure, panels = new_grid(len(keys) + bool(importance), _HEIGHT)
        if importance:
            _draw_bars(panels.pop(0), importance, len(points))
        best = _find_best(points, metric)
        for axes, key in zip(panels, keys, strict=True):
            _draw_slice(axes, key, points, best)
            set_title(axes, f"{metric.label} by {key}")
        save_figure(figure, path, dpi=160)


def draw_history(points: Sequence[Point], metric: Metric, path: Path) -> None:
    """Draw the result of each trial, and the best result so far."""
    with drawing_settings(metric.label, {"font.size": 9}):
        figure, [axes] = new_grid(1, _HEIGHT, 1.6 * PANEL_WIDTH)
        numbers, scores = [point.number for point in points], [point.score for point in points]
        better = max if metric.higher_is_better else min
        best = [better(scores[: index + 1]) for index in range(len(scores))]
        axes.step(numbers, best, where="post", color=_BEST, linewidth=1.6, label="best so far")
        axes.plot(numbers, scores, "o", color=_COLOR, markersize=4, label="trial")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("trial")
        axes.legend(frameon=False, loc="best")
        set_title(axes, f"{metric.label} on the validation data")
        _finish(axes)
        save_figure(figure, path, dpi=160)


def _draw_bars(axes: Any, importance: Mapping[str, float], trials: int) -> None:
    keys = list(importance)
    axes.barh(range(len(keys)), [importance[key] for key in keys], color=_COLOR, height=0.6)
    axes.set_yticks(range(len(keys)), keys)
    axes.set_ylim(len(keys) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"share (PED-ANOVA, {trials} trials)")
    axes.grid(axis="x", alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    set_title(axes, "Importance for a good result")


def _draw_slice(axes: Any, key: str, points: Sequence[Point], best: Point) -> None:
    """Draw the results against the values of one setting: on an axis for numbers, else in a column for each value."""
    values = [point.values[key] for point in points]
    if all(isinstance(value, int | float) for value in values):
        position = {value: value for value in values}
        if min(values) > 0 and max(values) > _LOG_SCALE_RATIO * min(values):
            axes.set_xscale("log")
        axes.margins(x=0.08)
    else:
        names = list(dict.fromkeys(map(str, values)))
        position = {name: index for index, name in enumerate(names)}
        axes.set_xticks(range(len(names)), names, rotation=20 if max(map(len, names)) * len(names) > 30 else 0)
        axes.set_xlim(-0.5, len(names) - 0.5)
        values = list(map(str, values))
    axes.plot([position[value] for value in values], [point.score for point in points], "o", color=_COLOR, alpha=0.7)
    axes.plot(
        position[values[points.index(best)]], best.score, "D", color=_BEST, markersize=6.5, markeredgecolor="white"
    )
    _finish(axes)


def _find_best(points: Sequence[Point], metric: Metric) -> Point:
    better = max if metric.higher_is_better else min
    return better(points, key=lambda point: point.score)


def _finish(axes: Any) -> None:
    axes.margins(y=0.12)
    axes.grid(axis="y", alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
