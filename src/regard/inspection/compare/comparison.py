"""Comparison: a comparison of systems as text, JSON, Markdown, LaTeX or an HTML report."""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from regard.errors import ConfigError, check_output_folder, check_path
from regard.evaluation.breakdown import GroupValues
from regard.evaluation.comparison import SIGNIFICANT, SeedGroup, System, SystemComparison, Tested
from regard.evaluation.metrics import Interval
from regard.evaluation.settings import Metric
from regard.evaluation.significance import CORRECTION_TITLES
from regard.formatting import format_bytes, quantity, replace_nonfinite, to_json
from regard.inspection.compare.report import build_report
from regard.inspection.compare.tables import Table

FORMAT = 1
"""The version of the JSON document."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """A comparison of systems on the same sentences. `print` shows its tables, and a notebook shows them too.

    Attributes:
        numbers: Values, differences, p-values and variance over seeds.
        batch_size: The batch size with which speed was measured.
        device: The device on which speed was measured; None if no system is a run.

    >>> comparison = regard.compare("runs/dates", "runs/luong", pairs="test.tsv")
    >>> comparison.save("report.html")
    >>> comparison.numbers.differences
    """

    numbers: SystemComparison
    batch_size: int
    device: str | None

    def __repr__(self) -> str:
        names = ", ".join(system.name for system in self.systems)
        return f"Comparison({names}; {quantity(self.sentences, 'sentence')})"

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        notes = "<br>".join(map(html.escape, self.notes))
        return f"{''.join(table.to_html() for table in self.tables)}<p>{notes}</p>"

    @property
    def systems(self) -> list[System]:
        return self.numbers.systems

    @property
    def sentences(self) -> int:
        """The number of sentences of the evaluation set."""
        return len(self.numbers.evaluation_set.sources)

    @property
    def tables(self) -> list[Table]:
        """A table for each metric, one of costs, and one of averages over seeds, if there are any."""
        tables = [self._tabulate_metric(metric) for metric in self.numbers.metrics]
        costs = self._tabulate_costs()
        tables += [costs] if len(costs.header) > 1 else []
        return tables + [self._tabulate_seeds(metric) for metric in self.numbers.metrics if self.numbers.seed_groups]

    def _tabulate_metric(self, metric: Metric) -> Table:
        corrected = self._is_corrected
        header = ["system", _title(metric), "95 % confidence", "difference", "95 % confidence", "p"]
        header += [f"p ({CORRECTION_TITLES[self.numbers.correction]})"] if corrected else []
        rows = []
        for system in self.systems:
            value = metric.format(system.statistics[metric].value)
            row = [system.name, value, format_interval(self.numbers.interval(system, metric), metric.format)]
            if system is self.numbers.baseline:
                row += ["baseline", *("" for _ in header[4:])]
            else:
                row += _format_difference(self.numbers.differences[system.name, metric], metric, corrected=corrected)
            rows.append(row)
        return Table(f"{metric.label} on {quantity(self.sentences, 'sentence')}", header, rows)

    @property
    def _is_corrected(self) -> bool:
        """Whether the p-values of a metric are corrected: a single one needs no correction."""
        return self.numbers.correction != "none" and len(self.systems) > 2

    def _tabulate_costs(self) -> Table:
        """Return a table with the columns for which at least one system has a value."""
        columns: dict[str, tuple[list[float | None], Callable[[float], str]]] = {
            "sentences/s": ([system.sentences_per_second for system in self.systems], _format_rate),
            "tokens/s": ([system.tokens_per_second for system in self.systems], _format_rate),
            "parameters": ([system.parameters for system in self.systems], "{:,.0f}".format),
            "size": ([system.disk_bytes for system in self.systems], format_bytes),
            "attention entropy": ([system.attention_entropy for system in self.systems], "{:.3f}".format),
            "AER": ([system.alignment_error_rate for system in self.systems], "{:.1%}".format),
        }
        shown = {name: column for name, column in columns.items() if any(value is not None for value in column[0])}
        rows = [
            [system.name, *("" if values[row] is None else show(values[row] or 0.0) for values, show in shown.values())]
            for row, system in enumerate(self.systems)
        ]
        return Table("Speed, size and attention", ["system", *shown], rows)

    def _tabulate_seeds(self, metric: Metric) -> Table:
        header = ["system", "seeds", f"{_title(metric)}, mean ± standard deviation"]
        if self.numbers.seed_differences:
            several = len(self.numbers.seed_groups) > 2 and self.numbers.correction != "none"
            p_title = f"p ({CORRECTION_TITLES[self.numbers.correction]})" if several else "p"
            header += ["difference", "95 % confidence", p_title]
        rows = [self._describe_seeds(group, metric, len(header)) for group in self.numbers.seed_groups]
        return Table(f"{metric.label} over seeds", header, rows)

    def _describe_seeds(self, group: SeedGroup, metric: Metric, columns: int) -> list[str]:
        deviation = group.deviation(metric)
        spread = "" if math.isnan(deviation) else f" ± {metric.format(deviation)}"
        row = [group.name, str(len(group.systems)), f"{metric.format(group.mean(metric))}{spread}"]
        tested = self.numbers.seed_differences.get((group.name, metric))
        if tested is not None:
            difference, p_value = tested
            signed = _sign(metric.format)
            row += [signed(difference.value), format_interval(difference.interval, signed), format_p(p_value)]
        elif self.numbers.baseline in group.systems and columns > len(row):
            row.append("baseline")
        return row + [""] * (columns - len(row))

    @property
    def notes(self) -> list[str]:
        """How the numbers were computed."""
        numbers = self.numbers
        notes = [
            f"Difference from {numbers.baseline.name}. p-values: {numbers.test.describe()}.",
            f"Confidence intervals: {numbers.test.resamples:,} bootstrap resamples of the sentences, seed "
            f"{numbers.test.seed}.",
        ]
        if self._is_corrected:
            title = CORRECTION_TITLES[numbers.correction]
            notes.append(f"p-values are corrected for {len(self.systems) - 1} comparisons per metric ({title}).")
        if numbers.smallest_p_value(len(self.systems) - 1) >= SIGNIFICANT:
            notes.append(f"With this number of resamples, no corrected p-value can be below {SIGNIFICANT}: use more.")
        starred = any(tested.significant for tested in numbers.differences.values())
        if starred or any(p_value < SIGNIFICANT for _, p_value in numbers.seed_differences.values()):
            notes.append(f"* p < {SIGNIFICANT}{' after correction' if self._is_corrected else ''}.")
        tests = {difference.test for difference, _ in numbers.seed_differences.values()}
        if tests:
            notes.append(f"Over seeds: {' and '.join(sorted(tests))}.")
        if any(system.tokens_per_second is not None for system in self.systems):
            notes.append(f"Speed was measured in this process, with batches of {self.batch_size} on {self.device}.")
        if any(system.attention_entropy is not None for system in self.systems):
            notes.append("Attention entropy: of cross-attention, divided by log S; 0 is one slot, 1 is uniform.")
        if any(system.alignment_error_rate is not None for system in self.systems):
            notes.append("AER: alignment error rate of the attention that `regard align` uses by default.")
        return notes

    def to_text(self) -> str:
        """Return tables with aligned columns, and notes."""
        return "\n\n".join([*(table.to_text() for table in self.tables), "\n".join(self.notes)])

    def to_markdown(self) -> str:
        tables = [f"**{table.title}**\n\n{table.to_markdown()}" for table in self.tables]
        return "\n\n".join([*tables, "\n".join(f"- {note.replace('*', chr(92) + '*')}" for note in self.notes)])

    def to_latex(self) -> str:
        r"""Return LaTeX tables, which need `\usepackage{booktabs}`. The notes are comments."""
        comments = "\n".join(f"% {note}" for note in self.notes)
        tables = "\n\n".join(table.to_latex() for table in self.tables)
        return f"% Needs \\usepackage{{booktabs}}.\n{comments}\n{tables}"

    def to_html(self) -> str:
        """Return a report as an HTML page that works offline: tables, plots and examples."""
        return build_report(self.numbers, self.tables, self.notes)

    def to_json(self) -> dict[str, Any]:
        """Return all numbers, without the outputs; numbers that are not finite become null."""
        numbers = self.numbers
        document = {
            "format": FORMAT,
            "sentences": self.sentences,
            "baseline": numbers.baseline.name,
            "test": {
                "name": numbers.test.name,
                "resamples": numbers.test.resamples,
                **({"trials": numbers.test.trials} if numbers.test.name == "randomization" else {}),
                "seed": numbers.test.seed,
                "correction": numbers.correction,
            },
            "batch_size": self.batch_size,
            "device": self.device,
            "signatures": {metric.label: self.systems[0].statistics[metric].signature for metric in numbers.metrics},
            "systems": [self._system_to_json(system) for system in self.systems],
            "pairwise": {
                metric.label: [
                    {"systems": [first, second], **_tested_to_json(tested)}
                    for (first, second, tested_metric), tested in numbers.pairwise.items()
                    if tested_metric == metric
                ]
                for metric in numbers.metrics
            },
            "seeds": [self._group_to_json(group) for group in numbers.seed_groups],
        }
        return cast(dict[str, Any], replace_nonfinite(document))

    def _system_to_json(self, system: System) -> dict[str, Any]:
        numbers = self.numbers
        values = {}
        for metric in numbers.metrics:
            tested = numbers.differences.get((system.name, metric))
            values[metric.label] = {
                "value": system.statistics[metric].value,
                "confidence": numbers.interval(system, metric),
                **({} if tested is None else _tested_to_json(tested)),
            }
        groups = numbers.break_down_by_length(system)
        return {
            "name": system.name,
            "run": system.path,
            "step": system.step,
            "seed": system.seed,
            "search": None if system.search is None else system.search.model_dump(mode="json"),
            "values": values,
            "sentences_per_second": system.sentences_per_second,
            "tokens_per_second": system.tokens_per_second,
            "parameters": system.parameters,
            "disk_bytes": system.disk_bytes,
            "attention_entropy": system.attention_entropy,
            "aer": system.alignment_error_rate,
            "by_length": {"by": numbers.lengths.title, "groups": [_length_to_json(group) for group in groups]},
        }

    def _group_to_json(self, group: SeedGroup) -> dict[str, Any]:
        values = {}
        for metric in self.numbers.metrics:
            entry: dict[str, Any] = {"mean": group.mean(metric), "standard_deviation": group.deviation(metric)}
            tested = self.numbers.seed_differences.get((group.name, metric))
            if tested is not None:
                difference, p_value = tested
                entry |= {
                    "difference": difference.value,
                    "difference_confidence": difference.interval,
                    "p": difference.p_value,
                    "p_corrected": p_value,
                    "test": difference.test,
                }
            values[metric.label] = entry
        names = [system.name for system in group.systems]
        return {"name": group.name, "systems": names, "seeds": [s.seed for s in group.systems], "values": values}

    def save(self, path: str | Path) -> None:
        """Write the comparison to a file: .txt, .json, .md, .tex or .html.

        Raises:
            ConfigError: The path has another extension, or its folder does not exist.
            ArgumentTypeError: The argument is not a path.

        >>> comparison.save("report.html")
        """
        path = check_path(path)
        check_report_path(path, list(_WRITERS))
        path.write_text(_WRITERS[path.suffix](self) + "\n", "utf-8")


_WRITERS: dict[str, Callable[[Comparison], str]] = {
    ".txt": Comparison.to_text,
    ".json": lambda comparison: to_json(comparison.to_json(), ensure_ascii=False),
    ".md": Comparison.to_markdown,
    ".tex": Comparison.to_latex,
    ".html": Comparison.to_html,
}


def check_report_path(path: Path, extensions: Sequence[str]) -> None:
    """Raise ConfigError if a file cannot be written, or its extension is not one of these."""
    if path.suffix not in extensions:
        raise ConfigError(f"{path}: the extension selects the format. Use one of {', '.join(extensions)}.")
    check_output_folder(path)


def _title(metric: Metric) -> str:
    return f"{metric.label} {'↑' if metric.higher_is_better else '↓'}"


def _sign(show: Callable[[float], str]) -> Callable[[float], str]:
    """Return a function that formats a number with its sign."""
    return lambda value: f"{'-' if value < 0 and show(abs(value)) != show(0.0) else '+'}{show(abs(value))}"


def format_interval(interval: Interval, show: Callable[[float], str]) -> str:
    return f"[{show(interval[0])}, {show(interval[1])}]"


def format_p(p_value: float) -> str:
    """Format a p-value; significant ones are marked."""
    text = "<0.001" if p_value < 0.001 else f"{p_value:.3f}"
    return f"{text}{'*' if p_value < SIGNIFICANT else ''}"


def _format_difference(tested: Tested, metric: Metric, *, corrected: bool) -> list[str]:
    difference, signed = tested.difference, _sign(metric.format)
    p_values = [format_p(tested.corrected_p_value)]
    if corrected:
        p_values.insert(0, format_p(difference.p_value).rstrip("*"))
    return [signed(difference.value), format_interval(difference.interval, signed), *p_values]


def _tested_to_json(tested: Tested) -> dict[str, Any]:
    difference = tested.difference
    return {
        "difference": difference.value,
        "difference_confidence": difference.interval,
        "p": difference.p_value,
        "p_corrected": tested.corrected_p_value,
        "p_sacrebleu": difference.sacrebleu_p_value,
        "share_better": difference.share_better,
    }


def _length_to_json(group: GroupValues) -> dict[str, Any]:
    return {"from": group.bucket.start, "to": group.bucket.end, "sentences": group.sentences, "values": group.values}


def _format_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"
