"""The training loop: it trains any model, and can be stopped and resumed at every step."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

from regard.data.corpora import load_corpus
from regard.data.pair_files import resolve_data
from regard.data.preparation import Report
from regard.data.sampler import padding_share
from regard.errors import Interrupted, RankError, RunInUseError
from regard.formatting import quantity
from regard.runs import checkpoints
from regard.runs.callbacks import Callback, CallbackList, ScheduleInfo, StepInfo
from regard.runs.events import EventLog, ProgressDisplay, find_attention
from regard.runs.folder import RunFolder
from regard.runs.progress import RunProgress
from regard.runs.settings import RunSettings
from regard.training.callbacks import Isolation, check_installed, open_trackers
from regard.training.checkpointing import (
    average_last_checkpoints,
    is_before,
    is_save_step,
    save,
    validate_model,
    write_card,
)
from regard.training.distributed import Group, open_group
from regard.training.machine import configure_torch, report_disk_failures
from regard.training.resume import check_settings_unchanged
from regard.training.schedule import build_deadline, steps_per_epoch
from regard.training.signals import StopRequest, stop_on_signals
from regard.training.state import TrainingState, start_training
from regard.training.step import take_step


def train(
    settings: RunSettings,
    folder: RunFolder,
    started: float | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
) -> RunProgress:
    """Train in a folder, or resume. The same command always ends with the same weights.

    A deadline (`training.minutes`) counts from `started`, a reading of `time.monotonic`, by default now. A resumed run
    follows the schedule that it was stopped with.
    """
    with open_group() as group:
        group.broadcast((settings.model_dump(mode="json"), folder.path))
        return _train(group, settings, folder, started, callbacks, quiet=quiet)


def follow(started: float) -> tuple[RunProgress, Path]:
    """Train as a rank other than rank 0, with its settings. Return the progress, and the run folder of rank 0."""
    with open_group() as group:
        settings, path = group.receive()
        return _train(group, RunSettings.model_validate(settings), RunFolder(path), started, (), quiet=True), path


def _train(
    group: Group,
    settings: RunSettings,
    folder: RunFolder,
    started: float | None,
    callbacks: Sequence[Callback],
    *,
    quiet: bool,
) -> RunProgress:
    started = time.monotonic() if started is None else started
    settings = settings.absolute().model_copy(update={"data": resolve_data(settings.data)})
    training = settings.training
    check_installed(training)
    isolation = Isolation(group.choose_device(training.device))
    with (
        stop_on_signals() as stop,
        report_disk_failures(folder, lambda error: error is isolation.failure),
        folder.lock() if group.is_first else nullcontext() as locked,
    ):
        if locked is not None:
            _check_folder(folder, settings, stop)
        corpus = load_corpus(settings.data)
        if locked is not None:
            checkpoints.remove_unfinished(locked)
        display = ProgressDisplay(training.metric, training.log_every, quiet=quiet)
        with configure_torch(training), display:
            state = start_training(settings, locked, corpus, display.print, group)
            _set_deadline(state, started, display.print)
            observers = [display, CallbackList(callbacks, isolation)]
            with _open_callbacks(state, observers) as observed:
                group.wait()  # the ranks may need different times to prepare the data
                stop.deferred = True  # from now on, there is a state to save
                with state.group.watch():
                    run_steps(state, observed, display, stop)
            if locked is not None:
                write_card(state, locked)
            return state.progress


def _check_folder(folder: RunFolder, settings: RunSettings, stop: StopRequest) -> None:
    """Raise an error if the folder contains other files than a run, or a run with other settings."""
    folder.reject_foreign()
    stop.resumed = bool(folder.all_checkpoints())
    if stop.resumed:
        check_settings_unchanged(folder, settings)


@contextmanager
def _open_callbacks(state: TrainingState, observers: Sequence[Callback]) -> Iterator[Callback]:
    """Open the callbacks of a run: the event log, trackers, and observers. Other ranks than the first have none."""
    if state.locked is None:
        yield CallbackList([])
        return
    training, directory = state.settings.training, state.locked.directory
    with (
        EventLog(directory, lambda event: is_before(state, event), training.log_every) as events,
        open_trackers(training, directory, state.progress.step) as trackers,
    ):
        yield CallbackList([events, *trackers, *observers])


def run_steps(state: TrainingState, callbacks: Callback, display: ProgressDisplay, stop: StopRequest) -> None:
    """Train until the schedule ends, validation stops improving, or a signal arrives."""
    training, progress = state.settings.training, state.progress
    if state.locked is not None:
        display.print(_describe_start(state))
    display.start(progress.schedule.end, progress.step)
    # An extended run averages its new last checkpoints.
    progress.average_tried = progress.average_tried and state.is_finished
    if training.init_from is not None and progress.step == 0 and progress.best is None:
        _validate_initial_weights(state, callbacks)
    since, tokens, is_due = time.monotonic(), 0, 0
    while not state.is_finished:
        with _saved_if_a_rank_is_lost(state, callbacks):
            if is_due:
                _meet_deadline(state, callbacks, display.print)
            step_started = time.monotonic()
            loss, step_tokens = take_step(state)
        tokens += step_tokens
        speed = tokens / (time.monotonic() - since)
        rate = state.learning_rate(progress.step)
        callbacks.on_step(StepInfo(progress.step, progress.schedule.end, loss, rate, speed))
        if state.deadline is not None:  # callbacks take time from the deadline too
            state.deadline.note_step(time.monotonic() - step_started)
        if progress.step % training.log_every == 0:
            since, tokens = time.monotonic(), 0
        validates = progress.schedule.validates(progress.step, training.validate_every)
        validation_started = time.monotonic()
        if validates:
            validate_model(state, callbacks)
        moved = _follow_folder(state)
        # Read once: a signal that arrives after the save stops the run after the next step.
        with _saved_if_a_rank_is_lost(state, callbacks):
            stopped_by, is_moved, is_due = state.group.maximum([stop.by or 0, moved is not None, _is_due(state)])
        if stopped_by or is_moved or is_save_step(state, progress.step):
            save(state, callbacks)
            state.group.wait()
        if validates:
            if state.deadline is not None:
                state.deadline.note_validation(time.monotonic() - validation_started)
            since, tokens = time.monotonic(), 0
        if moved is not None:
            raise RunInUseError(
                f"{moved} while it was being trained. The state after step {progress.step:,} is saved there: resume "
                f"with `regard train {state.folder.path}`."
            )
        if is_moved:
            raise Interrupted("Rank 0 has stopped, because the run folder was moved.")
        if stopped_by:
            raise Interrupted(
                f"Stopped by {signal.Signals(stopped_by).name} after step {progress.step:,}; the state is saved. "
                "Run the same command to resume."
            )
    if training.average_checkpoints > 1:
        average_last_checkpoints(state, callbacks, display.print)
    state.release_cuda_graphs()
    if state.locked is not None:
        display.print(_describe_end(state))


@contextmanager
def _saved_if_a_rank_is_lost(state: TrainingState, callbacks: Callback) -> Iterator[None]:
    """If another rank is lost within the block, save the state after the last step, unless it is sharded."""
    try:
        yield
    except RankError as error:
        step = state.progress.step
        if state.locked is None or state.sharded is not None or not step:
            raise
        if not (state.folder.checkpoints / f"step-{step}").exists():
            save(state, callbacks)
        raise RankError(f"{error} The state after step {step:,} is saved.") from None


def _follow_folder(state: TrainingState) -> str | None:
    """If the run folder was moved, use its new path from now on, and return both."""
    if state.locked is None:
        return None
    before, moved = state.locked.path, state.locked.follow()
    return None if moved is None else f"{before} was moved to {moved}"


def _validate_initial_weights(state: TrainingState, callbacks: Callback) -> None:
    """Validate and save the initial weights of a fine-tuned run: they are the best ones until training improves them.

    A run that is stopped before its next checkpoint resumes from this one.
    """
    started = time.monotonic()
    validate_model(state, callbacks)
    save(state, callbacks)
    if state.deadline is not None:
        state.deadline.note_validation(time.monotonic() - started)


def _set_deadline(state: TrainingState, started: float, report: Report) -> None:
    """Set the deadline of a new run, if it has one. A resumed run follows its saved schedule."""
    training, schedule = state.settings.training, state.progress.schedule
    if training.minutes is not None and state.progress.step == 0:
        pairs = len(state.data.train), len(state.data.dev)
        state.deadline = build_deadline(training, started, state.sampler, *pairs)
        if note := state.deadline.describe_loading():
            report(note)
    else:
        torch.set_num_threads(min(schedule.current.threads or training.threads, training.threads))


def _is_due(state: TrainingState) -> bool:
    """Whether it is time to check the schedule. The clocks of ranks differ, so rank 0 decides."""
    return state.group.is_first and state.deadline is not None and state.deadline.is_due()


def _meet_deadline(state: TrainingState, callbacks: Callback, report: Report) -> None:
    """Rescale the schedule if the run would miss its deadline."""
    deadline, progress, training = state.deadline, state.progress, state.settings.training
    assert deadline is not None
    before, step = progress.schedule, progress.step
    if state.group.is_first:
        progress.schedule = deadline.revise(before, step, training.validate_every)
    schedule = progress.schedule = state.group.broadcast(progress.schedule)
    if schedule == before:
        return
    torch.set_num_threads(schedule.current.threads or training.threads)
    if not state.group.is_first:
        return
    assert deadline.seconds_per_step is not None
    seconds = float(f"{deadline.seconds_per_step:.3g}")
    callbacks.on_schedule(ScheduleInfo(step, schedule.end, seconds, torch.get_num_threads()))
    if deadline.is_news(before.end, schedule.end):
        report(f"At {seconds:.2g} s per step, the time allows {quantity(schedule.end, 'step')}.")


def _describe_start(state: TrainingState) -> str:
    progress, training = state.progress, state.settings.training
    if state.is_finished:
        early = progress.step < progress.schedule.end
        how = f"Raise training.patience ({training.patience}) to continue." if early else ""
        return f"{state.folder.path} has already been trained. {how}".rstrip()
    parameters = sum(parameter.numel() for parameter in state.model.parameters())
    start = f"from step {progress.step:,} " if progress.step else ""
    padding = sum(padding_share(state.sampler, lengths) for lengths in state.data.train.epoch_lengths(0).T) / 2
    steps = -(-state.sampler.steps_per_epoch // training.accumulate)
    return (
        f"Training {parameters:,} parameters on {quantity(len(state.data.train), 'pair')} {start}"
        f"in {state.folder.path}, on {state.device}{state.group.describe(state.device)}{state.objective.describe()}. "
        f"An epoch has {quantity(steps, 'step')}; {padding:.0%} of the tokens in batches are padding."
    )


def _describe_end(state: TrainingState) -> str:
    progress, training = state.progress, state.settings.training
    early = ""
    if progress.step < progress.schedule.end:
        early = f"; stopped early after {quantity(progress.validations_since_best, 'validation')} without improvement"
    best = progress.best.describe(training.metric) if progress.best else "not validated"
    which = "average of the last checkpoints" if progress.best_name else f"step {progress.best_step}"
    if progress.best_step == 0:
        which = "the initial weights (step 0)"
    epochs = progress.step / steps_per_epoch(state.sampler, training)
    short = ""
    if training.minutes is not None and epochs < 2:
        seen = (
            f"Each pair was used {epochs:.1f} times"
            if epochs >= 1
            else f"Training used {_percent(epochs)} of the pairs"
        )
        short = f" {seen}: more minutes would improve the model."
    return "\n".join(filter(None, [f"Best model: {which}, {best}{early}.{short}", _describe_attention(state)]))


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "less than 1%"


def _describe_attention(state: TrainingState) -> str:
    """Describe the heads of the best model that do not use their input; empty if there are none."""
    progress = state.progress
    attention = find_attention(state.folder.events, progress.best_step, progress.best_name)
    return attention.describe_dead_heads() if attention is not None else ""
