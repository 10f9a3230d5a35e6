"""Callbacks: objects that are notified of the progress of a run. The event log, TensorBoard, the progress display and
the callbacks of users are all callbacks.
"""

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from regard.evaluation.attention_diagnostics import AttentionDiagnostics
from regard.evaluation.settings import MetricValues


@dataclass(frozen=True)
class StepInfo:
    """A training step.

    Attributes:
        step: The number of the step, from 1.
        steps: The planned number of steps of the run. With a deadline, it may change during training.
        loss: The average loss per token.
        learning_rate: The learning rate of the step.
        tokens_per_second: The number of target tokens per second since the last log line or validation.
    """

    step: int
    steps: int
    loss: float
    learning_rate: float
    tokens_per_second: float


@dataclass(frozen=True)
class ValidationInfo:
    """A validation.

    Attributes:
        step: The training step after which the model was validated.
        metrics: The values of the metrics: `info.metrics["accuracy"]`.
        best: Whether these values are the best of the run so far.
        average: The name of the checkpoint, `average-N`, if the average of the last checkpoints was validated; else
            None.
        attention: The statistics of the attention weights; None if the model has no attention, or with
            `training.diagnostics=0`.
    """

    step: int
    metrics: MetricValues
    best: bool
    average: str | None = None
    attention: AttentionDiagnostics | None = None


@dataclass(frozen=True)
class SaveInfo:
    """A checkpoint.

    Attributes:
        step: The training step after which it was saved.
        path: The folder of the checkpoint. It is complete and synced to disk.
    """

    step: int
    path: Path


@dataclass(frozen=True)
class ScheduleInfo:
    """A schedule that was rescaled to meet a deadline.

    Attributes:
        step: The training step after which it changed.
        steps: The new number of steps of the run.
        seconds_per_step: The measured time of a step.
        threads: The number of CPU threads for the following steps.
    """

    step: int
    steps: int
    seconds_per_step: float
    threads: int


class Callback:
    """Base class of callbacks: `regard.train(…, callbacks=[MyCallback()])`. The methods do nothing by default.

    A callback observes a run; it cannot change its result. An exception in a callback stops the training and is raised
    by `regard.train`. The last checkpoint remains valid, so the same call resumes the run.

    >>> class Printer(regard.Callback):
    ...     def on_validation(self, info):
    ...         print(info.step, info.metrics["accuracy"])
    """

    def on_step(self, info: StepInfo) -> None:
        """Called after each training step, before a validation or a checkpoint of the same step."""

    def on_validation(self, info: ValidationInfo) -> None:
        """Called after each validation, before the checkpoint of the same step."""

    def on_save(self, info: SaveInfo) -> None:
        """Called after each checkpoint."""

    def on_schedule(self, info: ScheduleInfo) -> None:
        """Called when the number of steps of the run has changed to meet a deadline."""


class CallbackList(Callback):
    """Notifies several callbacks, in order, each within a context."""

    def __init__(
        self,
        callbacks: Iterable[Callback],
        context: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._callbacks, self._context = tuple(callbacks), context

    def on_step(self, info: StepInfo) -> None:
        for callback in self._callbacks:
            with self._context():
                callback.on_step(info)

    def on_validation(self, info: ValidationInfo) -> None:
        for callback in self._callbacks:
            with self._context():
                callback.on_validation(info)

    def on_save(self, info: SaveInfo) -> None:
        for callback in self._callbacks:
            with self._context():
                callback.on_save(info)

    def on_schedule(self, info: ScheduleInfo) -> None:
        for callback in self._callbacks:
            with self._context():
                callback.on_schedule(info)
