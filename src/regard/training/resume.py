"""Resuming a run: check that its settings and data have not changed, except for settings that extend the run."""

from collections.abc import Mapping
from typing import Any

from regard.config import differences
from regard.errors import ConfigError, DataError, ModelError
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings, TrainingSettings
from regard.runs.stored_checkpoint import Checkpoint, list_differences
from regard.training.distillation import TEACHER

_OPEN_ENDED = {"none", "inverse_sqrt", "plateau"}
"""Decays of the learning rate that do not depend on the total number of steps."""


def check_settings_unchanged(folder: RunFolder, settings: RunSettings) -> None:
    """Raise `ConfigError` if settings of a run have changed that must stay the same."""
    before = folder.settings().absolute()
    extended = _allowed_extensions(folder, before.training, settings.training)
    changed = {key: values for key, values in differences(before, settings).items() if key not in extended}
    intervals = (before.training.save_every, settings.training.save_every)
    # This setting may change on resume unless it determines which checkpoints are averaged.
    if settings.training.average_checkpoints > 1 and intervals[0] != intervals[1]:
        changed["training.save_every"] = intervals
    _reject_changes(folder, changed)


def check_model_unchanged(folder: RunFolder, checkpoint: Checkpoint, settings: RunSettings) -> None:
    """Raise `ConfigError` if settings of the model have been edited since a checkpoint was saved, and `ModelError` if a
    tokenizer has.
    """
    _reject_changes(folder, checkpoint.find_changed_settings(settings))
    changed = checkpoint.find_changed_tokenizers()
    if changed:
        raise ModelError(
            f"{folder.path} was trained with another tokenizer: {'; '.join(changed)}. Copy the file again from the "
            "original run folder."
        )


def _reject_changes(folder: RunFolder, changed: Mapping[str, tuple[Any, Any]]) -> None:
    if changed:
        raise ConfigError(
            f"{folder.path} was started with different settings: {list_differences(changed)}. Use the same settings to "
            f"resume, choose another folder with --out (out=… in Python), or remove {folder.path} to start again."
        )


def check_data_unchanged(folder: RunFolder, before: dict[str, str], now: dict[str, str]) -> None:
    """Raise `DataError` if the hashes of data files or teachers have changed."""
    # Files may be renamed, but their order is fixed: training files come before dev files.
    if list(before.values()) != list(now.values()):
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)] or list(now)
        only_teachers = all(name.startswith(TEACHER) for name in changed)
        subject, noun = ("weights have", "weights") if only_teachers else ("data has", "data")
        raise DataError(
            f"{' and '.join(changed)}: the {subject} changed since {folder.path} was started. Restore the old {noun} "
            "to resume, or choose another folder with --out (out=… in Python)."
        )


def _allowed_extensions(folder: RunFolder, before: TrainingSettings, after: TrainingSettings) -> set[str]:
    """Return the changed settings that extend a run without affecting the steps it has taken."""
    extended = {f"training.{key}" for key in ("steps", "patience") if getattr(after, key) > getattr(before, key)}
    if "training.steps" in extended and before.minutes is not None:
        raise ConfigError(
            f"{folder.path} was trained for {before.minutes:g} minutes and cannot be extended. Start a new run from "
            f"its weights: regard train --from {folder.path} --minutes {before.minutes:g} --out DIR"
        )
    if "training.steps" in extended and before.decay not in _OPEN_ENDED:
        raise ConfigError(
            f"{folder.path} cannot be extended from {before.steps:,} to {after.steps:,} steps: with "
            f"training.decay={before.decay}, the learning rate of every step depends on training.steps. Start a new "
            f"run from its weights: regard train --from {folder.path} training.steps={after.steps - before.steps} "
            "--out DIR"
        )
    return extended
