"""Learning curves: read the values in the `events.jsonl` of runs, and draw them as a figure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from regard.errors import ConfigError, ModelError
from regard.evaluation.attention_diagnostics import STATISTICS
from regard.inspection.views.appearance import CATEGORY_COLORS
from regard.inspection.views.fonts import FORMATS, drawing_settings, save_figure
from regard.runs.events import read_events
from regard.runs.folder import RunFolder

_LOG_SCALE_RATIO = 30.0
"""A loss is drawn on a logarithmic scale if its largest value exceeds its smallest by this factor."""

_NOT_PLOTTED = {"event", "step", "time", "best", "pairs", "tokens_per_second"}

ROLE_MARKERS = {"cross": "o", "encoder-self": "e", "decoder-self": "d"}
"""The roles of attentions, and the marker of each in a terminal."""

_ROLE_LINES: dict[str, Literal["-", "--", ":"]] = {"cross": "-", "encoder-self": "--", "decoder-self": ":"}


@dataclass(frozen=True)
class Curve:
    """A value of one run over its steps; `validated` if it was computed on the dev set."""

    run: str
    validated: bool
    steps: list[int]
    values: list[float]
    best_step: int | None
    """The step of the best checkpoint."""
    role: str | None = None
    """If the value is a statistic of attention weights, the role of the attentions over which it was averaged."""

    @property
    def best_value(self) -> float | None:
        """The validation value at the best checkpoint; None if there is none."""
        if not self.validated or self.role is not None or self.best_step not in self.steps:
            return None
        return self.values[self.steps.index(self.best_step)]

    def color_index(self, runs: Sequence[str]) -> int:
        """Return the index of its color: one for each run, or for each role of a single run."""
        if self.role is None or len(runs) > 1:
            return runs.index(self.run)
        return list(ROLE_MARKERS).index(self.role)


@dataclass(frozen=True)
class Panel:
    """Curves that share a pair of axes."""

    name: str
    curves: list[Curve]

    @property
    def logarithmic(self) -> bool:
        values = [value for curve in self.curves for value in curve.values]
        return self.name == "loss" and min(values) > 0 and max(values) > _LOG_SCALE_RATIO * min(values)

    @property
    def roles(self) -> list[str]:
        """The roles of the attentions in the panel, if it shows statistics of attention weights."""
        return list(dict.fromkeys(curve.role for curve in self.curves if curve.role is not None))


def read_panels(folders: Sequence[RunFolder]) -> list[Panel]:
    """Read a panel for training and validation loss, then one for each other value, validation first, then one for each
    statistic of attention weights. The statistics of several runs are those of cross-attention.
    """
    last_parts = [folder.path.name for folder in folders]
    names = last_parts if len(set(last_parts)) == len(folders) else [str(folder.path) for folder in folders]
    curves: dict[str, list[Curve]] = {}
    for validated in (True, False):
        for run, folder in zip(names, folders, strict=True):
            for name, curve in _read_curves(run, folder, validated=validated):
                curves.setdefault(name, []).append(curve)
    panels = [Panel(name, curves[name]) for name in sorted(curves, key=lambda name: name != "loss")]
    return [*panels, *_read_attention_panels(names, folders)]


def _read_attention_panels(names: Sequence[str], folders: Sequence[RunFolder]) -> list[Panel]:
    """Read a panel for each statistic of attention weights. Without dead heads, they have no panel."""
    roles = ROLE_MARKERS if len(names) == 1 else ["cross"]
    curves: dict[str, list[Curve]] = {}
    for run, folder in zip(names, folders, strict=True):
        points = _read_points(read_events(folder.events), "attention")
        for statistic in STATISTICS:
            for role in roles:
                if values := points.get(f"{role}/{statistic}"):
                    curve = Curve(run, True, list(values), list(values.values()), None, role)
                    curves.setdefault(f"attention_{statistic}", []).append(curve)
    if not any(any(curve.values) for curve in curves.get("attention_dead_heads", ())):
        curves.pop("attention_dead_heads", None)
    return [Panel(name, entries) for name, entries in curves.items()]


def run_names(panels: Sequence[Panel]) -> list[str]:
    """Return the names of the runs, in order."""
    return list(dict.fromkeys(curve.run for panel in panels for curve in panel.curves))


def _read_curves(run: str, folder: RunFolder, *, validated: bool) -> list[tuple[str, Curve]]:
    events = [event for event in read_events(folder.events) if "step" in event]
    if not events:
        raise ModelError(f"{folder.path} has no learning curves: {folder.events} contains no values yet.")
    best = max((event["step"] for event in events if event.get("best") is True), default=None)
    points = _read_points(events, "validation" if validated else "train")
    return [(name, Curve(run, validated, list(values), list(values.values()), best)) for name, values in points.items()]


def _read_points(events: Sequence[dict[str, Any]], kind: str) -> dict[str, dict[int, float]]:
    """Return the numbers in the events of a kind, by name and step."""
    points: dict[str, dict[int, float]] = {}
    for event in events:
        for name, value in event.items() if event["event"] == kind and "step" in event else ():
            if name not in _NOT_PLOTTED and _is_number(value):
                points.setdefault(name, {})[event["step"]] = float(value)
    return points


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_extension(path: Path) -> None:
    """Raise ConfigError if the extension of a file is not a format for figures."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{path}: learning curves are drawn as {', '.join(FORMATS)}. Use one of these extensions.")


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Draw the panels to a file."""
    check_extension(path)
    # The labels of a logarithmic scale are mathematics.
    with drawing_settings("".join(run_names(panels)), {"font.size": 9, "text.parse_math": True}):
        save_figure(build_figure(panels), path, dpi=160)


def build_figure(panels: Sequence[Panel]) -> Any:
    """Draw the panels in a grid. Training is a thin line, validation has points, and the best checkpoint is marked."""
    from matplotlib.figure import Figure

    runs = run_names(panels)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    handles = _legend([curve for panel in panels for curve in panel.curves], runs)
    width = 3.9 * columns
    legend_columns = count_legend_columns(handles, width)
    legend_rows = -(-len(handles) // legend_columns)
    figure = Figure(figsize=(width, 2.8 * rows + 0.2 * legend_rows), layout="constrained")
    last_step = max(step for panel in panels for curve in panel.curves for step in curve.steps)
    for index, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, index)
        _draw_panel(axes, panel, runs)
        axes.set_xlim(0, last_step * 1.03)
    figure.legend(handles=handles, loc="outside upper left", ncols=legend_columns, frameon=False)
    return figure


def count_legend_columns(handles: Sequence[Any], width: float) -> int:
    """Return the number of legend entries that fit next to each other into a width in inches."""
    # An inch fits about twelve characters; a legend entry has a handle of 0.7 inches.
    label_width = max(len(entry.get_label()) for entry in handles) / 12
    return max(1, min(len(handles), int(width / (0.7 + label_width))))


def _draw_panel(axes: Any, panel: Panel, runs: Sequence[str]) -> None:
    for curve in panel.curves:
        color = CATEGORY_COLORS[curve.color_index(runs) % len(CATEGORY_COLORS)]
        style = _line_style(validated=curve.validated, points=len(curve.steps))
        dashes = _ROLE_LINES.get(curve.role or "", "-")
        axes.plot(curve.steps, curve.values, color=color, linestyle=dashes, **style)
        if curve.best_value is not None:
            point = (curve.best_step, curve.best_value)
            axes.plot(*point, "D", color=color, markersize=6.5, markeredgecolor="white", zorder=4)
            if len(runs) == 1:  # the labels of several runs would overlap
                note = axes.annotate(f"{curve.best_value:.3g}", point, (0, 8), textcoords="offset points", ha="center")
                note.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8})
    if panel.logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.margins(y=0.12)
    axes.set_title(panel.name.replace("_", " "), loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel("step")
    axes.grid(axis="y", alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _line_style(*, validated: bool, points: int) -> dict[str, Any]:
    if not validated:
        return {"linewidth": 0.9, "alpha": 0.5}
    return {"linewidth": 1.6, "marker": "o" if points <= 40 else "", "markersize": 3}


def _legend(curves: Sequence[Curve], runs: Sequence[str]) -> list[Any]:
    from matplotlib.lines import Line2D

    color = "#555555" if len(runs) > 1 else CATEGORY_COLORS[0]
    handles = [
        Line2D([], [], color=CATEGORY_COLORS[index % len(CATEGORY_COLORS)], linewidth=3, label=run)
        for index, run in enumerate(runs)
        if len(runs) > 1
    ]
    if any(not curve.validated for curve in curves):
        handles.append(Line2D([], [], color=color, label="training", **_line_style(validated=False, points=1)))
    if any(curve.validated for curve in curves):
        handles.append(Line2D([], [], color=color, label="validation", **_line_style(validated=True, points=1)))
        handles.append(Line2D([], [], color=color, marker="D", linestyle="", markersize=6, label="best checkpoint"))
    roles = {curve.role: curve for curve in curves if curve.role is not None}
    if len(roles) > 1:
        for role, curve in roles.items():
            color = CATEGORY_COLORS[curve.color_index(runs)]
            label = f"{role}-attention".replace("-self", " self")
            handles.append(Line2D([], [], color=color, linestyle=_ROLE_LINES[role], label=label))
    return handles
