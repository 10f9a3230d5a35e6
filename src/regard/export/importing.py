"""Import of Hugging Face Marian models, such as those of OPUS-MT (Tiedemann and Thottingal 2020), as model folders."""

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as deserialize
from torch import Tensor

from regard.config import resolve
from regard.data.tokens.sentencepiece import build_tokenizer_of_ids
from regard.data.tokens.tokenizers import SPECIALS, START, Tokenizer, TokenizerPair
from regard.errors import ModelError
from regard.export.exporter import write_draft
from regard.export.marian import BIAS, EMBEDDINGS, IGNORED, alternate_positions, list_layer_parameters
from regard.export.marian_files import ACTIVATIONS, PICKLE, MarianConfig, MarianFolder
from regard.formatting import quantity
from regard.regular_files import open_regular, read_regular
from regard.runs.checkpoints import save_model
from regard.runs.progress import RunProgress, Schedule
from regard.runs.settings import RunSettings
from regard.runs.tensors import first_not_finite

log = logging.getLogger(__name__)

_NEVER = -100.0
"""Added to the logit of the start token if Marian has no separate one: e^-100 does not change a sum of float32 numbers
of at least 1.
"""


def import_marian(files: MarianFolder, out: str | Path) -> Path:
    """Write a Marian model as a model folder, and return the folder.

    Raise ModelError, before anything is written, if the weights are damaged or do not match the configuration.
    """
    ids = _order_tokens(files)
    weights = _convert_weights(_read_weights(files.weights), files, ids)
    broken = first_not_finite(weights)
    if broken is not None:
        raise ModelError(f"{files.weights}: the tensor {broken} contains NaN or infinity. Download the file again.")
    tokenizers = _build_tokenizers(files, ids)
    settings = _describe(files, has_bias="decoder.output.bias" in weights)
    with write_draft(out) as draft:
        save_model(draft, settings, tokenizers, weights, RunProgress({}, Schedule.of(settings.training.steps)))
    return Path(out)


def _order_tokens(files: MarianFolder) -> list[int]:
    """Return the Marian id of each of our tokens: the special tokens first. The start token may occur twice: Marian
    usually starts with the padding token.
    """
    config = files.config
    special = [config.pad_token_id, files.unknown_id, config.decoder_start_token_id, config.eos_token_id]
    if len({config.pad_token_id, files.unknown_id, config.eos_token_id}) < 3:
        raise ModelError(
            f"{files.path / 'config.json'}: padding, unknown and end token must be three different tokens."
        )
    return [*special, *(index for index in range(len(files.vocabulary)) if index not in special)]


def _build_tokenizers(files: MarianFolder, ids: list[int]) -> TokenizerPair:
    vocabulary = [*SPECIALS, *(files.vocabulary[index] for index in ids[len(SPECIALS) :])]
    try:
        source, target = (
            Tokenizer(build_tokenizer_of_ids(model, vocabulary, add_end=add_end))
            for model, add_end in ((files.source, True), (files.target, False))
        )
    except Exception as error:  # the library raises this type
        raise ModelError(f"{files.path}: its SentencePiece models cannot be used: {error}.") from None
    for name, model in (("source.spm", files.source), ("target.spm", files.target)):
        missing = {piece.text for piece in model.pieces} - {*files.vocabulary, *SPECIALS}
        if missing:
            log.warning(
                "%s of %s are not in vocab.json, and are unknown to the model, as in Transformers.",
                quantity(len(missing), "piece"), name,
            )  # fmt: skip
    return TokenizerPair(source, target)


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


def _convert_weights(tensors: Mapping[str, Tensor], files: MarianFolder, ids: list[int]) -> dict[str, Tensor]:
    """Return the weights with our names, and with dimensions and tokens in our order."""
    config, path, vocabulary = files.config, files.weights, len(files.vocabulary)
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

    size, order_D, ids_V = config.d_model, alternate_positions(config.d_model), torch.tensor(ids)
    weights = {
        name: find(theirs, (vocabulary, size))[ids_V][:, order_D] for name, theirs in EMBEDDINGS[config.tied].items()
    }
    for theirs, ours, shape, axis in list_layer_parameters(
        size, config.encoder_ffn_dim, config.encoder_layers, config.decoder_layers
    ):
        tensor = find((theirs,), shape)
        weights[ours] = tensor if axis is None else tensor.index_select(axis, order_D)
    bias_V = find((BIAS,), (1, vocabulary))[0][ids_V] if BIAS in tensors else torch.zeros(len(ids))
    if len(ids) > vocabulary:
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
    settings = {
        "about": f"Imported from {files.path.resolve().name}, a Marian model",
        "data": "unknown",
        "tokenizer": {"kind": "marian", "max_length": files.max_length},
        "model": model,
        "training": {"metric": "bleu"},
    }
    return resolve(RunSettings, settings, {})
