"""Train a grid of settings, or search for good ones, and compare the results."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.arguments import check_flag, check_integer, check_type
from regard.cluster.sweep.results import Sweep, summarize
from regard.cluster.sweep.space import SearchSpace, parse_mapping
from regard.cluster.sweep.study import FINALISTS, Plan, SweepState, make_plan, open_sweep
from regard.cluster.sweep.workers import (
    SweepDisplay,
    choose_environments,
    run_in_process,
    run_in_processes,
)
from regard.errors import ArgumentTypeError, ConfigError, DataError
from regard.formatting import quantity
from regard.registry import import_plugins
from regard.runs.folder import RunFolder
from regard.runs.settings import check_overrides

if TYPE_CHECKING:
    from regard.cluster.sweep.tune import Resources
    from regard.evaluation.comparison import System

_MAX_REASONS = 3


def sweep(
    config: str | Path | Mapping[str, Any],
    space: Mapping[str, Any] | SearchSpace,
    overrides: Mapping[str, Any] | None = None,
    *,
    trials: int | None = None,
    seeds: int = 1,
    finalists: int | None = None,
    prune: bool = False,
    workers: int | None = None,
    cluster: str | None = None,
    gpus: float | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    imports: str | Iterable[str] = (),
) -> Sweep:
    """Train a grid of settings, or search for good ones, and compare the results.

    Repeat the call to resume a sweep that was stopped. Without `trials`, every combination of the choices is trained
    with every seed. With `trials`, a search (TPE) proposes this number of combinations, and trains each with the seed
    of the settings. If `seeds` is above 1, the best `finalists` are then trained with `seeds` other seeds. Trials are
    ranked by `training.metric` on the validation data. The test set is used once, at the end, for the finalists. A
    sweep that is extended uses it again, and a note names the trials for which it was used before.

    Args:
        config: The name of a preset, the path of a YAML file or of a run folder, or a mapping of settings.
        space: The settings that vary, by dotted name: a list of choices, or a range as text: `"uniform(0,0.5)"`,
            `"log(1e-4,1e-2)"`, `"int(1,4)"`, `"logint(64,1024)"`. `"int(64,512,64)"` has steps of 64.
        overrides: Settings, with dotted names, that are the same for all trials.
        trials: The number of trials of a search. It is required if there are ranges. A finished search is extended by
            repeating the call with more trials.
        seeds: The number of seeds of each combination of a grid, or of each finalist of a search.
        finalists: The number of trials that are compared on the test set: by default all of a grid, and three of a
            search.
        prune: Whether to stop a trial of a search early if its validations are worse than the median of the others.
        workers: The number of runs that are trained at the same time: by default one or, on a cluster, as many as it
            has room for. Several runs are trained in their own processes: in a script, call `sweep` under
            `if __name__ == "__main__":`.
        cluster: The address of a Ray cluster of which this machine is a part: `HOST:PORT` of its head node, `auto`, or
            `local` to start one on this machine. Each run uses `training.threads` CPUs.
        gpus: On a cluster, the number of GPUs for each run, for example 0.5; by default 1 if the cluster has GPUs.
        out: The folder of the sweep. The default is `sweeps/NAME` for a preset or a file.
        quiet: Whether to print nothing. By default, progress is printed on stderr.
        imports: Plugins to import: modules or .py files that register parts, such as scores and cells.

    Returns:
        The results. `print` shows them. The folder contains `sweep.json`, `importance.svg`, `history.svg` and
        `report.html`.

    Raises:
        ConfigError: A setting or a value is invalid, or the folder contains another sweep.
        ArgumentTypeError: An argument has the wrong type.
        DataError: All runs failed.
        RunInUseError: Another process runs the sweep.
        Interrupted: A signal stopped the sweep. Its state is saved.

    >>> result = regard.sweep("dates", {"model.attention": ["bahdanau", "luong-general"]}, seeds=3)
    >>> result = regard.sweep("dates", {"training.learning_rate": "log(1e-4,1e-2)"}, trials=20, seeds=3)
    >>> result.best.values
    """
    import_plugins(imports)
    check_type("space", space, Mapping | SearchSpace, "a mapping of settings to choices or ranges")
    for name, count in {"trials": trials, "seeds": seeds, "finalists": finalists, "workers": workers}.items():
        if count is not None:
            check_integer(name, count)
    if cluster is not None:
        check_type("cluster", cluster, str, "an address, such as 'auto'")
    if gpus is not None:
        check_type("gpus", gpus, int | float, "a number")
    if not isinstance(config, str | Path | Mapping):
        raise ArgumentTypeError(
            f"config must be a preset, a path or a mapping of settings, not {type(config).__name__}."
        )
    if find_spec("optuna") is None:
        raise ConfigError(
            "A sweep requires the package optuna, which is not installed. Run pip install 'regard[sweep]'."
        )
    source, folder = _locate(config, out)
    plan = make_plan(
        source,
        check_overrides({} if overrides is None else overrides),
        space if isinstance(space, SearchSpace) else parse_mapping(space),
        trials=trials,
        seeds=seeds,
        finalists=finalists,
        prune=check_flag("prune", prune),
    )
    with _open_cluster(cluster, plan, gpus) as resources:
        concurrency = workers or (1 if resources is None else resources.slots)
        with (
            open_sweep(plan, folder, concurrency) as state,
            SweepDisplay(state, quiet=check_flag("quiet", quiet)) as display,
        ):
            display.print(_describe_start(state))
            if plan.trials is not None and concurrency > state.lag:
                display.print(
                    f"This search was started with {quantity(state.lag, 'worker')}. Its proposals depend on this "
                    f"number, so it uses {state.lag} of {concurrency} workers."
                )
            if resources is not None:
                from regard.cluster.sweep.tune import run_on_cluster

                run_on_cluster(state, resources, concurrency, display)
            elif concurrency == 1:
                run_in_process(state, display)
            else:
                _run_in_processes(state, concurrency, display)
            _check_any_finished(state)
            return summarize(state, lambda system: display.print(_describe_system(system)))


def _open_cluster(address: str | None, plan: Plan, gpus: float | None) -> "AbstractContextManager[Resources | None]":
    """Connect to a cluster, if there is an address."""
    if address is None:
        return nullcontext()
    from regard.cluster.sweep.tune import open_cluster

    training = plan.example.training
    return open_cluster(address, training.threads, 0.0 if training.device == "cpu" else gpus)


def _locate(config: str | Path | Mapping[str, Any], out: str | Path | None) -> tuple[Any, Path]:
    """Return where to read the settings, and the folder of the sweep."""
    if isinstance(config, Mapping):
        if out is None:
            raise ConfigError("Settings passed as a mapping need a folder for the sweep: out='sweeps/…'.")
        return config, Path(out)
    run = RunFolder(Path(config))
    source = run.settings().model_dump(mode="json") if run.exists() else config
    return source, Path(out) if out is not None else Path("sweeps") / Path(config).stem


def _run_in_processes(state: SweepState, workers: int, display: SweepDisplay) -> None:
    """Train in several processes, which share the CPU cores and the GPUs."""
    import torch

    from regard.operating_system import usable_cores

    threads = max(1, usable_cores() // workers)
    if state.settings.training.threads > threads:
        display.print(
            f"training.threads={state.settings.training.threads} is reduced to {threads}, so that "
            f"{quantity(workers, 'worker')} share {quantity(usable_cores(), 'CPU core')}."
        )
        state.limit_threads(threads)
    # If the settings select one of several GPUs, or the CPU, all workers use it.
    gpus = torch.cuda.device_count() if state.settings.training.device in ("auto", "cuda") else 0
    run_in_processes(state, choose_environments(workers, threads, gpus), display)


def _describe_start(state: SweepState) -> str:
    plan = state.plan
    if plan.trials is None:
        what = f"Grid: {quantity(len(state.parameters), 'combination')} × {quantity(plan.seeds, 'seed')}"
    else:
        what = f"Search: {quantity(plan.trials, 'trial')} with seed {state.search_seed}"
        if plan.seeds > 1:
            what += f", then the best {plan.finalists or FINALISTS} with {plan.seeds} other seeds"
    done = f"; {quantity(state.done, 'run')} trained before" if state.done else ""
    return f"{what}, in {state.folder}{done}. Validation metric: {state.metric.label}."


def _describe_system(system: "System") -> str:
    values = ", ".join(f"{metric.label} {metric.format(result.value)}" for metric, result in system.statistics.items())
    return f"test set, {system.name}: {values}"


def _check_any_finished(state: SweepState) -> None:
    """Raise DataError if all runs failed."""
    if state.finalists:
        return
    reasons = list(dict.fromkeys(state.failures().values()))
    more = f" (and {len(reasons) - _MAX_REASONS} other reasons)" if len(reasons) > _MAX_REASONS else ""
    listed = " | ".join(reasons[:_MAX_REASONS])
    raise DataError(f"All {quantity(len(state.failures()), 'run')} of {state.folder} failed: {listed}{more}")
