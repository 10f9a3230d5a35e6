"""The table and the figure of `alignment.py`: a row for each model, a column for each task."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alignment_scores import Result
from regard.formatting import table

Rows = Mapping[str, Mapping[str, Result]]
"""The results by row and task."""

COLUMNS = ("dates", "transliteration", "reverse", "permute", "scenes", "multi30k")


def format_table(rows: Rows) -> str:
    """Format the accuracy of all rows on all tasks, and the alignment error rates on Multi30k and Europarl."""
    header = ["model", *COLUMNS[:-1], "Multi30k", "AER", "Europarl AER"]
    lines = [[name, *(_format_cell(by_task.get(task)) for task in COLUMNS)] for name, by_task in rows.items()]
    for line, by_task in zip(lines, rows.values(), strict=True):
        scores = by_task["multi30k"].scores if "multi30k" in by_task else {}
        line += [f"{100 * scores[name]['aer']:.1f}" if name in scores else "–" for name in ("test", "europarl")]
    return table(header, lines)


def _format_cell(result: Result | None) -> str:
    """Format an accuracy in percent; in parentheses, the higher accuracy at a place nearby, if there is one."""
    if result is None or result.accuracy is None:
        return "–"
    mark = "" if result.learned else "*"
    place = find_place(result)
    nearby = f" ({place} {100 * result.nearby[place]:.1f})" if place else ""
    return f"{100 * result.accuracy:.1f}{mark}{nearby}"


def find_place(result: Result) -> str | None:
    """Return the place nearby with the highest accuracy, if it is higher than that of the right place."""
    place = max(result.nearby, key=lambda name: result.nearby[name], default=None)
    return place if place and result.nearby[place] > (result.accuracy or 0) else None


def format_europarl(rows: Rows) -> str:
    """Format the scores on the hand-aligned sentences of Europarl."""
    lines = []
    for name, by_task in rows.items():
        result = by_task.get("multi30k")
        if result and (score := result.scores.get("europarl")):
            bleu = "–" if result.quality.bleu is None else f"{result.quality.bleu:.1f}"
            lines.append([name, bleu, *(f"{score[key]:.1%}" for key in ("aer", "precision", "recall"))])
    return table(["Europarl", "dev BLEU", "AER", "precision", "recall"], lines)


LEARNED, NOT_LEARNED, OTHER_DOMAIN = "#0072b2", "#999999", "#d55e00"


def draw(rows: Rows, path: Path) -> None:
    """Draw a panel for each task: the accuracy of each model, and that at a place nearby if it is higher."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    names = [name for name in rows if name != "chance"][::-1]
    figure = Figure(figsize=(13, 0.3 * len(names) + 1.8), layout="constrained")
    *panels, europarl = figure.subplots(1, len(COLUMNS) + 1, sharey=True)
    for axes, task in zip(panels, COLUMNS, strict=True):
        axes.set_title("Multi30k (silver)" if task == "multi30k" else task, fontsize=10)
        axes.set_xlabel("accuracy, %", fontsize=9)
        for height, name in enumerate(names):
            if result := rows[name].get(task):
                _draw_result(axes, height, result)
        if (chance := rows.get("chance", {}).get(task)) and chance.accuracy is not None:
            axes.axvline(100 * chance.accuracy, color=NOT_LEARNED, linewidth=0.8, linestyle="--")
    europarl.set_title("Europarl", fontsize=10)
    europarl.set_xlabel("100 − AER, %", fontsize=9)
    for height, name in enumerate(names):
        score = rows[name].get("multi30k", Result()).scores.get("europarl")
        if score:
            europarl.plot(100 * (1 - score["aer"]), height, "o", color=OTHER_DOMAIN)
    for axes in (*panels, europarl):
        axes.set_xlim(-3, 103)
        axes.grid(axis="y", linewidth=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(names)), names, fontsize=9)
    handles = [
        Line2D([], [], color=LEARNED, marker="o", linestyle="", label="accuracy"),
        Line2D([], [], color=LEARNED, marker="o", linestyle="", markerfacecolor="white", label="one slot or step off"),
        Line2D([], [], color=NOT_LEARNED, marker="o", linestyle="", label="task not learned"),
        Line2D([], [], color=NOT_LEARNED, linestyle="--", linewidth=0.8, label="chance"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _draw_result(axes: Any, height: int, result: Result) -> None:
    if result.accuracy is None:
        return
    color, accuracy = LEARNED if result.learned else NOT_LEARNED, 100 * result.accuracy
    axes.plot(accuracy, height, "o", color=color)
    if place := find_place(result):
        nearby = 100 * result.nearby[place]
        axes.plot([accuracy, nearby], [height, height], color=color, linewidth=0.8)
        axes.plot(nearby, height, "o", color=color, markerfacecolor="white")
