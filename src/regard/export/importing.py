"""Import of models of other software as model folders."""

from pathlib import Path

from regard.config import resolve
from regard.errors import ConfigError, ModelError
from regard.export.exporter import write_draft
from regard.export.foreign import ForeignModel
from regard.export.foreign_weights import ForeignWeights
from regard.runs.checkpoints import save_model
from regard.runs.progress import RunProgress, Schedule
from regard.runs.settings import RunSettings
from regard.runs.tensors import first_not_finite


def import_model(model: ForeignModel, out: str | Path) -> Path:
    """Write a model of other software as a model folder, and return the folder.

    Raise ModelError, before anything is written, if the weights are damaged or do not match the configuration.
    """
    foreign = ForeignWeights.read(model.weights, model.config, model.weights_key)
    options, weights = model.convert(foreign)
    foreign.check_all_taken()
    broken = first_not_finite(weights)
    if broken is not None:
        raise ModelError(f"{model.weights}: the tensor {broken} contains NaN or infinity. Copy the file again.")
    try:
        settings = resolve(RunSettings, {**model.settings, "model": options}, {})
    except ConfigError as error:
        raise ModelError(f"{model.path} cannot be imported: {error}") from None
    with write_draft(out) as draft:
        save_model(draft, settings, model.tokenizers, weights, RunProgress({}, Schedule.of(settings.training.steps)))
    return Path(out)
