"""The reports of `regard data`, as text and as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import click

from regard.data.pair_files import Row
from regard.data.survey.problems import Finding, locate_problem
from regard.data.survey.statistics import SUBWORDS, bars
from regard.data.survey.survey import Survey
from regard.formatting import quantity, table, to_json
from regard.inspection.views.labels import label

_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}
_MAX_WIDTH = 70

Stats = Mapping[str, Any]


def format_problems(surveys: Sequence[Survey], examples: Mapping[Finding, Sequence[Row]]) -> str:
    """Format one block per kind of problem: counts, reason, examples and remedy."""
    counts = table(["split", "pairs"], [[survey.name, f"{len(survey):,}"] for survey in surveys])
    grouped = [list(group) for _, group in groupby(examples, key=lambda finding: finding.kind)]
    blocks = [_format_kind(findings, examples[findings[0]]) for findings in grouped]
    return "\n\n".join([counts, *blocks, _summarize(grouped)])


def _format_kind(findings: Sequence[Finding], rows: Sequence[Row]) -> str:
    """Format one kind of problem, with a line per split that has it; the examples are from the first split."""
    kind, severity = findings[0].kind, _worst_severity(findings)
    lines = [f"{click.style(severity, fg=_COLORS[severity], bold=True)}: {kind.description} [{kind.name}]"]
    previous = ""
    for finding in findings:
        share = finding.count / (len(finding.survey) + finding.survey.bad_lines)
        detail = f"; {finding.details}" if finding.details and finding.details != previous else ""
        lines.append(f"  {finding.survey.name}: {finding.count:,} ({share:.2%}){detail}")
        previous = finding.details
    for row in rows:
        texts = [_excerpt(text, locate_problem(kind, text)) for text in (row.source, row.target)]
        lines.append(f"  {row.location}  {row.problem or ' → '.join(texts)}")
    lines.append(f"  remedy: {kind.remedy}")
    return "\n".join(lines)


def _worst_severity(findings: Sequence[Finding]) -> str:
    return min((finding.severity for finding in findings), key=list(_COLORS).index)


def _excerpt(text: str, index: int) -> str:
    """Return the text around an index, with escape codes for characters that a terminal would interpret."""
    start = max(0, index - _MAX_WIDTH // 2) if index >= _MAX_WIDTH - 1 else 0
    cut = text[start : start + _MAX_WIDTH]
    escaped = "".join(char if char.isprintable() else repr(char)[1:-1] for char in cut)
    return f"“{'…' if start else ''}{escaped}{'…' if start + _MAX_WIDTH < len(text) else ''}”"


def _summarize(grouped: Sequence[Sequence[Finding]]) -> str:
    if not grouped:
        return "No problems found."
    counts = Counter(_worst_severity(findings) for findings in grouped)
    summary = ", ".join(quantity(counts[name], name) for name in _COLORS if counts[name])
    if counts["error"] or counts["warning"]:
        return f"{summary}. --fix FOLDER writes a copy without errors and warnings; --ignore NAME ignores a problem."
    return f"{summary}, no errors or warnings."


def problems_to_json(surveys: Sequence[Survey], examples: Mapping[Finding, Sequence[Row]]) -> str:
    problems = [
        {
            "kind": finding.kind.name,
            "severity": finding.severity,
            "split": finding.survey.name,
            "count": finding.count,
            "description": finding.kind.description,
            "details": finding.details,
            "remedy": finding.kind.remedy,
            "examples": [
                {"location": row.location, "problem": row.problem}
                if row.problem
                else {"location": row.location, "source": row.source, "target": row.target}
                for row in rows
            ],
        }
        for finding, rows in examples.items()
    ]
    pairs = {survey.name: len(survey) for survey in surveys}
    return to_json({"pairs": pairs, "problems": problems}, ensure_ascii=False)


def format_statistics(splits: Sequence[Stats], overlaps: Sequence[Finding]) -> str:
    """Format the counts of all splits in one table, then the source and target of each split."""
    header = ["", *(stats["name"] for stats in splits)]
    rows = [
        ["pairs", *(f"{stats['pairs']:,}" for stats in splits)],
        ["lines without a pair", *(f"{stats['bad_lines']:,}" for stats in splits)],
    ]
    non_empty = [stats for stats in splits if stats["pairs"]]
    if len(non_empty) == len(splits):
        rows += [
            ["distinct pairs", *(f"{stats['distinct_pairs']:,}" for stats in splits)],
            ["distinct sources", *(f"{stats['source']['distinct']:,}" for stats in splits)],
            ["distinct targets", *(f"{stats['target']['distinct']:,}" for stats in splits)],
        ]
    parts = [table(header, rows)]
    parts += [_format_split(stats) for stats in non_empty]
    for finding in overlaps:
        details = f", {finding.details}" if finding.details else ""
        parts.append(f"{finding.kind.description}: {finding.count:,} of {finding.survey.name}{details}")
    return "\n\n".join(parts)


def _format_split(stats: Stats) -> str:
    columns = ["mean", "median", "p95", "p99", "max"]
    distributions = [
        ("source characters", stats["source"]["chars"]),
        ("target characters", stats["target"]["chars"]),
        ("source words", stats["source"]["words"]),
        ("target words", stats["target"]["words"]),
        ("target/source characters", stats["length_ratio"]),
    ]
    rows = [[name, *(_format_number(values[column]) for column in columns)] for name, values in distributions]
    lengths = table([stats["name"], "mean", "median", "p95", "p99", "max"], rows)
    tags = stats.get("tags")
    tag_rows = [["tags", f"{tags['distinct']:,} distinct, {tags['mean']:.1f} per source"]] if tags else []
    sides = _format_side("source", stats["source"], tag_rows), _format_side("target", stats["target"])
    return "\n".join([lengths, *sides])


def _format_side(name: str, side: Stats, extra_rows: Sequence[list[str]] = ()) -> str:
    histogram = side["histogram"]
    last = (len(histogram["counts"]) - 1) * histogram["bin"]
    scripts = [
        f"{script} {share:.1%}" if share >= 0.001 else f"{script} below 0.1%"
        for script, share in list(side["scripts"].items())[:5]
    ]
    outside = [
        f"{f'U+{ord(char):04X}' if char.isspace() else label(char)} {count:,}"
        for char, count in side["outside_main_script"].items()
    ]
    rows = [
        [f"{name} lengths", f"0 {bars(histogram['counts'])} {last:,}+ {histogram['unit']}"],
        ["scripts", ", ".join(scripts) or "no letters"],
        ["alphabet", f"{side['alphabet']:,} characters"],
        ["outside main script", "  ".join(outside) or "none except ASCII"],
        ["words", f"{side['total_words']:,}, of which {side['distinct_words']:,} distinct"],
        [
            "tokens",
            f"{side['tokens']['char']:,} characters; about {side['tokens']['subword']:,} subwords with a vocabulary of "
            f"{SUBWORDS:,}",
        ],
        *extra_rows,
    ]
    return "\n" + table(["", ""], rows).strip("\n")


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"
