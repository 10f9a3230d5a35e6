"""Train the runs of a sweep on this machine: in this process, or in several.

A run is trained as by `regard train`: a run that was killed is resumed in its own folder, and ends with the same
weights. Failures that concern one run, such as a loss that diverges, are outcomes; those that concern all, such as a
full disk, end the sweep.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from regard.cluster.sweep.study import Job, Outcome, Run, SweepState
from regard.config import resolve
from regard.errors import Interrupted, RegardError, ResourceError, RunInUseError, is_disk_failure
from regard.evaluation.settings import Metric
from regard.formatting import shorten
from regard.operating_system import ignore_terminal
from regard.registry import import_plugins
from regard.runs.callbacks import Callback, ValidationInfo
from regard.runs.events import CountDisplay, read_events
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings
from regard.training.signals import stop_on_signals

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

_MAX_REASON = 500


class _WorseThanMedian(Exception):  # noqa: N818 - not an error
    """Raised in a callback to stop a run early."""


class _MedianRule(Callback):
    """Stops a run at a validation if its best value so far is worse than the median of other runs at the same step
    (Golovin et al. 2017).
    """

    def __init__(self, medians: dict[int, float], metric: Metric, validations: dict[int, float]) -> None:
        self._medians, self._metric, self._values = medians, metric, list(validations.values())

    def on_validation(self, info: ValidationInfo) -> None:
        self._values.append(info.metrics.values[self._metric.label])
        median = self._medians.get(info.step)
        sign = 1 if self._metric.higher_is_better else -1
        if median is not None and max(sign * value for value in self._values) < sign * median:
            raise _WorseThanMedian


def train_run(job: Job, path: Path, callbacks: tuple[Callback, ...] = ()) -> Outcome:
    """Train a run, or resume it.

    Raises:
        Interrupted: A signal stopped the training; the state is saved.
        RunInUseError: Another process trains in the folder.
        ResourceError: The disk is full or failed.
    """
    from regard.training import loop

    started = time.monotonic()
    import_plugins(job.imports)
    folder = RunFolder(path)
    settings = resolve(RunSettings, job.settings, {})
    metric = settings.training.metric
    rule = _MedianRule(job.medians, metric, _read_validations(folder, metric)) if job.medians else Callback()
    best, failure, stopped_early = None, None, False
    try:
        best = loop.train(settings, folder, callbacks=(rule, *callbacks), quiet=True).best
    except _WorseThanMedian:
        stopped_early = True
    except (Interrupted, RunInUseError):
        raise
    except ResourceError as error:
        if isinstance(error.__context__, OSError) and is_disk_failure(error.__context__):
            raise
        failure = describe_failure(error)
    except Exception as error:
        failure = describe_failure(error)
    if failure is None and not stopped_early:
        value = None if best is None else best.values[metric.label]
        failure = None if value is not None and abs(value) < float("inf") else f"{metric.label} is {value}"
    best = best if failure is None else None
    validations = _read_validations(folder, metric)
    return Outcome(round(time.monotonic() - started, 3), best, failure, stopped_early, validations)


def describe_failure(error: Exception) -> str:
    """Return the reason for a failure in one line."""
    text = str(error) if isinstance(error, RegardError) else f"{type(error).__name__}: {error}"
    return shorten(" ".join(text.split()), _MAX_REASON)


def _read_validations(folder: RunFolder, metric: Metric) -> dict[int, float]:
    """Return the metric at each step of validation, without that of an average of checkpoints."""
    events = [event for event in read_events(folder.events) if event["event"] == "validation" and "of" not in event]
    return {event["step"]: event[metric.label] for event in events if isinstance(event.get(metric.label), float | int)}


class SweepDisplay:
    """Shows the progress of a sweep on stderr: a progress bar on a terminal, a line for each run elsewhere."""

    def __init__(self, state: SweepState, *, quiet: bool = False) -> None:
        self._display = CountDisplay("run", quiet=quiet)
        self._state = state

    def __enter__(self) -> Self:
        self._display.start(self._state.planned, self._state.done)
        return self

    def __exit__(self, *_: object) -> None:
        self._display.stop()

    def print(self, text: str) -> None:
        self._display.print(text)

    def record(self, run: Run, outcome: Outcome) -> None:
        """Show the outcome of a run, the best trial so far, and the time that is left."""
        state, metric = self._state, self._state.metric
        values = state.plan.space.describe(state.parameters[run.trial])
        what = ", ".join(f"{key}={value}" for key, value in values.items())
        if outcome.best is not None:
            result = f"{metric.label} {metric.format(outcome.best.values[metric.label])}"
        else:
            result = "stopped early" if outcome.stopped_early else f"failed: {outcome.reason}"
        best = self._describe_best()
        line = f"trial {run.trial}, seed {run.seed} ({what}): {result}" if what else f"seed {run.seed}: {result}"
        if self._display.update(total=state.planned, completed=state.done, status=best):
            self.print(line)
        else:
            left = self._display.estimate_left(state.done, state.planned)
            self.print("; ".join(filter(None, (f"run {state.done:,}/{state.planned:,}: {line}", best, left))))

    def _describe_best(self) -> str:
        state = self._state
        ranked = state.rank(state.distinct, state.ranking_seeds)
        if not ranked:
            return ""
        return f"best: trial {ranked[0]}, {state.metric.format(state.mean(ranked[0], state.ranking_seeds))}"


def run_in_process(state: SweepState, display: SweepDisplay) -> None:
    """Train one run after the other in this process."""
    with stop_on_signals() as stop:
        stop.deferred = True
        while due := state.due():
            outcome = train_run(state.job(due[0]), state.folder / due[0].path)
            state.record(due[0], outcome)
            display.record(due[0], outcome)
            if stop.by:
                raise _interrupted(stop.by)


def _interrupted(by: signal.Signals) -> Interrupted:
    return Interrupted(f"Stopped by {by.name}; the state is saved. Run the same command to resume.")


class _Worker(NamedTuple):
    """A process that trains runs, one after the other, and the end of a pipe for jobs and outcomes."""

    process: "SpawnProcess"
    pipe: "connection._ConnectionBase[Any, Any]"


def run_in_processes(state: SweepState, environments: list[dict[str, str]], display: SweepDisplay) -> None:
    """Train runs at the same time, in a process for each of the `environments`, which are environment variables. If a
    process is killed, its run fails, and a new process is started for the next one.
    """
    idle: dict[int, _Worker | None] = dict.fromkeys(range(len(environments)))
    running: dict[Run, tuple[int, _Worker]] = {}
    with stop_on_signals() as stop:
        stop.deferred = True
        try:
            while not stop.by:
                waiting = [run for run in state.due() if run not in running]
                for run, slot in zip(waiting, sorted(idle), strict=False):
                    worker = idle.pop(slot) or _start(environments[slot])
                    running[run] = slot, worker
                    with contextlib.suppress(ConnectionError):  # if the process was killed, no outcome is received
                        worker.pipe.send((state.job(run), state.folder / run.path))
                if not running:
                    return
                ready = connection.wait([worker.pipe for _, worker in running.values()], timeout=0.5)
                for run, (slot, worker) in sorted(running.items()):
                    if worker.pipe in ready:
                        outcome, survives = _receive(worker)
                        del running[run]
                        idle[slot] = worker if survives else None
                        state.record(run, outcome)
                        display.record(run, outcome)
            raise _interrupted(stop.by)
        finally:
            _stop([*(worker for _, worker in running.values()), *filter(None, idle.values())])


def _start(environment: dict[str, str]) -> _Worker:
    context = get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_train_in_worker, args=(environment, other), daemon=True)
    process.start()
    other.close()
    return _Worker(process, pipe)


def _receive(worker: _Worker) -> tuple[Outcome, bool]:
    """Return the outcome of a run, and whether its process is still alive."""
    try:
        result: Outcome | RegardError = worker.pipe.recv()
    except (EOFError, ConnectionError):
        _stop([worker])
        return Outcome(0.0, failure=_describe_exit(worker.process.exitcode)), False
    if isinstance(result, RegardError):
        raise result
    return result, True


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = ", probably because memory ran out" if name == "SIGKILL" else ""
        return f"the process was killed by {name}{hint}"
    return f"the process ended with exit code {code}"


def _stop(workers: Sequence[_Worker]) -> None:
    """Stop processes. Those that are training save their states."""
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join()
        worker.pipe.close()


def _train_in_worker(environment: dict[str, str], pipe: "connection.Connection[Any, Any]") -> None:
    """Train runs in a new process, which has not imported torch yet."""
    os.environ.update(environment)
    ignore_terminal()  # the parent stops its workers
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    logging.getLogger("regard").addHandler(logging.NullHandler())
    while True:
        job, path = pipe.recv()
        try:
            pipe.send(train_run(job, path))
        except RegardError as error:
            with contextlib.suppress(OSError):
                pipe.send(error)
            return  # it ends the sweep


def _exit_with_parent() -> None:
    """End this process when the parent has ended, even if it was killed, so that the run can be resumed."""
    parent: Any = parent_process()
    parent.join()
    os._exit(1)


def choose_environments(workers: int, threads: int, gpus: int) -> list[dict[str, str]]:
    """Return the environment variables of each worker: the number of threads of native libraries, and one of the GPUs
    that this process can use.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = (visible.split(",") if visible else list(map(str, range(gpus))))[:gpus]
    environments = []
    for slot in range(workers):
        gpu = {"CUDA_VISIBLE_DEVICES": names[slot % len(names)]} if names else {}
        environments.append({"OMP_NUM_THREADS": str(threads), **gpu})
    return environments
