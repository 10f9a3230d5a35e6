"""The results of a sweep: a table of its trials, JSON, figures, and a comparison of the finalists on the test set."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cluster.sweep.plots import Point, draw_history, draw_importance
from regard.cluster.sweep.study import Outcome, Run, SweepState
from regard.errors import DataError, ModelError
from regard.formatting import quantity, shorten, to_json
from regard.inspection.compare.tables import Table

if TYPE_CHECKING:
    from regard.evaluation.comparison import System
    from regard.inspection.compare.comparison import Comparison

FORMAT = 1
"""The version of the JSON document."""

RESULTS, REPORT, IMPORTANCE, HISTORY = "sweep.json", "report.html", "importance.svg", "history.svg"

_LONGEST_NAME, _LONGEST_REASON = 60, 100


@dataclass(frozen=True)
class Trial:
    """A trial and its runs.

    Attributes:
        number: The number of the trial, from 0.
        values: The values of the settings that the sweep varies, as text.
        runs: The runs by seed.
        score: The mean of the validation metric over the seeds of the comparison; NaN if all runs failed. For a trial
            that is not a finalist of a search, the value of its only run.
        deviation: The standard deviation over these seeds; NaN for one seed.
    """

    number: int
    values: dict[str, str]
    runs: dict[int, Outcome]
    score: float
    deviation: float

    @property
    def failures(self) -> dict[int, str]:
        """The reason for each failed run, by seed."""
        return {seed: outcome.failure for seed, outcome in self.runs.items() if outcome.failure is not None}


@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """A finished sweep. `print` shows its tables.

    Attributes:
        path: The folder of the sweep. The run of a trial is in `trial-N/seed-S`.
        trials: All trials, best first. The order depends on validation data only.
        comparison: The comparison of the finalists on their test set; None if there is only one run to compare, or no
            test set.
        notes: How the results were computed.
        tables: The tables of the validation results.
        document: The content of sweep.json.
    """

    path: Path
    trials: list[Trial]
    comparison: "Comparison | None"
    notes: list[str]
    tables: list[Table]
    document: dict[str, Any]

    @property
    def best(self) -> Trial:
        """The best trial by validation."""
        return self.trials[0]

    def __repr__(self) -> str:
        return f"Sweep({self.path}; {quantity(len(self.trials), 'trial')})"

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """Return the tables of the sweep, and the first metric of the comparison."""
        tables = [*self.tables, *([] if self.comparison is None else [_select_table(self.comparison)])]
        parts = [f"{table.title}\n{table.to_text()}" for table in tables]
        return "\n\n".join([*parts, "\n".join(self.notes)])

    def to_json(self) -> dict[str, Any]:
        """Return the content of sweep.json."""
        return self.document


def _select_table(comparison: "Comparison") -> Table:
    """Return the table of the first metric: over seeds, if there are several."""
    first = comparison.tables[0]
    table = next((table for table in comparison.tables if table.title.endswith("over seeds")), first)
    return Table(f"Test set: {table.title}", table.header, table.rows)


def shorten_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return the last part of each dotted key, or as many parts as are needed to distinguish them.

    >>> shorten_keys(["model.encoder.hidden", "model.decoder.hidden", "training.steps"])
    {'model.encoder.hidden': 'encoder.hidden', 'model.decoder.hidden': 'decoder.hidden', 'training.steps': 'steps'}
    """
    short = {}
    for key in keys:
        parts = key.split(".")
        names = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        short[key] = next(name for name in names if sum(f".{other}".endswith(f".{name}") for other in keys) == 1)
    return short


def summarize(state: SweepState, report: Callable[["System"], None]) -> Sweep:
    """Evaluate the finalists on the test set, and write all results to the folder of the sweep.

    `report` is called after each evaluated run.
    """
    trials = _list_trials(state)
    importance = state.importance()
    comparison, note = _compare(state, trials, report)
    notes = _describe(state, trials, note)
    tables = _tabulate(state, trials)
    document = _to_document(state, trials, importance, comparison)
    folder = state.folder
    (folder / RESULTS).write_text(to_json(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
    points = _collect_points(state)
    short = shorten_keys(list(state.plan.space.dimensions))
    if points and short:
        draw_history(points, state.metric, folder / HISTORY)
        renamed = {short[key]: share for key, share in importance.items()}
        draw_importance(points, renamed, state.metric, folder / IMPORTANCE)
    if comparison is not None:
        comparison.save(folder / REPORT)
    return Sweep(folder, trials, comparison, notes, tables, document)


def _list_trials(state: SweepState) -> list[Trial]:
    """Return the finalists by their mean over seeds, then the others by their search, then those that failed."""
    finalists = state.rank(state.finalists, state.seeds)
    searched = state.ranking_seeds
    others = [trial for trial in state.rank(state.distinct, searched) if trial not in finalists]
    failed = [trial for trial in state.distinct if trial not in {*finalists, *others}]
    listed = [_summarize_trial(state, trial, state.seeds) for trial in finalists]
    return listed + [_summarize_trial(state, trial, searched) for trial in (*others, *failed)]


def _summarize_trial(state: SweepState, trial: int, seeds: Sequence[int]) -> Trial:
    outcomes = state.outcomes(trial, seeds)
    results = [outcome.best.values[state.metric.label] for outcome in outcomes.values() if outcome.best is not None]
    every = state.outcomes(trial, sorted({state.search_seed, *state.seeds}))
    return Trial(
        trial,
        state.plan.space.describe(state.parameters[trial]),
        every,
        statistics.fmean(results) if results else math.nan,
        statistics.stdev(results) if len(results) > 1 else math.nan,
    )


def _tabulate(state: SweepState, trials: Sequence[Trial]) -> list[Table]:
    """Return the table of a grid, or the tables of the finalists and of all trials of a search."""
    if state.plan.trials is None:
        return [_build_table(state, trials, state.seeds, "Validation")]
    numbers = {trial.number: trial for trial in trials}
    order = state.rank(state.distinct, [state.search_seed])
    order += [trial.number for trial in trials if trial.number not in order]
    search = _build_table(
        state, [numbers[n] for n in order], [state.search_seed], f"Search: validation with seed {state.search_seed}"
    )
    if state.plan.seeds == 1:
        return [search]
    finalists = [trial for trial in trials if trial.number in state.finalists]
    title = f"Finalists: validation with seeds {state.seeds[0]} to {state.seeds[-1]}"
    return [_build_table(state, finalists, state.seeds, title), search]


def _build_table(state: SweepState, trials: Sequence[Trial], seeds: Sequence[int], title: str) -> Table:
    short = shorten_keys(list(state.plan.space.dimensions))
    metric = state.metric
    arrow = "↑" if metric.higher_is_better else "↓"
    several = ", mean ± standard deviation" if len(seeds) > 1 else ""
    header = ["trial", *short.values(), f"{metric.label} {arrow}{several}", "seeds"]
    rows = []
    for trial in trials:
        outcomes = {seed: trial.runs[seed] for seed in seeds if seed in trial.runs}
        results = [o.best.values[metric.label] for o in outcomes.values() if o.best is not None]
        failures = [outcome.reason for outcome in outcomes.values() if outcome.failure]
        text = metric.format(statistics.fmean(results)) if results else ""
        text += f" ± {metric.format(statistics.stdev(results))}" if len(results) > 1 else ""
        text += "stopped early" if any(outcome.stopped_early for outcome in outcomes.values()) else ""
        if failures:
            text = f"{text}; " if text else ""
            text += f"failed: {shorten(failures[0], _LONGEST_REASON)}"
        rows.append([str(trial.number), *(trial.values[key] for key in short), text, f"{len(results)}/{len(seeds)}"])
    return Table(title, header, rows)


def _describe(state: SweepState, trials: Sequence[Trial], note: str) -> list[str]:
    """Describe how the results were computed. `note` is about the test set."""
    plan = state.plan
    selected = f"Trials are ranked by {state.metric.label} on the validation data; the test set is not used for it."
    notes = [selected]
    if plan.trials is not None:
        notes.append(
            f"The search proposed {quantity(len(state.parameters), 'trial')}, of which {len(state.distinct)} are "
            f"different, with seed {state.search_seed}."
        )
        if plan.seeds > 1:
            notes.append("The seeds of the finalists are new: they were selected for the seed of the search.")
    if plan.seeds == 1:
        notes.append("Each trial has one seed, so differences may be due to chance: use --seeds 3 or more.")
    failed = [trial for trial in trials if trial.failures]
    if failed:
        notes.append(f"{quantity(len(failed), 'trial')} failed at least once; {RESULTS} contains the reasons.")
    return [*notes, note]


def _to_document(
    state: SweepState, trials: Sequence[Trial], importance: Mapping[str, float], comparison: "Comparison | None"
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": "grid" if state.plan.trials is None else "search",
        "metric": state.metric.label,
        "space": state.plan.space.to_json(),
        "seeds": state.seeds,
        "search_seed": None if state.plan.trials is None else state.search_seed,
        "lag": state.lag,
        "finalists": [trial.number for trial in trials if trial.number in state.finalists],
        "trials": [_trial_to_json(trial) for trial in trials],
        "importance": dict(importance),
        "test": None if comparison is None else comparison.to_json(),
    }


def _trial_to_json(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "values": trial.values,
        "score": trial.score,
        "standard_deviation": trial.deviation,
        "runs": [
            {"seed": seed, "folder": Run(trial.number, seed).path, **outcome.to_json()}
            for seed, outcome in trial.runs.items()
        ],
    }


def _collect_points(state: SweepState) -> list[Point]:
    """Return each trial with a result, in the order of numbers. A value is a number, or text."""
    seeds = state.ranking_seeds
    short = shorten_keys(list(state.plan.space.dimensions))
    points = []
    for trial in sorted(state.rank(state.distinct, seeds)):
        texts = state.plan.space.describe(state.parameters[trial])
        values = state.plan.space.values(state.parameters[trial])
        shown = {name: values[key] if type(values[key]) in (int, float) else texts[key] for key, name in short.items()}
        points.append(Point(trial, shown, state.mean(trial, seeds)))
    return points


def _compare(
    state: SweepState, trials: Sequence[Trial], report: Callable[["System"], None]
) -> tuple["Comparison | None", str]:
    """Compare the finalists on their test set, best first. Return the comparison, or None, and a note about it."""
    from regard.api.comparing import (
        ComparisonOptions,
        OpenedRun,
        compare_systems,
        make_test,
        read_evaluation_set,
    )
    from regard.arguments import check_device
    from regard.runs.folder import open_model

    finalists = [trial for trial in trials if trial.number in state.finalists]
    runs = {
        Run(trial.number, seed): f"{name}/seed-{seed}"
        for trial, name in zip(finalists, _name_trials(finalists), strict=True)
        for seed in state.seeds
        if seed in trial.runs and trial.runs[seed].best is not None
    }
    if len(runs) < 2:
        [run] = runs
        return None, f"There is one run to compare. Evaluate it with `regard evaluate {state.folder / run.path}`."
    try:
        opened = [OpenedRun(name, *open_model(state.folder / run.path)) for run, name in runs.items()]
        evaluation_set = read_evaluation_set(opened)
    except (DataError, ModelError) as error:
        return None, f"The finalists are not compared on a test set: {error}"
    test = make_test("bootstrap", None, 0)
    options = ComparisonOptions(None, None, test, "holm", 64, check_device("auto"), {}, None)
    note = f"{REPORT} compares the finalists in detail, with significance tests."
    if before := state.record_test(list(runs)):
        note += (
            f" The test set was used before the sweep was extended, for these trials: {', '.join(map(str, before))}. "
            "If you extended the sweep because of those results, use a new test set: "
            "regard compare RUN RUN --pairs FILE."
        )
    return compare_systems(opened, {}, evaluation_set, options, report), note


def _name_trials(trials: Sequence[Trial]) -> list[str]:
    """Return a name for each trial: its values, unless they are long."""
    short = shorten_keys(list(trials[0].values))
    names = [", ".join(f"{short[key]}={value}" for key, value in trial.values.items()) for trial in trials]
    names = [name.replace("/", "∕") for name in names]
    if max(map(len, names)) > _LONGEST_NAME or not short:
        return [f"trial-{trial.number:03d}" for trial in trials]
    return names
