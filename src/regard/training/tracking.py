"""Experiment tracking: write the metrics of a run for TensorBoard, in addition to `events.jsonl`."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from regard.errors import ConfigError
from regard.runs.directory import Directory
from regard.runs.events import EventWriter
from regard.runs.settings import TrainingSettings


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
    check_installed(training)
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
