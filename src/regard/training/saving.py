"""Validating and saving a run in training, and averaging its last checkpoints."""

import contextlib
from typing import Any

from regard.data.preparation import Report
from regard.evaluation.attention_statistics import diagnose_attention
from regard.evaluation.validation import validate
from regard.formatting import quantity
from regard.runs import checkpoints
from regard.runs.callbacks import Callback, SaveInfo, ValidationInfo
from regard.runs.folder import Checkpoint
from regard.training.averaging import averaged_weights
from regard.training.state import TrainingState


def validate_model(state: TrainingState, callbacks: Callback) -> None:
    """Score the model, or the moving average of its weights, and note whether it has improved."""
    training, progress = state.settings.training, state.progress
    with state.average.applied_to(state.model) if state.average is not None else contextlib.nullcontext():
        improved = _score(state, callbacks)
    if improved:
        progress.validations_since_best = progress.plateau_validations = 0
        return
    progress.validations_since_best += 1
    progress.plateau_validations += 1
    if training.decay == "plateau" and progress.plateau_validations >= training.plateau_patience:
        progress.plateau_validations, progress.lr_reductions = 0, progress.lr_reductions + 1


def _score(state: TrainingState, callbacks: Callback, average: str | None = None) -> bool:
    """Score the model with its present weights. Return whether it is the best so far."""
    progress, training = state.progress, state.settings.training
    dev = state.data.dev.first(training.validation_pairs)
    values = validate(state.predictor, dev, training.metrics, training.validation_search)
    attention = None
    if state.diagnosed_pairs is not None:
        attention = diagnose_attention(state.predictor, state.diagnosed_pairs)
    state.model.train()
    improved = values.better_than(progress.best, training.metric)
    if improved:
        progress.best, progress.best_step, progress.best_name = values, progress.step, average
    callbacks.on_validation(ValidationInfo(progress.step, values, improved, average, attention))
    return improved


def is_save_step(state: TrainingState, step: int) -> bool:
    """Whether an uninterrupted run is saved after this step."""
    training, schedule = state.settings.training, state.progress.schedule
    return step > 0 and any(schedule.reaches(step, every) for every in (training.validate_every, training.save_every))


def save(state: TrainingState) -> SaveInfo:
    """Save the state, and remove checkpoints that are not needed any more."""
    training, progress = state.settings.training, state.progress
    averaged = state.average.weights if state.average is not None else None
    checkpoint = checkpoints.save(state.locked, state.model, state.optimizer, progress, averaged)
    keep = max(training.keep_checkpoints, training.average_checkpoints)
    checkpoints.prune(state.locked, keep, progress.best_step, lambda step: is_save_step(state, step))
    return SaveInfo(progress.step, checkpoint.path)


def is_before(state: TrainingState, event: dict[str, Any]) -> bool:
    """Whether an event precedes the state. The average of checkpoints is validated after the last step."""
    step: int = event.get("step", 0)
    progress = state.progress
    return step < progress.step or (step == progress.step and (progress.average_tried or "of" not in event))


def average_last_checkpoints(state: TrainingState, callbacks: Callback, report: Report) -> None:
    """Average the weights of the last checkpoints, and use the average if it validates better than each of them."""
    progress = state.progress
    if progress.average_tried:
        _restore_average(state)
        return
    last = _last_checkpoints(state)
    report(f"Average of the last {quantity(len(last), 'checkpoint')}:")
    progress.average_tried = True
    with averaged_weights(state.model, last):
        if _score(state, callbacks, f"average-{progress.step}"):
            saved = checkpoints.save_average(state.locked, state.model, progress)
            callbacks.on_save(SaveInfo(progress.step, saved.path))
    callbacks.on_save(save(state))


def _restore_average(state: TrainingState) -> None:
    """Compute the average again if it was lost or damaged."""
    name = state.progress.best_name
    if name is not None and Checkpoint(state.folder.checkpoints / name).find_problem() is not None:
        with averaged_weights(state.model, _last_checkpoints(state)):
            checkpoints.save_average(state.locked, state.model, state.progress)


def _last_checkpoints(state: TrainingState) -> list[Checkpoint]:
    """The checkpoints to average: the same ones, whether or not the run was interrupted and saved at other steps."""
    regular = (entry for entry in state.folder.all_checkpoints() if is_save_step(state, entry.step))
    valid = [entry for entry in regular if entry.find_problem() is None]
    return valid[: state.settings.training.average_checkpoints]
