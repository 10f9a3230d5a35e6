"""The files of a Hugging Face Marian model: read and checked without torch, and without running anything in them."""

import io
import logging
import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError

from regard.data.tokens.sentencepiece import build_tokenizer_of_ids, parse_model
from regard.data.tokens.tokenizers import END, PAD, SPECIALS, START, UNKNOWN, Tokenizer, TokenizerPair
from regard.errors import ConfigError, ModelError
from regard.formatting import parse_json, quote
from regard.quantities import DropoutProbability, Heads, Layers, Length, VocabularySize, Width
from regard.regular_files import open_regular, read_regular
from regard.yaml_reader import read_yaml

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


@dataclass(frozen=True)
class MarianFolder:
    """A Marian model as it is saved by Transformers, except for its weights."""

    path: Path
    config: MarianConfig
    ids: list[int]
    """The id in Marian of each of our tokens."""
    tokenizers: TokenizerPair
    settings: dict[str, Any]
    """The settings of the run, except those of the model."""
    weights: Path

    @classmethod
    def read(cls, path: Path) -> "MarianFolder":
        """Read a folder. Raise ModelError, with the name of the file, if a part is missing, damaged or unsupported."""
        if not path.is_dir():
            raise ModelError(f"There is no folder {path}. Pass the folder of a Marian model with its config.json.")
        config = _read_config(path)
        options = _read_json(path, "tokenizer_config.json", required=False)
        if (path / "tokenizer.json").exists() and not (path / "source.spm").exists():
            ids, tokenizers = _read_fast_tokenizer(path, config)
        else:
            ids, tokenizers = _read_tokenizers(path, config, options)
        return cls(path, config, ids, tokenizers, _read_settings(path, config, options), _find_weights(path))


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
        _reject(path / "tokenizer_config.json", "separate_vocabs", True, "one vocabulary for source and target")
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
        model = parse_model(_read_file(path))
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


def _reject(file: Path, key: str, value: object, supported: str) -> NoReturn:
    raise ModelError(f"{file}: {key} is {quote(value)}, which is not supported. Supported: {supported}.")


def _read_file(path: Path) -> bytes:
    try:
        return read_regular(path)
    except FileNotFoundError:
        raise ModelError(f"{path} is missing. Download all files of the model.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None


def _read_json(folder: Path, name: str, *, required: bool = True) -> dict[str, Any]:
    path = folder / name
    if not required and not path.exists():
        return {}
    try:
        document = parse_json(_read_file(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}. Download it again.") from None
    if not isinstance(document, dict):
        raise ModelError(f"{path} is not a JSON object. Download it again.")
    return document


def _read_config(folder: Path) -> MarianConfig:
    path, document = folder / "config.json", _read_json(folder, "config.json")
    if document.get("model_type") != "marian":
        _reject(path, "model_type", document.get("model_type"), "marian")
    for key, supported in _UNSUPPORTED.items():
        if document.get(key, supported) != supported:
            _reject(path, key, document[key], str(supported).lower())
    try:
        config = MarianConfig.model_validate(document)
    except ValidationError as error:
        [first, *_] = error.errors()
        key = ".".join(map(str, first["loc"]))
        raise ModelError(f"{path}: {key}: {first['msg']}. Download the file again.") from None
    if not config.scale_embedding:  # the default
        _reject(path, "scale_embedding", False, "true")
    for part in ("attention_heads", "ffn_dim"):
        encoder, decoder = getattr(config, f"encoder_{part}"), getattr(config, f"decoder_{part}")
        if encoder != decoder:
            _reject(path, f"decoder_{part}", decoder, f"the same as encoder_{part}, {encoder}")
    if config.activation_function not in ACTIVATIONS:
        _reject(path, "activation_function", config.activation_function, ", ".join(ACTIVATIONS))
    if config.share_encoder_decoder_embeddings and not config.tie_word_embeddings:
        _reject(path, "tie_word_embeddings", False, "true, or share_encoder_decoder_embeddings=false")
    if config.d_model % 2 or config.d_model % config.encoder_attention_heads:
        _reject(path, "d_model", config.d_model, "an even number that is divisible by the number of heads")
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
    try:
        with open_regular(folder / PICKLE) as file:
            check_pickle(file)
    except OSError as error:
        raise ModelError(f"{folder / PICKLE} cannot be read: {error.strerror}.") from None
    except (ValueError, zipfile.BadZipFile, EOFError, IndexError, NotImplementedError, RuntimeError) as error:
        raise ModelError(
            f"{folder / PICKLE} is rejected: {error}. Use a copy with the weights in {SAFETENSORS}, from a source that "
            "you trust."
        ) from None
    return folder / PICKLE


_HARMLESS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(f"torch {kind}Storage" for kind in ("Float", "Half", "BFloat16", "Double", "Long", "Int", "Byte", "Bool")),
}
"""What a pickle of tensors refers to."""

_OTHER_REFERENCES = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"}
"""Instructions that refer to Python objects and do not occur in a pickle of tensors."""

_LEGACY_PICKLES, _MAX_PICKLE = 5, 1 << 26


def check_pickle(file: BinaryIO) -> None:
    """Raise ValueError if a file of torch refers to anything but tensors. Nothing in it is run.

    torch.load(weights_only=True) makes the same check, but importing torch takes seconds.
    """
    if file.read(4) == b"PK\x03\x04":
        with zipfile.ZipFile(file) as archive:
            names = [info for info in archive.infolist() if info.filename.endswith("data.pkl")]
            if len(names) != 1 or names[0].file_size > _MAX_PICKLE:
                raise ValueError("it is not a file of torch")
            _check_instructions(io.BytesIO(archive.read(names[0])))
        return
    file.seek(0)
    for _ in range(_LEGACY_PICKLES):
        _check_instructions(file)


def _check_instructions(file: BinaryIO) -> None:
    for name, argument in _read_instructions(file):
        if name in _OTHER_REFERENCES or (name == "GLOBAL" and argument not in _HARMLESS):
            raise ValueError(f"loading it could run code ({name} {quote(argument)})")


def _read_instructions(file: BinaryIO) -> Iterator[tuple[str, object]]:
    for instruction, argument, _ in pickletools.genops(file):
        yield instruction.name, argument
