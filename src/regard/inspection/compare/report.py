"""The HTML report of a comparison: one file without external resources, readable on light and dark backgrounds."""

import html
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.data.corpora import describe_source
from regard.errors import ModelError
from regard.evaluation.comparison import SIGNIFICANT, Disagreement, System, SystemComparison
from regard.evaluation.settings import Metric
from regard.formatting import quantity
from regard.inspection.compare import plots as comparison_plots
from regard.inspection.compare.tables import Table
from regard.inspection.views import curves
from regard.inspection.views.heatmap import POLICY
from regard.runs.folder import RunFolder
from regard.version import __version__

_EXAMPLES = 20

_STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --page: #fff; --line: #d0d0d0; --muted: #5a5a5a; --mark: #0072b222; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --page: #16181b; --line: #3a3d42; --muted: #a8a8a8; --mark: #56b4e933; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 2rem auto;
  max-width: 76rem; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 0.6rem; }
table { border-collapse: collapse; margin: 0.8rem 0 1.6rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: 0.3rem; }
th, td { padding: 0.25rem 0.9rem 0.25rem 0; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid var(--line); }
.scroll { overflow-x: auto; }
.note, .legend { color: var(--muted); max-width: 60rem; }
svg { width: 100%; height: auto; display: block; }
.examples td, .examples th { text-align: left; white-space: normal; vertical-align: top; }
.examples .value { text-align: right; white-space: nowrap; }
.examples tr.first td { border-top: 2px solid var(--line); }
.best { background: var(--mark); }
details { margin: 0.5rem 0; } summary { cursor: pointer; }
"""


def build_report(numbers: SystemComparison, tables: Sequence[Table], notes: Sequence[str]) -> str:
    """Return the report as an HTML page, given the tables and notes of the results."""
    names = ", ".join(system.name for system in numbers.systems)
    sentences = quantity(len(numbers.evaluation_set.sources), "sentence")
    sections = [
        (
            "Results",
            _join_tables(tables) + "".join(f'<p class="note">{_text(n)}</p>' for n in notes),
        ),
        ("Differences from the baseline", _draw_differences(numbers)),
        ("Metrics by length", _scroll(comparison_plots.draw_lengths(numbers))),
        ("All pairs of systems", _draw_pairwise(numbers)),
        ("Learning curves", _draw_curves(numbers.systems)),
        ("Where the systems differ most", _list_disagreements(numbers)),
        ("Settings", _list_settings(numbers)),
    ]
    body = "".join(f"<section><h2>{title}</h2>{content}</section>" for title, content in sections if content)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Comparison: {_text(names)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>Comparison of {_text(names)}</h1>"
        f'<p class="note">{sentences}; regard {__version__}</p>{body}</body></html>'
    )


def _text(value: object) -> str:
    return html.escape(str(value))


def _scroll(content: str) -> str:
    return f'<div class="scroll">{content}</div>'


def _join_tables(tables: Sequence[Table]) -> str:
    return "".join(_scroll(table.to_html()) for table in tables)


def _draw_differences(numbers: SystemComparison) -> str:
    legend = (
        f"Value minus that of {_text(numbers.baseline.name)}, with 95 % confidence intervals. Filled circles are "
        "significant after correction."
    )
    return f'{_scroll(comparison_plots.draw_differences(numbers))}<p class="legend">{legend}</p>'


def _draw_pairwise(numbers: SystemComparison) -> str:
    if len(numbers.systems) < 3:
        return ""
    count = len(numbers.systems) * (len(numbers.systems) - 1) // 2
    legend = (
        "Row minus column, with the p-value corrected for all pairs "
        f"({count} per metric). Blue: the row is better; orange: the column is better. Strong colors are significant."
    )
    if numbers.smallest_p_value(count) >= SIGNIFICANT:
        legend += f" With this number of resamples, no corrected p-value can be below {SIGNIFICANT}: use more."
    return f'{_scroll(comparison_plots.draw_pairwise(numbers))}<p class="legend">{legend}</p>'


def _draw_curves(systems: list[System]) -> str:
    """Draw the learning curves of the runs that have any."""
    panels: dict[str, list[curves.Curve]] = {}
    for system in systems:
        try:
            read = curves.read_panels([RunFolder(Path(system.path))]) if system.path else []
        except ModelError:  # a model without its event log
            continue
        for panel in read:
            renamed = [replace(curve, run=system.name) for curve in panel.curves]
            panels.setdefault(panel.name, []).extend(renamed)
    if not panels:
        return ""
    return _scroll(comparison_plots.draw_curves([curves.Panel(name, found) for name, found in panels.items()]))


def _list_disagreements(numbers: SystemComparison) -> str:
    """List the sentences on which the systems differ most, by the first metric."""
    if not all(system.predictions for system in numbers.systems):
        return ""
    metric = numbers.metrics[0]
    found = numbers.find_disagreements(metric, _EXAMPLES)
    if not found:
        return ""
    rows = "".join(_format_disagreement(numbers, metric, disagreement) for disagreement in found)
    legend = f"By the sentence-level {_text(metric.label)}. The best outputs are highlighted."
    return f'<p class="legend">{legend}</p>{_scroll(f"<table class=examples>{rows}</table>")}'


def _format_disagreement(numbers: SystemComparison, metric: Metric, disagreement: Disagreement) -> str:
    line, values = disagreement
    evaluation_set = numbers.evaluation_set
    rows = [("", f"line {line + 1}", describe_source(evaluation_set.sources[line]), "")]
    rows += [("", "reference", reference, "") for reference in evaluation_set.references[line]]
    best = max(values.values()) if metric.higher_is_better else min(values.values())
    for system in numbers.systems:
        value = values[system.name]
        rows.append(("best" if value == best else "", system.name, system.predictions[line], metric.format(value)))
    return "".join(
        f'<tr class="{"first" if index == 0 else mark}"><td>{_text(label)}</td>'
        f'<td dir="auto">{_text(content)}</td><td class="value">{value}</td></tr>'
        for index, (mark, label, content, value) in enumerate(rows)
    )


def _list_settings(numbers: SystemComparison) -> str:
    """List the signatures of the metrics, and the settings in which the runs differ."""
    signatures = [[metric.label, numbers.systems[0].statistics[metric].signature] for metric in numbers.metrics]
    parts = [Table("Signatures", ["metric", "signature"], signatures).to_html()]
    runs = [system for system in numbers.systems if system.settings]
    if runs:
        flat = [_flatten(system.settings) for system in runs]
        keys = list(dict.fromkeys(key for settings in flat for key in settings))
        differing = [key for key in keys if len({settings.get(key, "") for settings in flat}) > 1]
        header = ["setting", *(system.name for system in runs)]
        searches = ["search", *(_describe_search(system) for system in runs)]
        folders = ["run", *(f"{system.path}, step {system.step}" for system in runs)]
        rows = [folders, searches, *([key, *(settings.get(key, "") for settings in flat)] for key in differing)]
        title = "Runs, and the settings in which they differ" if len(runs) > 1 else "Run"
        parts.append(Table(title, header, rows).to_html())
        for system, settings in zip(runs, flat, strict=True):
            table = Table(system.name, ["setting", "value"], [list(item) for item in settings.items()]).to_html()
            parts.append(f"<details><summary>All settings of {_text(system.name)}</summary>{_scroll(table)}</details>")
    return "".join(part if part.startswith("<details") else _scroll(part) for part in parts)


def _describe_search(system: System) -> str:
    changed = system.search.model_dump(exclude_defaults=True) if system.search else {}
    return ", ".join(f"{name} {value}" for name, value in changed.items()) or "greedy"


def _flatten(settings: Any, prefix: str = "") -> dict[str, str]:
    """Return nested settings with dotted names."""
    if not isinstance(settings, dict):
        return {prefix: str(settings)}
    flat: dict[str, str] = {}
    for key, value in settings.items():
        flat |= _flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat
