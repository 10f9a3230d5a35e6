"""Fine-tuning: the settings of a run that starts from another run's weights. No torch here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.config import resolve
from regard.errors import ModelError
from regard.runs.folder import Checkpoint, RunFolder, open_model
from regard.runs.settings import RunSettings

INIT_FROM = "training.init_from"


def resolve_run(source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any]) -> RunSettings:
    """The settings of a run. If the overrides name a run to start from, its model and tokenizer replace those of the
    source; other overrides apply on top.
    """
    start = overrides.get(INIT_FROM)
    inherited = {} if start is None else inherited_settings(start)
    return resolve(RunSettings, source, {**inherited, **overrides})


def inherited_settings(start: str | Path) -> dict[str, Any]:
    """What a fine-tuned run takes over from the run that it starts from."""
    folder, _ = open_initial(start)
    settings = folder.settings()
    return {name: getattr(settings, name).model_dump(mode="json") for name in ("tokenizer", "model")}


def open_initial(start: str | Path) -> tuple[RunFolder, Checkpoint]:
    """The run to start from, and its best checkpoint."""
    try:
        return open_model(start)
    except ModelError as error:
        raise ModelError(f"{INIT_FROM}: {error}") from None
