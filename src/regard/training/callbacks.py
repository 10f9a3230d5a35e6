"""The callbacks of the user, which observe a run and cannot change its result, and the callback for TensorBoard."""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from regard.errors import ArgumentTypeError, ConfigError
from regard.runs.callbacks import Callback
from regard.runs.directory import Directory
from regard.runs.events import EventWriter
from regard.runs.settings import TrainingSettings

_METHODS = ("on_step", "on_validation", "on_save", "on_schedule")


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Return the callbacks of an argument: one object or several, with any of the methods of `Callback`."""
    if callbacks is None:
        return ()
    several = isinstance(callbacks, Iterable) and not _methods(callbacks)
    return tuple(map(_as_callback, callbacks if several else [callbacks]))


def _as_callback(callback: Any) -> Callback:
    if isinstance(callback, Callback) and not isinstance(callback, type):
        return callback
    methods = _methods(callback)
    if isinstance(callback, type) or not methods:
        remedy = f"Create an instance: {callback.__name__}()." if isinstance(callback, type) else "See regard.Callback."
        raise ArgumentTypeError(
            f"callbacks: {callback!r} is not a callback. A callback is an object with one of the methods "
            f"{', '.join(_METHODS)}. {remedy}"
        )
    return _Adapter(methods)


def _methods(callback: object) -> dict[str, Callable[[Any], object]]:
    found = {name: getattr(callback, name, None) for name in _METHODS}
    return {name: method for name, method in found.items() if callable(method)}


class _Adapter(Callback):
    """A callback that has some of the methods."""

    def __init__(self, methods: dict[str, Callable[[Any], object]]) -> None:
        for name, method in methods.items():
            setattr(self, name, method)


class Isolation:
    """The context in which callbacks of the user are called.

    The random number generators of torch are restored after each call, so that a callback that samples or trains
    another model does not change the run.
    """

    def __init__(self, device: torch.device) -> None:
        self._devices = [device] if device.type == "cuda" else []
        self.failure: BaseException | None = None
        """The exception that a callback raised."""

    @contextmanager
    def __call__(self) -> Iterator[None]:
        try:
            with torch.random.fork_rng(devices=self._devices):
                yield
        except BaseException as error:
            self.failure = error
            raise


def check_installed(training: TrainingSettings) -> None:
    """Raise `ConfigError` if the package for tracking is not installed."""
    if training.track == "tensorboard" and find_spec("tensorboard") is None:
        raise ConfigError(
            "training.track=tensorboard: the package tensorboard is not installed. Install it with "
            "pip install 'regard[track]', or remove training.track: events.jsonl contains the same metrics."
        )


@contextmanager
def open_trackers(training: TrainingSettings, directory: Directory, step: int) -> Iterator[list[EventWriter]]:
    """Open the event writers other than the event log, for a run that starts or resumes after `step`."""
    if training.track != "tensorboard":
        yield []
        return
    with directory.subdirectory("tensorboard") as folder, TensorBoard(folder, step, training.log_every) as board:
        yield [board]


class TensorBoard(EventWriter):
    """Writes each number of an event that has a step, with the tag `event/name`.

    A resumed run repeats the steps after its last checkpoint. A session start event makes TensorBoard discard the
    earlier values of these steps, so that each step has one value.
    """

    def __init__(self, directory: Directory, step: int, log_every: int = 1) -> None:
        super().__init__(log_every)
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        # We open the file and keep it open, because TensorBoard's own writer opens the path for every record.
        name = f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter(directory.create(name))
        self._add(file_version="brain.Event:2")
        self._add(step=step + 1, session_log=SessionLog(status=SessionLog.START))

    def write(self, event: str, **values: Any) -> None:
        step = values.pop("step", None)
        numbers = {
            f"{event}/{name}": value
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        if step is not None and numbers:
            scalars = [self._summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
            self._add(step=step, summary=self._summary(value=scalars))

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._records.flush()

    def close(self) -> None:
        self._records.close()
