"""Tracking: the numbers of a run for TensorBoard too, beside its own `events.jsonl`."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from regard.errors import ConfigError
from regard.training.events import Listener
from regard.training.folder import RunFolder
from regard.training.settings import TrainingSettings


def require(training: TrainingSettings) -> None:
    """Refuse to begin where what is to be tracked with is not installed."""
    if training.track == "tensorboard" and find_spec("tensorboard") is None:
        raise ConfigError(
            "training.track=tensorboard: the package tensorboard is not installed. pip install 'regard[track]' "
            "installs it; or leave training.track out: events.jsonl holds the same numbers."
        )


def listeners(training: TrainingSettings, folder: RunFolder, step: int) -> list[Listener]:
    """Who else is told of the events of a run that goes on after a step."""
    require(training)
    return [TensorBoard(folder.path / "tensorboard", step)] if training.track == "tensorboard" else []


class TensorBoard:
    """Writes each number of an event that has a step, under `event/name`.

    What a killed run wrote after its last checkpoint is marked as overwritten, and TensorBoard shows one story.
    """

    def __init__(self, path: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(path, purge_step=step + 1)

    def write(self, event: str, **values: Any) -> None:
        step, seconds = values.pop("step", None), values.pop("time", None)
        for name, value in values.items():
            if step is not None and isinstance(value, int | float) and not isinstance(value, bool):
                self._writer.add_scalar(f"{event}/{name}", value, step, seconds)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
