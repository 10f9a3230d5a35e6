"""The table and the figure of `alignment.py`: a row for each model, a column for each task."""

from collections.abc import Mapping
from pathlib import Path

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


def draw(rows: Rows, path: Path) -> None:
    """Draw a panel for each task: the accuracy of each model, and that at a place nearby if it is higher."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [name for name in rows if name != "chance"][::-1]
    figure = Figure(figsize=(13, 0.3 * len(names) + 1.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(COLUMNS) + 1, sharey=True)
    for axes, task in zip(panels[:-1], COLUMNS, strict=True):
        axes.set_title("Multi30k (silver)" if task == "multi30k" else task, fontsize=10)
        for height, name in enumerate(names):
            result = rows[name].get(task)
            if result is None or result.accuracy is None:
                continue
            color = "#0072b2" if result.learned else "#999999"
            axes.plot(100 * result.accuracy, height, "o", color=color)
            if place := find_place(result):
                nearby = 100 * result.nearby[place]
                axes.plot([100 * result.accuracy, nearby], [height, height], color=color, linewidth=0.8)
                axes.plot(nearby, height, "o", color=color, markerfacecolor="white")
        if (chance := rows.get("chance", {}).get(task)) and chance.accuracy is not None:
            axes.axvline(100 * chance.accuracy, color="#999999", linewidth=0.8, linestyle="--")
    panels[-1].set_title("Europarl", fontsize=10)
    for height, name in enumerate(names):
        result = rows[name].get("multi30k")
        if result and "europarl" in result.scores:
            panels[-1].plot(100 * (1 - result.scores["europarl"]["aer"]), height, "o", color="#d55e00")
    for axes in panels:
        axes.set_xlim(-3, 103)
        axes.set_xlabel("accuracy, %" if axes is not panels[-1] else "100 − AER, %", fontsize=9)
        axes.grid(axis="y", linewidth=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(names)), names, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
