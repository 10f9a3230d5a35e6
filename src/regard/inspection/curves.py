"""Learning curves: the numbers that a run has written in its `events.jsonl`, as panels to be drawn, and as a figure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import ConfigError, ModelError
from regard.inspection.figures import FORMATS
from regard.inspection.fonts import fonts_for
from regard.runs.events import read_events
from regard.runs.folder import RunFolder

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Told apart by people who see fewer colors, too (Okabe and Ito)."""

_WIDE = 30.0
"""A loss whose largest value is more times its smallest is drawn on a logarithmic scale."""

_BOOKKEEPING = {"event", "step", "time", "best", "pairs", "tokens_per_second"}


@dataclass(frozen=True)
class Curve:
    """One number of one run over its steps; `validated` where it was measured on the dev set."""

    run: str
    validated: bool
    steps: list[int]
    values: list[float]
    best: int | None
    """The step of the model that was kept."""

    @property
    def kept(self) -> float | None:
        """The value of the model that was kept, where it was measured."""
        return self.values[self.steps.index(self.best)] if self.validated and self.best in self.steps else None


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes."""

    name: str
    curves: list[Curve]

    @property
    def logarithmic(self) -> bool:
        values = [value for curve in self.curves for value in curve.values]
        return self.name == "loss" and min(values) > 0 and max(values) > _WIDE * min(values)


def panels(folders: Sequence[RunFolder]) -> list[Panel]:
    """Training and validation loss in one, then each other number in its own, those of validation first."""
    last_parts = [folder.path.name for folder in folders]
    names = last_parts if len(set(last_parts)) == len(folders) else [str(folder.path) for folder in folders]
    found: dict[str, list[Curve]] = {}
    for validated in (True, False):
        for run, folder in zip(names, folders, strict=True):
            for name, curve in _curves(run, folder, validated=validated):
                found.setdefault(name, []).append(curve)
    return [Panel(name, found[name]) for name in sorted(found, key=lambda name: name != "loss")]


def runs_of(shown: Sequence[Panel]) -> list[str]:
    """The names of the runs, in order."""
    return list(dict.fromkeys(curve.run for panel in shown for curve in panel.curves))


def _curves(run: str, folder: RunFolder, *, validated: bool) -> list[tuple[str, Curve]]:
    events = [event for event in read_events(folder.events) if "step" in event]
    if not events:
        raise ModelError(f"{folder.path} has no learning curves: nothing is written in {folder.events} yet.")
    best = max((event["step"] for event in events if event.get("best") is True), default=None)
    points: dict[str, dict[int, float]] = {}
    for event in events:
        for name, value in event.items() if event["event"] == ("validation" if validated else "train") else ():
            if name not in _BOOKKEEPING and _is_number(value):
                points.setdefault(name, {})[event["step"]] = float(value)
    return [(name, Curve(run, validated, list(found), list(found.values()), best)) for name, found in points.items()]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_ending(path: Path) -> None:
    """Refuse a file whose ending names no format."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{path}: learning curves are drawn as one of {', '.join(FORMATS)}.")


def draw(shown: Sequence[Panel], path: Path) -> None:
    """A figure with a panel beside the other: training thin, validation with its points, the model kept marked."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    check_ending(path)
    runs = runs_of(shown)
    across = min(3, len(shown))
    down = -(-len(shown) // across)
    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "regard", "font.size": 9}
    with rc_context(settings), fonts_for("".join(runs)):
        handles = _legend([curve for panel in shown for curve in panel.curves], runs)
        width = 3.9 * across
        # Some nine characters go to an inch, and a handle takes another half.
        columns = max(1, min(len(handles), int(width / (0.7 + max(len(entry.get_label()) for entry in handles) / 12))))
        figure = Figure(figsize=(width, 2.8 * down + 0.2 * -(-len(handles) // columns)), layout="constrained")
        FigureCanvasAgg(figure)
        last = max(step for panel in shown for curve in panel.curves for step in curve.steps)
        for place, panel in enumerate(shown, start=1):
            axes = figure.add_subplot(down, across, place)
            _draw_panel(axes, panel, runs)
            axes.set_xlim(0, last * 1.03)
        figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False)
        metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
        figure.savefig(path, dpi=160, metadata=metadata)


def _draw_panel(axes: Any, panel: Panel, runs: Sequence[str]) -> None:
    for curve in panel.curves:
        color = COLORS[runs.index(curve.run) % len(COLORS)]
        axes.plot(curve.steps, curve.values, color=color, **_form(validated=curve.validated, points=len(curve.steps)))
        if curve.kept is not None:
            point = (curve.best, curve.kept)
            axes.plot(*point, "D", color=color, markersize=6.5, markeredgecolor="white", zorder=4)
            if len(runs) == 1:  # the values of several would hide each other
                note = axes.annotate(f"{curve.kept:.3g}", point, (0, 8), textcoords="offset points", ha="center")
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


def _form(*, validated: bool, points: int) -> dict[str, Any]:
    if not validated:
        return {"linewidth": 0.9, "alpha": 0.5}
    return {"linewidth": 1.6, "marker": "o" if points <= 40 else "", "markersize": 3}


def _legend(curves: Sequence[Curve], runs: Sequence[str]) -> list[Any]:
    from matplotlib.lines import Line2D

    grey = "#555555" if len(runs) > 1 else COLORS[0]
    handles = [
        Line2D([], [], color=COLORS[place % len(COLORS)], linewidth=3, label=run)
        for place, run in enumerate(runs)
        if len(runs) > 1
    ]
    if any(not curve.validated for curve in curves):
        handles.append(Line2D([], [], color=grey, label="training", **_form(validated=False, points=1)))
    if any(curve.validated for curve in curves):
        handles.append(Line2D([], [], color=grey, label="validation", **_form(validated=True, points=1)))
        handles.append(Line2D([], [], color=grey, marker="D", linestyle="", markersize=6, label="the model kept"))
    return handles
