"""Tracking: the numbers of a run for TensorBoard too, beside its own `events.jsonl`."""

import os
import socket
import time
from importlib.util import find_spec
from typing import Any

from regard.errors import ConfigError
from regard.runs.directory import Directory
from regard.runs.events import EventListener
from regard.runs.settings import TrainingSettings


def require(training: TrainingSettings) -> None:
    """Refuse to begin where what is to be tracked with is not installed."""
    if training.track == "tensorboard" and find_spec("tensorboard") is None:
        raise ConfigError(
            "training.track=tensorboard: the package tensorboard is not installed. pip install 'regard[track]' "
            "installs it; or leave training.track out: events.jsonl holds the same numbers."
        )


def listeners(training: TrainingSettings, directory: Directory, step: int) -> list[EventListener]:
    """Who else is told of the events of a run that goes on after a step."""
    require(training)
    if training.track != "tensorboard":
        return []
    with directory.subdirectory("tensorboard") as folder:
        return [TensorBoard(folder, step)]


class TensorBoard:
    """Writes each number of an event that has a step, under `event/name`.

    What a killed run wrote after its last checkpoint is marked as overwritten, and TensorBoard shows one story.
    """

    def __init__(self, directory: Directory, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        # The file is ours and stays open: TensorBoard's own writer opens its path again for every record.
        name = f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter(directory.create(name))
        self._add(file_version="brain.Event:2")
        self._add(step=step + 1, session_log=SessionLog(status=SessionLog.START))

    def write(self, event: str, **values: Any) -> None:
        step, seconds = values.pop("step", None), values.pop("time", None)
        numbers = {
            f"{event}/{name}": value
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        if step is not None and numbers:
            listed = [self._summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
            self._add(step=step, wall_time=seconds, summary=self._summary(value=listed))

    def _add(self, wall_time: float | None = None, **fields: Any) -> None:
        found = self._event(wall_time=time.time() if wall_time is None else wall_time, **fields)
        self._records.write(found.SerializeToString())
        self._records.flush()

    def close(self) -> None:
        self._records.close()
