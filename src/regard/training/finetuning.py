"""Fine-tuning: the settings of a run that starts from the weights of another run. This module does not need torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.config import resolve
from regard.errors import ModelError
from regard.runs.folder import RunFolder, open_model
from regard.runs.settings import RunSettings
from regard.runs.stored_checkpoint import Checkpoint

INIT_FROM = "training.init_from"
ACCEPT_CHANGES = "training.accept_changes"


def resolve_run(source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any]) -> RunSettings:
    """Resolve the settings of a run.

    If the overrides name an initial run, its model and tokenizer replace those of `source`. The other overrides are
    applied last.
    """
    init_from = overrides.get(INIT_FROM)
    inherited = {} if init_from is None else read_inherited_settings(overrides)
    return resolve(RunSettings, source, {**inherited, **overrides})


def read_inherited_settings(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Read the settings that a fine-tuned run inherits from the initial run that its overrides name: tokenizer and
    model.
    """
    # Validate these overrides first: the run that they name is needed to validate the others. Any corpus will do.
    given = {key: overrides[key] for key in (INIT_FROM, ACCEPT_CHANGES) if key in overrides}
    training = resolve(RunSettings, {"data": "dates"}, given).training
    folder, _ = open_initial_run(str(training.init_from), accept_changes=training.accept_changes)
    settings = folder.settings()
    return {name: getattr(settings, name).model_dump(mode="json") for name in ("tokenizer", "model")}


def open_initial_run(init_from: str | Path, *, accept_changes: bool) -> tuple[RunFolder, Checkpoint]:
    """Return the folder of the initial run, and its best checkpoint."""
    try:
        return open_model(init_from, accept_changes=accept_changes)
    except ModelError as error:
        raise ModelError(f"{INIT_FROM}: {error}") from None
