"""The options of a Joey NMT model: its config.yaml."""

from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from regard.errors import ConfigError, ModelError
from regard.export.foreign import reject
from regard.quantities import DropoutProbability, Heads, Layers, Width
from regard.yaml_reader import read_yaml

CONFIG = "config.yaml"


class _Options(BaseModel):
    """Options of config.yaml that are read, with their defaults in Joey NMT. Others do not change what is computed."""

    model_config = ConfigDict(strict=True)


class EmbeddingOptions(_Options):
    embedding_dim: Width
    scale: bool = False
    dropout: DropoutProbability | None = None


class PartOptions(_Options):
    """The options of an encoder or a decoder."""

    hidden_size: Width
    num_layers: Layers
    dropout: DropoutProbability
    embeddings: EmbeddingOptions

    @property
    def embedding_dropout(self) -> float:
        return self.dropout if self.embeddings.dropout is None else self.embeddings.dropout


class RecurrentOptions(PartOptions):
    num_layers: Layers = 1
    dropout: DropoutProbability = 0.0
    rnn_type: Literal["gru", "lstm"] = "gru"
    bidirectional: Literal[True] = True
    attention: Literal["bahdanau", "luong"] = "bahdanau"
    activation: Literal["tanh"] = "tanh"
    init_hidden: Literal["bridge", "last", "zero", "zeros"] = "bridge"
    input_feeding: bool = True
    hidden_dropout: DropoutProbability = 0.0


class TransformerOptions(PartOptions):
    dropout: DropoutProbability = 0.1
    ff_size: Width = 2048
    num_heads: Heads
    layer_norm: Literal["pre", "post"]
    activation: Literal["relu", "gelu", "swish"] = "relu"
    alpha: float = Field(1.0, ge=1, le=1)


class ModelOptions(_Options):
    tied_embeddings: bool = False
    tied_softmax: bool = False


class RecurrentModelOptions(ModelOptions):
    encoder: RecurrentOptions
    decoder: RecurrentOptions


class TransformerModelOptions(ModelOptions):
    encoder: TransformerOptions
    decoder: TransformerOptions


class TokenizerOptions(_Options):
    pretokenizer: str = "none"
    model_file: str = ""


class TextOptions(_Options):
    """How one language is tokenized."""

    level: Literal["word", "char", "bpe"]
    lowercase: bool = False
    normalize: bool = False
    tokenizer_type: str | None = None
    bpe_type: str = "sentencepiece"
    tokenizer_cfg: TokenizerOptions = TokenizerOptions()


class Symbols(_Options):
    unk_token: str = "<unk>"
    unk_id: int = 0
    pad_token: str = "<pad>"
    pad_id: int = 1
    bos_token: str = "<s>"
    bos_id: int = 2
    eos_token: str = "</s>"
    eos_id: int = 3
    sep_token: str | None = None
    lang_tags: list[str] = Field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The special tokens in the order in which Joey NMT adds them."""
        return [self.unk_token, self.pad_token, self.bos_token, self.eos_token]

    @property
    def ids(self) -> list[int]:
        """The ids of our special tokens."""
        return [self.pad_id, self.unk_id, self.bos_id, self.eos_id]


class DataOptions(_Options):
    src: TextOptions
    trg: TextOptions
    special_symbols: Symbols = Symbols()


Part = TypeVar("Part", bound=_Options)


def read_options(path: Path) -> tuple[RecurrentModelOptions | TransformerModelOptions, DataOptions]:
    """Read the options of the model and of its data. Raise ModelError if one is missing or not supported."""
    tree = _read_config(path)
    return _read_model(path, tree["model"]), _validate(path, "data", tree["data"], DataOptions)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        tree, _ = read_yaml(path / CONFIG)
    except ConfigError as error:
        raise ModelError(f"{path / CONFIG} is damaged: {error}") from None
    for section in ("data", "model"):
        if not isinstance(tree.get(section), dict):
            raise ModelError(f"{path / CONFIG} has no section {section}, so it is not that of a Joey NMT model.")
    if not isinstance(tree["data"].get("src"), dict):
        reject(path / CONFIG, "data.src", tree["data"].get("src"), "the sections src and trg of Joey NMT 2")
    return tree


def _read_model(path: Path, model: dict[str, Any]) -> RecurrentModelOptions | TransformerModelOptions:
    parts = [part if isinstance(part := model.get(name), dict) else {} for name in ("encoder", "decoder")]
    kinds = [part.get("type", default) for part, default in zip(parts, ("recurrent", "transformer"), strict=True)]
    if kinds[0] != kinds[1] or kinds[0] not in ("recurrent", "transformer"):
        reject(path / CONFIG, "model.decoder.type", kinds[1], "recurrent or transformer, the same as the encoder")
    if kinds[0] == "recurrent":
        return _check_recurrent(path, _validate(path, "model", model, RecurrentModelOptions))
    if "layer_norm" not in parts[0]:
        supported = "pre or post. Without this option, Joey NMT omits the final normalization"
        reject(path / CONFIG, "model.encoder.layer_norm", None, supported)
    return _check_transformer(path, _validate(path, "model", model, TransformerModelOptions))


def _check_recurrent(path: Path, model: RecurrentModelOptions) -> RecurrentModelOptions:
    encoder, decoder = model.encoder, model.decoder
    if encoder.embeddings.embedding_dim != decoder.embeddings.embedding_dim:
        supported = f"the same as in the encoder, {encoder.embeddings.embedding_dim}"
        reject(path / CONFIG, "model.decoder.embeddings.embedding_dim", decoder.embeddings.embedding_dim, supported)
    if decoder.init_hidden == "last" and decoder.hidden_size not in (encoder.hidden_size, 2 * encoder.hidden_size):
        reject(path / CONFIG, "model.decoder.hidden_size", decoder.hidden_size, "that of the encoder, or twice as much")
    return model


def _check_transformer(path: Path, model: TransformerModelOptions) -> TransformerModelOptions:
    size = model.encoder.hidden_size
    for side, part in (("encoder", model.encoder), ("decoder", model.decoder)):
        for key, value in (("hidden_size", part.hidden_size), ("embedding_dim", part.embeddings.embedding_dim)):
            if value != size or size % 2 or size % part.num_heads:
                supported = "an even number that is divisible by num_heads, and the same everywhere"
                reject(path / CONFIG, f"model.{side}.{key}", value, supported)
    return model


def _validate(path: Path, section: str, tree: dict[str, Any], kind: type[Part]) -> Part:
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        [first, *_] = error.errors()
        key = ".".join([section, *map(str, first["loc"])])
        raise ModelError(f"{path / CONFIG}: {key}: {first['msg']}. Other values are not supported.") from None
