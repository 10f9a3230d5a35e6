"""Load a trained model from a run folder."""

from collections.abc import Iterable
from pathlib import Path

import torch

from regard.api.model import Model
from regard.arguments import check_device, check_dtype, check_flag
from regard.errors import ArgumentTypeError
from regard.registry import import_plugins
from regard.runs.folder import open_models


def load(
    path: str | Path,
    *others: str | Path,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    imports: str | Iterable[str] = (),
    accept_changes: bool = False,
) -> Model:
    """Load a trained model, or an ensemble of several.

    Args:
        path: A run folder. Its best checkpoint is loaded.
        others: More run folders. The ensemble averages the probabilities that its models predict.
        device: "cpu", "cuda", "cuda:1" or a `torch.device`; by default the GPU if there is one, else the CPU.
        dtype: The dtype of weights and computation: "float32" (the default), "float64", "bfloat16", "float16" or a
            `torch.dtype`.
        imports: Plugins to import: modules or .py files that register parts of the model. A model folder never imports
            code by itself.
        accept_changes: Whether to load a model even if its config.yaml or tokenizers have been edited in a way that
            changes predictions. By default, loading such a model raises ModelError.

    Returns:
        The model, in evaluation mode.

    Raises:
        ModelError: There is no model at a path, or it is damaged or edited, or the models of an ensemble do not match.
        ConfigError: The device or the dtype is not supported.
        ArgumentTypeError: An argument has the wrong type.

    >>> model = regard.load("runs/dates")
    >>> model = regard.load("runs/dates", device="cpu", dtype="float64")
    >>> ensemble = regard.load("runs/dates", "runs/two-minutes")
    """
    import_plugins(imports)
    for model in (path, *others):
        if not isinstance(model, str | Path):
            raise ArgumentTypeError(f"path must be the path of a run folder, not {type(model).__name__}.")
    place = check_device("auto" if device is None else device)
    kind = None if dtype is None else check_dtype(dtype)
    opened = open_models(path, *others, accept_changes=check_flag("accept_changes", accept_changes))
    return Model.from_checkpoints(opened, place).to(dtype=kind)
