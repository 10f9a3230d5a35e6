"""Comparison of systems on the same sentences: values, differences from a baseline, and variance over seeds.

A system is a run, or a list of outputs from anywhere.

R resamples.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.decoding.settings import SearchSettings
from regard.evaluation.breakdown import Grouping, GroupValues, compute_group_values, find_lines, group_by_length
from regard.evaluation.metrics import EvaluationSet, Interval, MetricStatistics, Statistics, percentile_interval
from regard.evaluation.settings import Metric
from regard.evaluation.significance import (
    CorrectionName,
    Difference,
    SeedDifference,
    SignificanceTest,
    compare_over_seeds,
    compare_pair,
    compute_deviation,
    correct,
)
from regard.formatting import to_json

SIGNIFICANT = 0.05
"""Corrected p-values below this level are marked."""


@dataclass(frozen=True, eq=False)
class System:
    """The outputs of a system for an evaluation set, their statistics and, for a run, its costs."""

    name: str
    predictions: list[str]
    statistics: dict[Metric, MetricStatistics]
    path: str | None = None
    """The run folder; None for outputs from elsewhere."""
    step: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    """All settings of the run."""
    search: SearchSettings | None = None
    parameters: int | None = None
    disk_bytes: int | None = None
    """The size of the model on disk, without the optimizer state."""
    sentences_per_second: float | None = None
    tokens_per_second: float | None = None
    attention_entropy: float | None = None
    alignment_error_rate: float | None = None

    @property
    def seed(self) -> int | None:
        return self.settings.get("seed")

    @property
    def settings_except_seed(self) -> str:
        """The settings that runs have in common which differ only in the seed."""
        return to_json({key: value for key, value in self.settings.items() if key not in {"seed", "about"}})


class Tested(NamedTuple):
    """A difference between two systems, with its p-value corrected for the number of comparisons."""

    difference: Difference
    corrected_p_value: float

    @property
    def significant(self) -> bool:
        return self.corrected_p_value < SIGNIFICANT


@dataclass(frozen=True, eq=False)
class SeedGroup:
    """Runs whose settings differ only in the seed."""

    name: str
    systems: list[System]

    def values(self, metric: Metric) -> dict[int, float]:
        """Return the value for each seed."""
        return {system.seed or 0: system.statistics[metric].value for system in self.systems}

    def mean(self, metric: Metric) -> float:
        return statistics.fmean(self.values(metric).values())

    def deviation(self, metric: Metric) -> float:
        """Return the standard deviation over seeds; NaN for a single seed."""
        return compute_deviation(self.values(metric))


class Disagreement(NamedTuple):
    """A line, counted from 0, and the sentence-level value of each system."""

    line: int
    values: dict[str, float]


@dataclass(frozen=True, eq=False)
class SystemComparison:
    """The numbers of a comparison. The systems have distinct names."""

    systems: list[System]
    evaluation_set: EvaluationSet
    metrics: list[Metric]
    baseline: System
    test: SignificanceTest
    correction: CorrectionName

    @cached_property
    def resampled(self) -> dict[tuple[str, Metric], Statistics]:
        """The values on each resample, the same sentences for all systems, by the name of the system and metric."""
        return {
            (system.name, metric): system.statistics[metric].resample(self.test.resamples, self.test.seed)
            for system in self.systems
            for metric in self.metrics
        }

    def interval(self, system: System, metric: Metric) -> Interval:
        """Return the 95 % confidence interval of a value."""
        return percentile_interval(self.resampled[system.name, metric])

    @cached_property
    def differences(self) -> dict[tuple[str, Metric], Tested]:
        """The differences from the baseline. The correction covers the comparisons of one metric."""
        others = [system for system in self.systems if system is not self.baseline]
        return {
            (other.name, metric): tested
            for metric in self.metrics
            for other, tested in zip(
                others, self._test([(self.baseline, other) for other in others], metric), strict=True
            )
        }

    @cached_property
    def pairwise(self) -> dict[tuple[str, str, Metric], Tested]:
        """The difference of each pair of systems, second minus first. The correction covers all pairs of one metric."""
        pairs = list(combinations(self.systems, 2))
        return {
            (first.name, second.name, metric): tested
            for metric in self.metrics
            for (first, second), tested in zip(pairs, self._test(pairs, metric), strict=True)
        }

    def _test(self, pairs: Sequence[tuple[System, System]], metric: Metric) -> list[Tested]:
        """Compare the second system of each pair with the first, and correct the p-values."""
        differences = [
            compare_pair(
                first.statistics[metric],
                second.statistics[metric],
                self.test,
                higher_is_better=metric.higher_is_better,
                resampled=(self.resampled[first.name, metric], self.resampled[second.name, metric]),
            )
            for first, second in pairs
        ]
        corrected = correct([difference.p_value for difference in differences], self.correction)
        return [Tested(difference, p_value) for difference, p_value in zip(differences, corrected, strict=True)]

    def smallest_p_value(self, comparisons: int) -> float:
        """Return the smallest corrected p-value that is possible with this number of resamples or trials."""
        samples = self.test.resamples if self.test.name == "bootstrap" else self.test.trials
        return (comparisons if self.correction == "holm" else 1) / (1 + samples)

    @cached_property
    def seed_groups(self) -> list[SeedGroup]:
        """The runs, grouped by all settings except the seed; empty if no two runs differ only in the seed."""
        by_settings: dict[str, list[System]] = {}
        for system in self.systems:
            if system.settings:
                by_settings.setdefault(system.settings_except_seed, []).append(system)
        # A run that was given twice, or a copy of it, is not another seed.
        distinct = [list({system.seed: system for system in group}.values()) for group in by_settings.values()]
        if all(len(group) == 1 for group in distinct):
            return []
        return [SeedGroup(_name_seeds(group), group) for group in distinct]

    @cached_property
    def seed_differences(self) -> dict[tuple[str, Metric], tuple[SeedDifference, float]]:
        """The differences from the baseline's group over seeds, with corrected p-values, where there are two or more
        seeds.
        """
        groups = self.seed_groups
        baseline = next((group for group in groups if self.baseline in group.systems), groups[0] if groups else None)
        results: dict[tuple[str, Metric], tuple[SeedDifference, float]] = {}
        for metric in self.metrics if baseline else ():
            assert baseline is not None
            tested = {
                group.name: difference
                for group in groups
                if group is not baseline
                and (difference := compare_over_seeds(baseline.values(metric), group.values(metric)))
            }
            corrected = correct([difference.p_value for difference in tested.values()], self.correction)
            for (name, difference), p_value in zip(tested.items(), corrected, strict=True):
                results[name, metric] = difference, p_value
        return results

    @cached_property
    def lengths(self) -> Grouping:
        """The lines, grouped by the length of the source."""
        return group_by_length(self.evaluation_set)

    def break_down_by_length(self, system: System) -> list[GroupValues]:
        """Return the metrics of a system for each group of lengths."""
        return compute_group_values(self.lengths, system.statistics, self.evaluation_set)

    def find_disagreements(self, metric: Metric, count: int) -> list[Disagreement]:
        """Return the lines on which the sentence-level values of the systems differ most.

        Ties are broken by the edit distances of the outputs to the reference, relative to the length.
        """
        values_SN = np.stack([system.statistics[metric].sentence_values for system in self.systems])
        lines = find_lines(self.systems[0].statistics[metric], self.evaluation_set)
        spread_N = np.ptp(values_SN, axis=0)
        order = np.lexsort((-np.ptp(self._measure_errors(lines), axis=0), -spread_N))[:count]
        return [
            Disagreement(lines[row], {system.name: float(values_SN[n, row]) for n, system in enumerate(self.systems)})
            for row in order
            if spread_N[row] > 0
        ]

    def _measure_errors(self, lines: Sequence[int]) -> Statistics:
        """Return the normalized edit distance of each system's output to the first reference, for each of the lines."""
        from rapidfuzz.distance.Levenshtein import normalized_distance

        references = self.evaluation_set.references
        return np.array(
            [
                [normalized_distance(system.predictions[line], references[line][0]) for line in lines]
                for system in self.systems
            ]
        )


def _name_seeds(group: Sequence[System]) -> str:
    """Return the common part of the names of runs with different seeds, or the name of their common folder."""
    common = name_group([system.name for system in group])
    parents = {Path(system.path).absolute().parent.name for system in group if system.path}
    return common or (parents.pop() if len(parents) == 1 else "") or group[0].name


def name_group(names: Sequence[str]) -> str:
    """Return the common part of the names of runs with different seeds; an empty string if it is only `seed`.

    >>> name_group(["dates/seed-0", "dates/seed-1"])
    'dates'
    """
    if len(names) == 1:
        return names[0]
    length = next((n for n, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), None)
    common = min(names, key=len)[:length]
    return re.sub(r"[-_/. ]*(seed)?[-_/. ]*\d*$", "", common)
