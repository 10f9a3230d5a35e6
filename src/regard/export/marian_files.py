"""The files of a Hugging Face Marian model: read and checked without torch, and without running anything in them."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from pydantic import BaseModel, ConfigDict, ValidationError

from regard.data.tokens.sentencepiece import build_tokenizer_of_ids, parse_model
from regard.data.tokens.tokenizers import END, PAD, SPECIALS, START, UNKNOWN, Tokenizer, TokenizerPair
from regard.errors import ConfigError, ModelError
from regard.export.foreign import ForeignModel, check_pickle_file, read_file, reject
from regard.formatting import parse_json, quote
from regard.quantities import DropoutProbability, Heads, Layers, Length, VocabularySize, Width
from regard.yaml_reader import read_yaml

if TYPE_CHECKING:
    from torch import Tensor

    from regard.export.foreign_weights import ForeignWeights

log = logging.getLogger(__name__)

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
SETTINGS = "regard.yaml"
"""The settings of an exported run."""

_MAX_LENGTH = 512

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
"""The names of activations in config.json, and in our settings."""

_UNSUPPORTED: dict[str, Any] = {
    "scale_embedding": True,
    "static_position_embeddings": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "add_bias_logits": False,
    "forced_bos_token_id": None,
    "quantization_config": None,
}
"""Options of config.json that change what a model computes, with the only value that is supported."""


class MarianConfig(BaseModel):
    """The options of config.json that are read, with their defaults in Transformers."""

    model_config = ConfigDict(strict=True, extra="allow")

    vocab_size: VocabularySize
    decoder_vocab_size: VocabularySize | None = None
    d_model: Width
    encoder_layers: Layers
    decoder_layers: Layers
    encoder_attention_heads: Heads
    decoder_attention_heads: Heads
    encoder_ffn_dim: Width
    decoder_ffn_dim: Width
    activation_function: str = "gelu"
    scale_embedding: bool = False
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    max_position_embeddings: Length = 1024
    dropout: DropoutProbability = 0.1
    attention_dropout: DropoutProbability = 0.0
    activation_dropout: DropoutProbability = 0.0
    pad_token_id: int
    eos_token_id: int
    decoder_start_token_id: int

    @property
    def tied(self) -> str:
        """The value of model.tied."""
        return ("all" if self.share_encoder_decoder_embeddings else "decoder") if self.tie_word_embeddings else "none"


@final
@dataclass(frozen=True)
class MarianFolder(ForeignModel):
    """A Marian model as it is saved by Transformers."""

    options: MarianConfig
    ids: list[int]
    """The id in Marian of each of our tokens."""

    config = "config.json"

    @classmethod
    def read(cls, path: Path) -> "MarianFolder":
        config = _read_config(path)
        options = _read_json(path, "tokenizer_config.json", required=False)
        if (path / "tokenizer.json").exists() and not (path / "source.spm").exists():
            ids, tokenizers = _read_fast_tokenizer(path, config)
        else:
            ids, tokenizers = _read_tokenizers(path, config, options)
        settings = _read_settings(path, config, options)
        return cls(path, tokenizers, settings, _find_weights(path), config, ids)

    def convert(self, weights: "ForeignWeights") -> "tuple[dict[str, Any], dict[str, Tensor]]":
        from regard.export.marian import convert_weights

        config = self.options
        layers = config.encoder_layers, config.decoder_layers
        converted = convert_weights(
            weights, config.d_model, config.encoder_ffn_dim, layers, config.vocab_size, self.ids, config.tied
        )
        return _describe_model(config, has_bias="decoder.output.bias" in converted), converted


def _describe_model(config: MarianConfig, *, has_bias: bool) -> dict[str, Any]:
    """Return the settings of the model."""
    return {
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


def _read_settings(path: Path, config: MarianConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an exported run, or the settings of an imported model if there is no such file."""
    if (path / SETTINGS).exists():
        try:
            tree, _ = read_yaml(path / SETTINGS)
        except ConfigError as error:
            raise ModelError(f"{path / SETTINGS} is damaged: {error}") from None
        return {key: value for key, value in tree.items() if key != "model"}
    limit = options.get("model_max_length", _MAX_LENGTH)
    limit = limit if isinstance(limit, int) and limit > 0 else _MAX_LENGTH
    return {
        "about": f"Imported from {path.resolve().name}, a Marian model",
        "data": "unknown",
        "tokenizer": {"kind": "marian", "max_length": min(limit, config.max_position_embeddings)},
        "training": {"metric": "bleu"},
    }


def _read_fast_tokenizer(path: Path, config: MarianConfig) -> tuple[list[int], TokenizerPair]:
    """Read the tokenizer of an exported run, whose tokens have our ids."""
    if not (path / SETTINGS).exists():
        raise ModelError(
            f"{path} has no source.spm, target.spm and vocab.json. A tokenizer.json alone is supported only in the "
            f"models that regard exports, which have a {SETTINGS}."
        )
    tokenizer = Tokenizer.load(path / "tokenizer.json")
    ids = (config.pad_token_id, config.decoder_start_token_id, config.eos_token_id)
    if ids != (PAD, START, END) or {config.vocab_size, config.decoder_vocab_size} != {len(tokenizer)}:
        raise ModelError(f"{path / 'config.json'} and tokenizer.json belong to different models. Export it again.")
    return list(range(len(tokenizer))), TokenizerPair(tokenizer, tokenizer)


def _read_tokenizers(path: Path, config: MarianConfig, options: Mapping[str, Any]) -> tuple[list[int], TokenizerPair]:
    """Read two SentencePiece models and the ids of their pieces. Our special tokens come first. The start token may
    occur twice, because Marian usually starts with the padding token.
    """
    vocabulary = _read_vocabulary(path / "vocab.json", config)
    unknown = options.get("unk_token", SPECIALS[UNKNOWN])
    name = unknown.get("content") if isinstance(unknown, dict) else unknown
    if name not in vocabulary:
        raise ModelError(f"{path / 'vocab.json'} has no token {quote(name)} for unknown words.")
    if options.get("separate_vocabs"):
        reject(path / "tokenizer_config.json", "separate_vocabs", True, "one vocabulary for source and target")
    special = [config.pad_token_id, vocabulary.index(name), config.decoder_start_token_id, config.eos_token_id]
    if len({*special[:START], special[END]}) < 3:
        raise ModelError(f"{path / 'config.json'}: padding, unknown and end token must be three different tokens.")
    ids = [*special, *(index for index in range(len(vocabulary)) if index not in special)]
    tokens = [*SPECIALS, *(vocabulary[index] for index in ids[len(SPECIALS) :])]
    source, target = (
        _read_sentencepiece(path / file, tokens, add_end=add_end)
        for file, add_end in (("source.spm", True), ("target.spm", False))
    )
    return ids, TokenizerPair(source, target)


def _read_sentencepiece(path: Path, tokens: list[str], *, add_end: bool) -> Tokenizer:
    try:
        model = parse_model(read_file(path))
    except ValueError as error:
        raise ModelError(f"{path} {error}. Download it again.") from None
    missing = {piece.text for piece in model.pieces}.difference(tokens)
    if missing:
        log.warning(
            "%s: %s not in vocab.json and therefore unknown to the model.",
            path, "1 piece is" if len(missing) == 1 else f"{len(missing):,} pieces are",
        )  # fmt: skip
    try:
        return Tokenizer(build_tokenizer_of_ids(model, tokens, add_end=add_end))
    except Exception as error:  # the library raises this type
        raise ModelError(f"{path} cannot be used: {error}. Download it again.") from None


def _read_json(folder: Path, name: str, *, required: bool = True) -> dict[str, Any]:
    path = folder / name
    if not required and not path.exists():
        return {}
    try:
        document = parse_json(read_file(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}. Download it again.") from None
    if not isinstance(document, dict):
        raise ModelError(f"{path} is not a JSON object. Download it again.")
    return document


def _read_config(folder: Path) -> MarianConfig:
    path, document = folder / "config.json", _read_json(folder, "config.json")
    if document.get("model_type") != "marian":
        reject(path, "model_type", document.get("model_type"), "marian")
    for key, supported in _UNSUPPORTED.items():
        if document.get(key, supported) != supported:
            reject(path, key, document[key], str(supported).lower())
    try:
        config = MarianConfig.model_validate(document)
    except ValidationError as error:
        [first, *_] = error.errors()
        key = ".".join(map(str, first["loc"]))
        raise ModelError(f"{path}: {key}: {first['msg']}. Download the file again.") from None
    if not config.scale_embedding:  # the default
        reject(path, "scale_embedding", False, "true")
    for part in ("attention_heads", "ffn_dim"):
        encoder, decoder = getattr(config, f"encoder_{part}"), getattr(config, f"decoder_{part}")
        if encoder != decoder:
            reject(path, f"decoder_{part}", decoder, f"the same as encoder_{part}, {encoder}")
    if config.activation_function not in ACTIVATIONS:
        reject(path, "activation_function", config.activation_function, ", ".join(ACTIVATIONS))
    if config.share_encoder_decoder_embeddings and not config.tie_word_embeddings:
        reject(path, "tie_word_embeddings", False, "true, or share_encoder_decoder_embeddings=false")
    if config.d_model % 2 or config.d_model % config.encoder_attention_heads:
        reject(path, "d_model", config.d_model, "an even number that is divisible by the number of heads")
    return config


def _read_vocabulary(path: Path, config: MarianConfig) -> list[str]:
    """Return the tokens in the order of their ids, which must be 0, 1, 2, …"""
    document = _read_json(path.parent, path.name)
    size = config.vocab_size
    if len(document) != size or config.decoder_vocab_size not in (None, size):
        raise ModelError(
            f"{path} has {len(document):,} tokens, but config.json has vocab_size={size:,} and "
            f"decoder_vocab_size={config.decoder_vocab_size}. All three must be equal."
        )
    tokens: list[str | None] = [None] * size
    for token, index in document.items():
        if type(index) is not int or not 0 <= index < size or tokens[index] is not None:
            raise ModelError(
                f"{path}: the token {quote(token)} has the id {quote(index)}, but the ids of {size:,} tokens must be "
                f"the numbers from 0 to {size - 1:,}, each once. Download the file again."
            )
        tokens[index] = token
    for key in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
        if not 0 <= getattr(config, key) < size:
            raise ModelError(f"{path.parent / 'config.json'}: {key} is not the id of one of the {size:,} tokens.")
    return [token for token in tokens if token is not None]


def _find_weights(folder: Path) -> Path:
    if (folder / SAFETENSORS).exists():
        return folder / SAFETENSORS
    if not (folder / PICKLE).exists():
        found = sorted(path.name for path in folder.iterdir() if path.suffix in {".h5", ".msgpack", ".npz", ".json"})
        raise ModelError(
            f"{folder} has no {SAFETENSORS} and no {PICKLE}, which contain the weights. Other formats, and weights in "
            f"several files, are not supported. Found: {', '.join(found)}."
        )
    check_pickle_file(folder / PICKLE, f"Use a copy with the weights in {SAFETENSORS}, from a source that you trust.")
    return folder / PICKLE
