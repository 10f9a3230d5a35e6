"""Extending a run: more steps, or more patience, than it was started with."""

from regard.errors import ConfigError
from regard.training.folder import RunFolder
from regard.training.settings import TrainingSettings

_OPEN_ENDED = {"none", "inverse_sqrt", "plateau"}
"""Decays of the learning rate that do not depend on the total number of steps."""


def allowed_extensions(folder: RunFolder, before: TrainingSettings, after: TrainingSettings) -> set[str]:
    """The settings that make a run longer and do not change what it has done so far."""
    extended = {f"training.{key}" for key in ("steps", "patience") if getattr(after, key) > getattr(before, key)}
    if "training.steps" in extended and before.decay not in _OPEN_ENDED:
        raise ConfigError(
            f"{folder.path} cannot be extended from {before.steps:,} to {after.steps:,} steps: with "
            f"training.decay={before.decay}, the learning rate of every step depends on training.steps. Start a new "
            f"run from its weights: regard train --from {folder.path} training.steps={after.steps - before.steps} "
            "--out DIR"
        )
    return extended
