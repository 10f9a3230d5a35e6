"""What `regard data` found, as text for people and as JSON for programs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import click

from regard.data.readers import Row
from regard.data.survey.problems import Finding, locate_problem
from regard.data.survey.statistics import SUBWORDS, bars
from regard.data.survey.survey import Survey
from regard.formatting import quantity, table, to_json
from regard.inspection.heatmap import label

_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}
_WIDEST = 70

Stats = Mapping[str, Any]


def problems_as_text(surveys: Sequence[Survey], shown: Mapping[Finding, Sequence[Row]]) -> str:
    """A block for each kind of problem: how many, where, why, examples, and the remedy."""
    counts = table(["split", "pairs"], [[survey.name, f"{len(survey):,}"] for survey in surveys])
    grouped = [list(group) for _, group in groupby(shown, key=lambda finding: finding.kind)]
    blocks = [_block(findings, shown[findings[0]]) for findings in grouped]
    return "\n\n".join([counts, *blocks, _verdict(grouped)])


def _block(findings: Sequence[Finding], rows: Sequence[Row]) -> str:
    """A kind of problem in all splits that have it; the examples are from the first."""
    kind, severity = findings[0].kind, _worst(findings)
    lines = [f"{click.style(severity, fg=_COLORS[severity], bold=True)}: {kind.description} [{kind.name}]"]
    for place, finding in enumerate(findings):
        share = finding.count / (len(finding.survey) + finding.survey.bad_lines)
        news = finding.details if place == 0 or finding.details != findings[place - 1].details else ""
        lines.append(f"  {finding.survey.name}: {finding.count:,} ({share:.2%}){'; ' if news else ''}{news}")
    for row in rows:
        texts = [_short(text, locate_problem(kind, text)) for text in (row.source, row.target)]
        lines.append(f"  {row.location}  {row.problem or ' → '.join(texts)}")
    lines.append(f"  remedy: {kind.remedy}")
    return "\n".join(lines)


def _worst(findings: Sequence[Finding]) -> str:
    return min((finding.severity for finding in findings), key=list(_COLORS).index)


def _short(text: str, place: int) -> str:
    """The text round a place, such that it cannot upset a terminal: what is not printable is shown by its code."""
    start = max(0, place - _WIDEST // 2) if place >= _WIDEST - 1 else 0
    cut = text[start : start + _WIDEST]
    shown = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in cut)
    return f"“{'…' if start else ''}{shown}{'…' if start + _WIDEST < len(text) else ''}”"


def _verdict(grouped: Sequence[Sequence[Finding]]) -> str:
    if not grouped:
        return "No problems found."
    counts = Counter(_worst(findings) for findings in grouped)
    told = ", ".join(quantity(counts[name], name) for name in _COLORS if counts[name])
    if counts["error"] or counts["warning"]:
        return f"{told}. --fix FOLDER writes a copy without errors and warnings; --ignore NAME leaves a kind out."
    return f"{told}, and nothing that must be mended."


def problems_as_json(surveys: Sequence[Survey], shown: Mapping[Finding, Sequence[Row]]) -> str:
    found = [
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
        for finding, rows in shown.items()
    ]
    pairs = {survey.name: len(survey) for survey in surveys}
    return to_json({"pairs": pairs, "problems": found}, ensure_ascii=False)


def statistics_as_text(splits: Sequence[Stats], overlaps: Sequence[Finding]) -> str:
    """Counts of all splits beside each other, then the two sides of each."""
    header = ["", *(stats["name"] for stats in splits)]
    rows = [
        ["pairs", *(f"{stats['pairs']:,}" for stats in splits)],
        ["lines that are no pair", *(f"{stats['bad_lines']:,}" for stats in splits)],
    ]
    full = [stats for stats in splits if stats["pairs"]]
    if len(full) == len(splits):
        rows += [
            ["distinct pairs", *(f"{stats['distinct_pairs']:,}" for stats in splits)],
            ["distinct sources", *(f"{stats['source']['distinct']:,}" for stats in splits)],
            ["distinct targets", *(f"{stats['target']['distinct']:,}" for stats in splits)],
        ]
    parts = [table(header, rows)]
    parts += [_split_as_text(stats) for stats in full]
    parts += [
        f"{finding.kind.description}: {finding.count:,} of {finding.survey.name}, {finding.details}"
        for finding in overlaps
    ]
    return "\n\n".join(parts)


def _split_as_text(stats: Stats) -> str:
    columns = ["mean", "median", "p95", "p99", "max"]
    metrics = [
        ("source characters", stats["source"]["chars"]),
        ("target characters", stats["target"]["chars"]),
        ("source words", stats["source"]["words"]),
        ("target words", stats["target"]["words"]),
        ("target/source characters", stats["length_ratio"]),
    ]
    rows = [[name, *(_number(values[column]) for column in columns)] for name, values in metrics]
    lengths = table([stats["name"], "mean", "median", "95 %", "99 %", "most"], rows)
    tags = stats.get("tags")
    tagged = [["tags", f"{tags['distinct']:,} different, {tags['mean']:.1f} to a source"]] if tags else []
    sides = _side_as_text("source", stats["source"], tagged), _side_as_text("target", stats["target"])
    return "\n".join([lengths, *sides])


def _side_as_text(name: str, side: Stats, more: Sequence[list[str]] = ()) -> str:
    drawn = side["histogram"]
    last = (len(drawn["counts"]) - 1) * drawn["bin"]
    scripts = [
        f"{script} {share:.1%}" if share >= 0.001 else f"{script} below 0.1%"
        for script, share in list(side["scripts"].items())[:5]
    ]
    outside = [
        f"{f'U+{ord(sign):04X}' if sign.isspace() else label(sign)} {count:,}"
        for sign, count in side["outside_main_script"].items()
    ]
    rows = [
        [f"{name} lengths", f"0 {bars(drawn['counts'])} {last:,}+ {drawn['unit']}"],
        ["scripts", ", ".join(scripts) or "no letters"],
        ["alphabet", f"{side['alphabet']:,} characters"],
        ["outside it", "  ".join(outside) or "nothing but ASCII"],
        ["words", f"{side['total_words']:,}, of which {side['distinct_words']:,} distinct"],
        [
            "tokens",
            f"{side['tokens']['char']:,} characters; about {side['tokens']['subword']:,} subwords of {SUBWORDS:,}",
        ],
        *more,
    ]
    return "\n" + table(["", ""], rows).strip("\n")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"
