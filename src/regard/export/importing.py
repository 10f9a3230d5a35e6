"""Import of Hugging Face Marian models, such as those of OPUS-MT (Tiedemann and Thottingal 2020), as model folders."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as deserialize
from torch import Tensor

from regard.config import resolve
from regard.data.tokens.tokenizers import START
from regard.errors import ConfigError, ModelError
from regard.export.exporter import write_draft
from regard.export.marian import BIAS, EMBEDDINGS, IGNORED, alternate_positions, list_layer_parameters
from regard.export.marian_files import ACTIVATIONS, PICKLE, SETTINGS, MarianConfig, MarianFolder
from regard.regular_files import open_regular, read_regular
from regard.runs.checkpoints import save_model
from regard.runs.progress import RunProgress, Schedule
from regard.runs.settings import RunSettings
from regard.runs.tensors import first_not_finite

_NEVER = -100.0
"""Added to the logit of the start token if Marian has no separate one: e^-100 does not change a sum of float32 numbers
of at least 1.
"""


def import_marian(files: MarianFolder, out: str | Path) -> Path:
    """Write a Marian model as a model folder, and return the folder.

    Raise ModelError, before anything is written, if the weights are damaged or do not match the configuration.
    """
    weights = _convert_weights(_read_weights(files.weights), files)
    broken = first_not_finite(weights)
    if broken is not None:
        raise ModelError(f"{files.weights}: the tensor {broken} contains NaN or infinity. Download the file again.")
    settings = _describe(files, has_bias="decoder.output.bias" in weights)
    with write_draft(out) as draft:
        save_model(draft, settings, files.tokenizers, weights, RunProgress({}, Schedule.of(settings.training.steps)))
    return Path(out)


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        if path.name == PICKLE:
            with open_regular(path) as file:
                tensors = torch.load(file, map_location="cpu", weights_only=True)
        else:
            tensors = deserialize(read_regular(path))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None
    except SafetensorError as error:
        raise ModelError(f"{path} is damaged: {error}. Download it again.") from None
    except Exception as error:  # torch raises errors of many types
        raise ModelError(f"{path} is damaged: {str(error).splitlines()[0]}. Download it again.") from None
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.is_floating_point()
        for name, tensor in tensors.items()
    ):
        raise ModelError(f"{path} does not contain the weights of a model, by name. Download it again.")
    return dict(tensors)


def _convert_weights(tensors: Mapping[str, Tensor], files: MarianFolder) -> dict[str, Tensor]:
    """Return the weights with our names, and with dimensions and tokens in our order."""
    config, path, vocabulary = files.config, files.weights, files.config.vocab_size
    used = set(IGNORED)

    def find(names: tuple[str, ...], shape: tuple[int, ...]) -> Tensor:
        name = next((name for name in names if name in tensors), None)
        if name is None:
            raise ModelError(f"{path} has no tensor {names[0]}, which config.json requires.")
        found = tuple(tensors[name].shape)
        if found != shape:
            raise ModelError(f"{path}: the tensor {name} has the shape {found}, but config.json requires {shape}.")
        used.update(names)
        return tensors[name].float()

    size, order_D, ids_V = config.d_model, alternate_positions(config.d_model), torch.tensor(files.ids)
    weights = {
        name: find(theirs, (vocabulary, size))[ids_V][:, order_D] for name, theirs in EMBEDDINGS[config.tied].items()
    }
    for theirs, ours, shape, axis in list_layer_parameters(
        size, config.encoder_ffn_dim, config.encoder_layers, config.decoder_layers
    ):
        tensor = find((theirs,), shape)
        weights[ours] = tensor if axis is None else tensor.index_select(axis, order_D)
    bias_V = find((BIAS,), (1, vocabulary))[0][ids_V] if BIAS in tensors else torch.zeros(len(files.ids))
    if len(files.ids) > vocabulary:
        bias_V[START] += _NEVER
    if bias_V.any():
        weights["decoder.output.bias"] = bias_V
    unknown = sorted(tensors.keys() - used)
    if unknown:
        raise ModelError(
            f"{path} has tensors that a Marian model does not have, so the model computes something else: "
            f"{', '.join(unknown[:5])}{' …' if len(unknown) > 5 else ''}."
        )
    return weights


def _describe(files: MarianFolder, *, has_bias: bool) -> RunSettings:
    """Return the settings of the imported model."""
    config: MarianConfig = files.config
    model = {
        "kind": "transformer",
        "size": config.d_model,
        "heads": config.encoder_attention_heads,
        "layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "feedforward": config.encoder_ffn_dim,
        "activation": ACTIVATIONS[config.activation_function],
        "tied": config.tied,
        "output_bias": has_bias,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
    }
    try:
        return resolve(RunSettings, {**files.settings, "model": model}, {})
    except ConfigError as error:
        raise ModelError(f"{files.path / SETTINGS} is damaged: {error}") from None
