"""The state of a sweep: its trials, the outcome of each run, and which runs can be trained next.

A trial is a combination of values; a run is a trial with a seed, in a folder `trial-N/seed-S`. Everything is stored in
a journal of Optuna, which is appended to atomically, so that a sweep can be killed at any moment.

Every decision is a function of the seed and of results in the order of trial numbers, never of the time at which a run
ends: trial n is proposed from the results of the trials 0 … n − lag, where `lag` is the number of trials that may run
at the same time. Results of later trials are ignored even if they are known.
"""

import math
import os
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from regard.cluster.sweep.space import Range, SearchSpace, Values
from regard.config import differences, resolve
from regard.errors import ConfigError
from regard.evaluation.settings import Metric, MetricValues
from regard.registry import imported_plugins
from regard.regular_files import read_regular
from regard.runs.directory import lock_folder
from regard.runs.folder import RunFolder, resolve_run
from regard.runs.settings import RunSettings, check_overrides
from regard.runs.stored_checkpoint import list_differences

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

JOURNAL = "journal.log"
DECLARATION = "sweep"
"""The user attribute of the study that contains what must stay the same when a sweep is resumed."""

TESTED = "tested"
"""The user attribute of the study that contains the runs of each comparison on the test set."""

FINALISTS = 3
"""The default number of trials of a search that are trained with several seeds."""

_STARTUP = 10
"""The number of trials that are sampled at random before the first proposal of TPE."""

_MIN_REFERENCES = 5
"""The number of finished trials before the first one is stopped early."""


class Run(NamedTuple):
    """A trial with a seed."""

    trial: int
    seed: int

    @property
    def path(self) -> str:
        """The run folder, relative to the folder of the sweep."""
        return f"trial-{self.trial:03d}/seed-{self.seed}"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: with the metrics of its best checkpoint, or with the reason for its failure."""

    seconds: float
    best: MetricValues | None = None
    failure: str | None = None
    stopped_early: bool = False
    """Whether it was stopped because its validations were worse than the median."""
    validations: dict[int, float] = field(default_factory=dict)
    """The metric at each step of validation."""

    @property
    def reason(self) -> str:
        """The first sentence of the reason for a failure."""
        return (self.failure or "").partition(". ")[0]

    def to_json(self) -> dict[str, Any]:
        best = None if self.best is None else self.best.to_json()
        return {**asdict(self), "best": best, "validations": list(self.validations.items())}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Self:
        best = None if state["best"] is None else MetricValues.from_json(state["best"])
        return cls(**{**state, "best": best, "validations": dict(map(tuple, state["validations"]))})


@dataclass(frozen=True)
class Job:
    """What a process needs to train a run. It consists of plain values, so that it can be sent to another machine."""

    run: Run
    settings: dict[str, Any]
    imports: tuple[str, ...]
    medians: dict[int, float]
    """The median of the metric over other trials at each step: a run that is worse is stopped early."""


@dataclass(frozen=True)
class Plan:
    """What a sweep trains.

    Attributes:
        config: All settings, before overrides.
        overrides: Settings that are the same for all trials.
        space: Settings that vary.
        trials: The number of trials of a search; None for a grid.
        seeds: The number of seeds of each trial of a grid, or of each finalist of a search.
        finalists: The number of trials that are compared at the end; None for all of a grid.
        prune: Whether to stop trials of a search whose validations are worse than the median of the others.
    """

    config: dict[str, Any]
    overrides: Values
    space: SearchSpace
    trials: int | None
    seeds: int
    finalists: int | None
    prune: bool

    def resolve(self, values: Values) -> RunSettings:
        """Return the settings of a trial."""
        return resolve_run(self.config, check_overrides({**self.overrides, **values}))

    @property
    def example(self) -> RunSettings:
        """The settings with the first value of each key."""
        return self.resolve({key: dimension.probes[0] for key, dimension in self.space.dimensions.items()})

    def declare(self, lag: int) -> dict[str, Any]:
        """Return what must stay the same when the sweep is resumed."""
        return {
            "settings": self.example.absolute().model_dump(mode="json"),
            "space": self.space.to_json(),
            "kind": "grid" if self.trials is None else "search",
            "prune": self.prune,
            "lag": lag,
        }


class SweepState:
    """The trials and outcomes of a sweep. Only one process changes it."""

    def __init__(self, plan: Plan, folder: Path, study: "optuna.Study") -> None:
        self.plan, self.folder, self._study = plan, folder, study
        self.lag: int = study.user_attrs[DECLARATION]["lag"]
        self.settings = plan.example
        self.metric: Metric = self.settings.training.metric
        self._outcomes = {
            _parse_run(path): Outcome.from_json(outcome)
            for path, outcome in study.user_attrs.items()
            if path not in (DECLARATION, TESTED)
        }
        self.parameters: list[dict[str, Any]] = [trial.params for trial in study.get_trials(deepcopy=False)]
        if plan.trials is None:
            for parameters in list(plan.space.combinations())[len(self.parameters) :]:
                self._add(parameters)

    @property
    def search_seed(self) -> int:
        return self.settings.seed

    @property
    def seeds(self) -> list[int]:
        """The seeds of the comparison. Those of the finalists of a search are new: the seed of the search is one for
        which they were selected, so its results are too good.
        """
        first = self.settings.seed + (0 if self.plan.trials is None or self.plan.seeds == 1 else 1)
        return list(range(first, first + self.plan.seeds))

    @property
    def ranking_seeds(self) -> list[int]:
        """The seeds with which all trials are trained, and ranked: those of a grid, or the seed of a search."""
        return self.seeds if self.plan.trials is None else [self.search_seed]

    @property
    def distinct(self) -> list[int]:
        """The numbers of the trials, without those that repeat the values of an earlier one."""
        return [number for number in range(len(self.parameters)) if self._first(number) == number]

    def _first(self, number: int) -> int:
        """Return the first trial with the same values. Its run is that of all trials with these values."""
        return self.parameters.index(self.parameters[number])

    def outcomes(self, trial: int, seeds: Sequence[int]) -> dict[int, Outcome]:
        """Return the known outcomes of a trial by seed."""
        first = self._first(trial)
        return {seed: self._outcomes[Run(first, seed)] for seed in seeds if Run(first, seed) in self._outcomes}

    def _search_outcome(self, trial: int) -> Outcome | None:
        return self.outcomes(trial, [self.search_seed]).get(self.search_seed)

    def due(self) -> list[Run]:
        """Return the runs that can be trained now, in order. A search proposes new trials here."""
        if self.plan.trials is None:
            runs = [Run(trial, seed) for seed in self.seeds for trial in self.distinct]
        else:
            while self._can_propose():
                self._add(self._propose())
            runs = [Run(trial, self.search_seed) for trial in self.distinct]
            if len(self.parameters) >= self.plan.trials and all(run in self._outcomes for run in runs):
                runs = [Run(trial, seed) for seed in self.seeds for trial in self.finalists]
        return [run for run in runs if run not in self._outcomes]

    @property
    def planned(self) -> int:
        """The number of runs in all, as far as it is known."""
        if self.plan.trials is None:
            return len(self.parameters) * self.plan.seeds
        finals = self.plan.seeds * (self.plan.finalists or FINALISTS) if self.plan.seeds > 1 else 0
        return self.plan.trials + min(finals, self.plan.seeds * self.plan.trials)

    @property
    def done(self) -> int:
        return len(self._outcomes) + len(self.parameters) - len(self.distinct)

    @property
    def finalists(self) -> list[int]:
        """The trials that are compared on the test set: all of a grid, or the best of a search by its validations."""
        ranked = self.rank(self.distinct, self.ranking_seeds)
        return ranked[: self.plan.finalists or (None if self.plan.trials is None else FINALISTS)]

    def rank(self, trials: Sequence[int], seeds: Sequence[int]) -> list[int]:
        """Return the trials that have a result, best first: by the mean of the metric over seeds, then by the loss. A
        trial that failed with a seed comes after those that did not.
        """

        def key(trial: int) -> tuple[float, float, float]:
            outcomes = self.outcomes(trial, seeds).values()
            results = [outcome.best for outcome in outcomes if outcome.best is not None]
            value = statistics.fmean(result.values[self.metric.label] for result in results)
            loss = statistics.fmean(result.loss for result in results)
            failures = len(outcomes) - len(results)
            return failures, -value if self.metric.higher_is_better else value, loss if loss == loss else math.inf

        finished = [
            trial
            for trial in trials
            if any(o.best is not None and not o.stopped_early for o in self.outcomes(trial, seeds).values())
        ]
        return sorted(finished, key=key)

    def failures(self) -> dict[Run, str]:
        return {run: outcome.failure for run, outcome in self._outcomes.items() if outcome.failure is not None}

    def limit_threads(self, threads: int) -> None:
        """Train with at most this number of CPU threads."""
        self.plan = replace(self.plan, overrides={**self.plan.overrides, "training.threads": threads})

    def job(self, run: Run) -> Job:
        settings = self.plan.resolve(self.plan.space.values(self.parameters[run.trial]))
        settings = settings.model_copy(update={"seed": run.seed}).absolute()
        imports = tuple(os.path.abspath(name) if name.endswith(".py") else name for name in imported_plugins())
        return Job(run, settings.model_dump(mode="json"), imports, self._medians(run))

    def record(self, run: Run, outcome: Outcome) -> None:
        """Store the outcome of a run."""
        self._study.set_user_attr(run.path, outcome.to_json())
        self._outcomes[run] = outcome
        self._tell()

    def record_test(self, runs: Sequence[Run]) -> list[int]:
        """Store which runs are compared on the test set. Return the trials of earlier comparisons of other runs."""
        paths = sorted(run.path for run in runs)
        stored: list[list[str]] = self._study.user_attrs.get(TESTED, [])
        if paths not in stored:
            self._study.set_user_attr(TESTED, [*stored, paths])
        return sorted({_parse_run(path).trial for other in stored if other != paths for path in other})

    def _can_propose(self) -> bool:
        assert self.plan.trials is not None
        number = len(self.parameters)
        known = range(max(0, number - self.lag + 1))
        return number < self.plan.trials and all(self._search_outcome(trial) is not None for trial in known)

    def _propose(self) -> dict[str, Any]:
        """Propose the parameters of the next trial with TPE (Bergstra et al. 2011, Watanabe 2023).

        A sampler with a seed of its own is created for each trial, so it has no state to restore. Trials that are not
        in its history count as running: TPE avoids their neighborhood (constant liar).
        """
        import numpy as np
        import optuna

        number = len(self.parameters)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            seed = int(np.random.SeedSequence([self.search_seed, number]).generate_state(1)[0])
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=_STARTUP, multivariate=True, constant_liar=True
            )
        study = optuna.create_study(sampler=sampler, direction=_direction(self.metric))
        study.add_trials([self._recall(trial, known=trial <= number - self.lag) for trial in range(number)])
        return self.plan.space.round(study.ask(self.plan.space.distributions()).params)

    def _recall(self, trial: int, *, known: bool) -> "FrozenTrial":
        """Return a trial for Optuna. One that failed or was stopped early is worse than those that finished."""
        from optuna.trial import TrialState, create_trial

        outcome = self._search_outcome(trial) if known else None
        state, value, validations = TrialState.RUNNING, None, {}
        if outcome is not None and outcome.best is not None and not outcome.stopped_early:
            state, value = TrialState.COMPLETE, outcome.best.values[self.metric.label]
        elif outcome is not None:
            state, validations = TrialState.PRUNED, outcome.validations
        return create_trial(
            state=state,
            value=value,
            params=self.parameters[trial],
            distributions=self.plan.space.distributions(),
            intermediate_values=validations,
        )

    def _medians(self, run: Run) -> dict[int, float]:
        """Return the medians of the trials whose results the proposal of this one depends on."""
        if not self.plan.prune or run.seed != self.search_seed:
            return {}
        outcomes = [self._search_outcome(trial) for trial in range(max(0, run.trial - self.lag + 1))]
        finished = [o.validations for o in outcomes if o is not None and o.best is not None and not o.stopped_early]
        if len(finished) < _MIN_REFERENCES:
            return {}
        steps = sorted({step for validations in finished for step in validations})
        by_step = {step: [validations[step] for validations in finished if step in validations] for step in steps}
        return {step: statistics.median(values) for step, values in by_step.items() if len(values) >= _MIN_REFERENCES}

    def _add(self, parameters: dict[str, Any]) -> None:
        """Store a trial with all its parameters at once."""
        from optuna.trial import TrialState, create_trial

        distributions = self.plan.space.distributions()
        self._study.add_trial(create_trial(state=TrialState.RUNNING, params=parameters, distributions=distributions))
        self.parameters.append(parameters)
        self._tell()

    def _tell(self) -> None:
        """Report results to the study in the journal, for the tools of Optuna."""
        from optuna.trial import TrialState

        seeds = self.ranking_seeds
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            outcomes = list(self.outcomes(trial.number, seeds).values())
            if len(outcomes) < len(seeds):
                continue
            results = [o.best.values[self.metric.label] for o in outcomes if o.best is not None]
            if any(outcome.stopped_early for outcome in outcomes):
                self._study.tell(trial.number, state=TrialState.PRUNED)
            elif len(results) < len(outcomes):
                self._study.tell(trial.number, state=TrialState.FAIL)
            else:
                self._study.tell(trial.number, statistics.fmean(results))

    def importance(self) -> dict[str, float]:
        """Return the importance of each setting for a result among the best quarter, as shares of 1 (PED-ANOVA,
        Watanabe et al. 2023); empty if there are too few results, or if they are all equal.
        """
        import optuna

        trials = self.rank(range(len(self.parameters)), self.ranking_seeds)
        means = {trial: self.mean(trial, self.ranking_seeds) for trial in trials}
        if len(trials) < 4 or len(set(means.values())) < 2 or len(self.plan.space.dimensions) < 2:
            return {}
        study = optuna.create_study(direction=_direction(self.metric))
        distributions = self.plan.space.distributions()
        for trial, mean in means.items():
            study.add_trial(
                optuna.trial.create_trial(value=mean, params=self.parameters[trial], distributions=distributions)
            )
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Optuna, about few trials; the report says how many there are
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
        return found if all(map(math.isfinite, found.values())) and sum(found.values()) > 0 else {}

    def mean(self, trial: int, seeds: Sequence[int]) -> float:
        """Return the mean of the metric over seeds."""
        bests = [outcome.best for outcome in self.outcomes(trial, seeds).values()]
        return statistics.fmean(best.values[self.metric.label] for best in bests if best is not None)


def _direction(metric: Metric) -> Literal["maximize", "minimize"]:
    return "maximize" if metric.higher_is_better else "minimize"


def _parse_run(path: str) -> Run:
    trial, seed = (int(part.rpartition("-")[2]) for part in path.split("/"))
    return Run(trial, seed)


@contextmanager
def open_sweep(plan: Plan, folder: Path, concurrency: int) -> Iterator[SweepState]:
    """Start a sweep in a folder, or resume it. The folder is locked: only one process runs a sweep."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = folder / JOURNAL
    _check_folder(folder)
    with lock_folder(folder):
        _repair(path)
        storage = JournalStorage(JournalFileBackend(str(path), JournalFileOpenLock(str(path))))
        study = optuna.create_study(
            study_name=DECLARATION,
            storage=storage,
            direction=_direction(plan.example.training.metric),
            load_if_exists=True,
        )
        declared = study.user_attrs.get(DECLARATION)
        if declared is None:
            study.set_user_attr(DECLARATION, plan.declare(concurrency))
        else:
            _check_unchanged(folder, declared, plan, len(study.get_trials(deepcopy=False)))
        yield SweepState(plan, folder, study)


def _check_folder(folder: Path) -> None:
    if (folder / JOURNAL).exists() or not folder.exists():
        return
    kind = "a run" if RunFolder(folder).exists() else "other files"
    if not folder.is_dir() or any(name != ".lock" for name in os.listdir(folder)):
        raise ConfigError(f"{folder} is not the folder of a sweep: it contains {kind}. Choose another one with --out.")


def _repair(path: Path) -> None:
    """Remove what a killed process may have left: the lock of the journal, and a line that is not complete."""
    Path(f"{path}.lock").unlink(missing_ok=True)
    if path.exists():
        content = read_regular(path)
        os.truncate(path, content.rfind(b"\n") + 1)


def _check_unchanged(folder: Path, declared: Mapping[str, Any], plan: Plan, trials: int) -> None:
    """Raise ConfigError if the sweep in a folder has other settings or another search space."""
    now = plan.declare(declared["lag"])
    before, space = declared["space"], now["space"]
    changed = {
        key: (before.get(key), space.get(key)) for key in {**before, **space} if before.get(key) != space.get(key)
    }
    changed |= {key: (declared[key], now[key]) for key in ("kind", "prune") if declared[key] != now[key]}
    if not changed:
        old, new = (resolve(RunSettings, tree["settings"], {}) for tree in (declared, now))
        changed = differences(old, new)
    if changed:
        raise ConfigError(
            f"{folder} contains a sweep with different settings: {list_differences(changed)}. Use the same settings to "
            "resume, or choose another folder with --out (out=… in Python)."
        )
    if plan.trials is not None and plan.trials < trials:
        raise ConfigError(
            f"{folder} has {trials} trials already. Use --trials {trials} to resume, or more to extend it."
        )


def make_plan(
    config: Any,
    overrides: Values,
    space: SearchSpace,
    *,
    trials: int | None,
    seeds: int,
    finalists: int | None,
    prune: bool,
) -> Plan:
    """Validate the settings and values of a sweep."""
    keys = space.dimensions
    if any(key in {"seed", "about", "imports"} for key in keys):
        raise ConfigError("A sweep does not vary seed, about or imports. To train with several seeds, use --seeds.")
    metric = next((key for key in keys if key.split(".")[:2] == ["training", "metric"]), None)
    if metric is not None:
        raise ConfigError(f"{metric} cannot vary: results of different metrics cannot be compared. Give one value.")
    if space.has_ranges and trials is None:
        ranges = [key for key, dimension in keys.items() if isinstance(dimension, Range)]
        raise ConfigError(
            f"{ranges[0]} is a range, so the number of trials must be given: --trials N (trials=N in Python)."
        )
    if not keys and trials is not None:
        raise ConfigError("There is nothing to search: --trials needs a setting with several values, such as key=a,b.")
    if trials is not None and trials >= space.size:
        trials = None  # a grid, with each combination once
    if prune and trials is None:
        raise ConfigError("--prune is for a search. A grid is a comparison, so none of its runs is stopped early.")
    tree = resolve(RunSettings, config, {}).model_dump(mode="json")
    plan = Plan(tree, overrides, space, trials, seeds, finalists, prune)
    space.validate(plan.resolve)
    return plan
