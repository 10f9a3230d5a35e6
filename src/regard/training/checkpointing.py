"""Validating and saving a run in training, averaging its last checkpoints, and its model card."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from torch import Tensor, nn

from regard.config import to_yaml
from regard.data.preparation import Report
from regard.evaluation.attention_diagnostics import AttentionDiagnostics
from regard.evaluation.attention_statistics import diagnose_attention
from regard.evaluation.settings import MetricValues
from regard.evaluation.validation import validate
from regard.formatting import quantity
from regard.runs import checkpoints
from regard.runs.callbacks import Callback, SaveInfo, ValidationInfo
from regard.runs.directory import LockedFolder
from regard.runs.stored_checkpoint import Checkpoint
from regard.runs.tensors import read_tensors
from regard.training.distributed import unshard
from regard.training.state import TrainingState

log = logging.getLogger(__name__)


def validate_model(state: TrainingState, callbacks: Callback) -> None:
    """Score the model, or the moving average of its weights, and note whether it has improved."""
    training, progress = state.settings.training, state.progress
    with state.average.applied_to(state.model) if state.average is not None else contextlib.nullcontext():
        if state.sharded is not None:
            weights = unshard(state.model.state_dict(), keep=state.group.is_first)
            if state.group.is_first:
                state.predictor.model.load_state_dict(weights)
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
    values, attention = _validate(state)
    improved = values.better_than(progress.best, training.metric)
    if improved:
        progress.best, progress.best_step, progress.best_name = values, progress.step, average
    callbacks.on_validation(ValidationInfo(progress.step, values, improved, average, attention))
    return improved


def _validate(state: TrainingState) -> tuple[MetricValues, AttentionDiagnostics | None]:
    """Compute the metrics on rank 0, and the statistics of its attention weights."""
    if not state.group.is_first:
        received: tuple[MetricValues, AttentionDiagnostics | None] = state.group.receive()
        return received
    training = state.settings.training
    dev = state.data.dev.first(training.validation_pairs)
    values = validate(state.predictor, dev, training.metrics, training.validation_search)
    attention = None
    if state.diagnosed_pairs is not None:
        attention = diagnose_attention(state.predictor, state.diagnosed_pairs)
    state.predictor.model.train()
    return state.group.broadcast((values, attention))


def is_save_step(state: TrainingState, step: int) -> bool:
    """Whether an uninterrupted run is saved after this step."""
    training, schedule = state.settings.training, state.progress.schedule
    return step > 0 and any(schedule.reaches(step, every) for every in (training.validate_every, training.save_every))


def save(state: TrainingState, callbacks: Callback | None = None) -> None:
    """Save the state, and remove checkpoints that are not needed any more. Only rank 0 does so."""
    training, progress = state.settings.training, state.progress
    averaged = state.average.weights if state.average is not None else None
    tensors = checkpoints.collect_state(state.model, state.optimizer, averaged)
    if state.sharded is not None:
        tensors = checkpoints.SavedTensors(*(unshard(part, keep=state.group.is_first) for part in tensors))
    if state.locked is None:
        return
    checkpoint = checkpoints.save(state.locked, state.settings, tensors, progress)
    keep = max(training.keep_checkpoints, training.average_checkpoints)
    checkpoints.prune(state.locked, keep, progress.best_step, lambda step: is_save_step(state, step))
    if callbacks is not None:
        callbacks.on_save(SaveInfo(progress.step, checkpoint.path))


def is_before(state: TrainingState, event: dict[str, Any]) -> bool:
    """Whether an event precedes the state. The average of checkpoints is validated after the last step."""
    step: int = event.get("step", 0)
    progress = state.progress
    if step == progress.step == 0 and progress.best is None:  # the initial weights were validated, but not saved
        return False
    return step < progress.step or (step == progress.step and (progress.average_tried or "of" not in event))


def average_last_checkpoints(state: TrainingState, callbacks: Callback, report: Report) -> None:
    """Average the weights of the last checkpoints, and use the average if it validates better than each of them."""
    progress = state.progress
    if progress.average_tried:
        if state.locked is not None:
            _restore_average(state)
        return
    progress.average_tried = True
    if state.locked is None:
        _score(state, callbacks, f"average-{progress.step}")
        save(state, callbacks)
        return
    last = _choose_checkpoints(state, report)
    with averaged_weights(state.predictor.model, last):
        if _score(state, callbacks, f"average-{progress.step}"):
            saved = checkpoints.save_average(state.locked, state.settings, state.predictor.model, progress)
            callbacks.on_save(SaveInfo(progress.step, saved.path))
    save(state, callbacks)


def _choose_checkpoints(state: TrainingState, report: Report) -> list[Checkpoint]:
    """Return the checkpoints to average, and log a warning for each one that is damaged."""
    last, problems = _last_checkpoints(state)
    for problem in problems:
        log.warning(
            "%s. The average of the last %s is computed without it, so the result differs from that of an undamaged "
            "run.",
            problem,
            quantity(len(last) + len(problems), "checkpoint"),
        )
    report(f"Average of the last {quantity(len(last), 'checkpoint')}:")
    return last


def _restore_average(state: TrainingState) -> None:
    """Compute the average again if it was lost or damaged."""
    name = state.progress.best_name
    if name is None or (damage := Checkpoint(state.folder.checkpoints / name).find_problem()) is None:
        return
    last, problems = _last_checkpoints(state)
    if problems:
        log.warning(
            "%s. The average cannot be computed again: %s. Copy the checkpoints again from the original run folder.",
            damage,
            "; ".join(problems),
        )
        return
    with averaged_weights(state.predictor.model, last):
        assert state.locked is not None
        checkpoints.save_average(state.locked, state.settings, state.predictor.model, state.progress)


def _last_checkpoints(state: TrainingState) -> tuple[list[Checkpoint], list[str]]:
    """Return the valid checkpoints to average, and the problems of the others.

    The steps are those of regular saves, so they do not depend on interruptions. A damaged checkpoint is not replaced
    by an older one.
    """
    saved_steps = (step for step in range(state.progress.step, 0, -1) if is_save_step(state, step))
    steps = islice(saved_steps, state.settings.training.average_checkpoints)
    last = [Checkpoint(state.folder.checkpoints / f"step-{step}") for step in steps]
    problems = {entry: problem for entry in last if (problem := entry.find_problem()) is not None}
    return [entry for entry in last if entry not in problems], list(problems.values())


def average_weights(checkpoints: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """Average the weights of checkpoints. Tensors that are not floating-point are those of the first checkpoint."""
    total: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        for name, tensor in read_tensors(checkpoint, "model.safetensors").items():
            if name not in total:
                total[name] = tensor.double() if tensor.is_floating_point() else tensor
            elif tensor.is_floating_point():
                total[name] += tensor.double()
    return {
        name: (tensor / len(checkpoints)).float() if tensor.is_floating_point() else tensor
        for name, tensor in total.items()
    }


@contextmanager
def averaged_weights(model: nn.Module, checkpoints: Sequence[Checkpoint]) -> Iterator[None]:
    """Within the context, the model has the averaged weights of the checkpoints."""
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(average_weights(checkpoints), strict=False)  # tied weights are stored once
    try:
        yield
    finally:
        model.load_state_dict(weights)


def write_card(state: TrainingState, folder: LockedFolder) -> None:
    """Write the model card, a summary of the run in Markdown."""
    settings, progress = state.settings, state.progress
    parameters = sum(parameter.numel() for parameter in state.model.parameters())
    best = progress.best
    values = best.describe(settings.training.metric) if best else "–"
    signatures = "\n".join(f"- {label}: `{text}`" for label, text in best.signatures.items()) if best else "–"
    text = f"""# {folder.path.name}

{settings.true_about or "A model trained with regard."}

| | |
|---|---|
| parameters | {parameters:,} |
| steps | {progress.step:,} |
| best checkpoint | {progress.best_name or f"step-{progress.best_step}"} |
| validation | {values} |
| data | {", ".join(f"{name} (SHA-256 {digest})" for name, digest in progress.data.items())} |

Predict with `regard predict {folder.path} "…"`; draw its attention weights with `regard look {folder.path} "…"`.

## Metric signatures

{signatures}

## Settings

```yaml
{to_yaml(settings)}```
"""
    folder.directory.write("card.md", text.encode())
