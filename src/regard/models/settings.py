"""Settings of the models."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from regard.attention.settings import AttentionChoice, AttentionSettings, ScaledDot, Score
from regard.config import MAY_CHANGE_ON_RESUME, Settings
from regard.recurrent.settings import RecurrentSettings
from regard.registry import Choice, Registry

TEXT = "text"
"""The kind of source that consists of text. Plugins add other kinds."""


class EncoderSettings(Choice):
    """An encoder of any kind."""

    registry: ClassVar[Registry[Any]] = Registry(
        "encoder",
        "regard.models.seq2seq",
        provided=frozenset({"vocabulary", "embedding", "dropout"}),
        facts=("source_kind",),
        default="recurrent",
    )
    source_kind: ClassVar[str] = TEXT
    """The kind of source that the encoder reads."""

    @property
    def architecture(self) -> str:
        """A short description of the encoder."""
        return f"{self.kind} encoder"

    @property
    def memory_size(self) -> int | None:
        """The width of a memory slot; None if it is known only after the encoder is built."""
        return None


class RecurrentEncoderSettings(RecurrentSettings, EncoderSettings):
    """A recurrent encoder."""

    kind: Literal["recurrent"] = "recurrent"
    bidirectional: bool = True
    initial_state: Literal["zero", "learned"] = Field(
        "zero", description="the initial state: zero, or a learned parameter"
    )
    reverse: bool = Field(False, description="read the source from its end to its start")
    summary: Literal["last", "mean", "max"] = Field(
        "last", description="how the encoder states are summarized to start the decoder"
    )

    @property
    def architecture(self) -> str:
        return f"{'bidirectional ' if self.bidirectional else ''}{self.description} encoder"

    @property
    def memory_size(self) -> int:
        """The width of a memory slot: both directions of the encoder concatenated."""
        return self.hidden * (2 if self.bidirectional else 1)


class TransformerLayers(Settings):
    """The settings that the encoder and the decoder of a Transformer share."""

    size: PositiveInt = Field(256, description="width of the model, d")
    heads: PositiveInt = 4
    layers: PositiveInt = Field(3, description="number of encoder layers, and of decoder layers")
    feedforward: PositiveInt = Field(1024, description="width of the hidden layer of the feed-forward networks")
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    norm: Literal["post", "pre"] = Field(
        "post", description="normalize after each residual connection, as published, or before each sublayer"
    )
    normalization: Literal["layer", "rms"] = "layer"
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    max_positions: PositiveInt = Field(1024, description="number of learned positions")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout on embeddings and on the output of each sublayer")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on attention weights")
    activation_dropout: float = Field(0.0, ge=0, lt=1, description="dropout within the feed-forward layers")
    gradient_checkpointing: bool = Field(
        False,
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="recompute layers in the backward pass, to save memory",
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.size % self.heads:
            raise ValueError(f"heads: the size {self.size} must be divisible by the number of heads, {self.heads}.")
        if self.size % 2 and self.positions != "learned":
            raise ValueError(f"size: {self.positions} positions require an even size, but it is {self.size}.")
        if self.positions == "rotary" and (self.size // self.heads) % 2:
            head_size = self.size // self.heads
            raise ValueError(f"heads: rotary positions require an even size per head, but it is {head_size}.")
        return self


def _check_self_score(name: str, score: Score) -> None:
    if score.uses_past:
        raise ValueError(
            f"{name}: {score.kind} requires a memory that stays the same from step to step, which self-attention does "
            "not have. Use it as cross_score."
        )


class TransformerEncoderSettings(TransformerLayers, EncoderSettings):
    """The encoder of a Transformer (Vaswani et al. 2017), for use with any decoder."""

    kind: Literal["transformer"] = "transformer"
    score: Score = ScaledDot()

    @property
    def architecture(self) -> str:
        return f"Transformer encoder, {self.layers} layers, width {self.size}"

    @property
    def memory_size(self) -> int:
        return self.size

    @model_validator(mode="after")
    def _check_score(self) -> Self:
        _check_self_score("score", self.score)
        return self


class ModelSettings(Choice):
    """A model of any kind: an encoder, and the settings of a decoder."""

    registry: ClassVar[Registry[Any]] = Registry(
        "decoder", "regard.models.seq2seq", provided=frozenset({"vocabulary", "memory_size"}), default="recurrent"
    )

    @property
    @abstractmethod
    def encoder_settings(self) -> EncoderSettings:
        """The settings of the encoder, with those that follow from the decoder."""

    @property
    @abstractmethod
    def embedding_size(self) -> int:
        """The width of the source embeddings, for encoders of tokens."""

    @property
    @abstractmethod
    def embedding_dropout(self) -> float:
        """The dropout on the source embeddings."""

    @property
    def architecture(self) -> str:
        """A description of the model in one line."""
        return f"{self.encoder_settings.architecture}, {self.kind} decoder"

    @property
    def source_kind(self) -> str:
        """The kind of source that the model reads."""
        return self.encoder_settings.source_kind

    @property
    def ties_source_embedding(self) -> bool:
        """Whether source and target use the same embedding."""
        return False

    @property
    def shared_vocabulary_reason(self) -> str | None:
        """Why source and target must use the same vocabulary; None if they need not."""
        return "ties all embeddings" if self.ties_source_embedding else None

    @property
    def recomputes_layers(self) -> bool:
        """Whether layers are recomputed in the backward pass."""
        return False

    @classmethod
    def expand(cls, value: Any) -> Any:
        """Expand the name of a Transformer size into its settings."""
        value = super().expand(value)
        kind = value.get("kind") if isinstance(value, Mapping) else None
        if isinstance(kind, str) and kind in TRANSFORMERS:
            return {**TRANSFORMERS[kind], **value, "kind": "transformer"}
        return value


class RegisteredModel(ModelSettings):
    """Base class of the settings of registered decoders: any encoder, and the options of the decoder."""

    encoder: EncoderSettings = RecurrentEncoderSettings()
    embedding: PositiveInt = Field(64, description="width of the token embeddings")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout on embeddings")

    @property
    def encoder_settings(self) -> EncoderSettings:
        return self.encoder

    @property
    def embedding_size(self) -> int:
        return self.embedding

    @property
    def embedding_dropout(self) -> float:
        return self.dropout


class DecoderSettings(RecurrentSettings):
    """A recurrent decoder with attention."""

    order: Literal["bahdanau", "luong", "simple", "conditional"] = Field(
        "bahdanau",
        description="bahdanau attends before the recurrent step, luong after it; simple attends after it and feeds the "
        "context to the next step; conditional attends between two steps",
    )
    input_feeding: bool = Field(True, description="with order luong: feed the attentional state s̃ to the next step")
    copy_source: bool = Field(False, description="use a pointer-generator, which can copy source tokens")


class _RecurrentBase(ModelSettings):
    """The settings that all recurrent encoder-decoders share."""

    embedding: PositiveInt = Field(64, description="width of the token embeddings")
    encoder: EncoderSettings = RecurrentEncoderSettings()
    decoder: RecurrentSettings
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout on embeddings and before the output layer")
    memory_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the encoder states")
    output_dropout: float | None = Field(
        None, ge=0, lt=1, description="dropout before the output layer; by default the same as dropout"
    )
    tied: Literal["none", "decoder", "all"] = Field(
        "none",
        description="weight tying: decoder ties target embedding and output layer, all ties the source embedding too",
    )

    @property
    def encoder_settings(self) -> EncoderSettings:
        return self.encoder

    @property
    def embedding_size(self) -> int:
        return self.embedding

    @property
    def embedding_dropout(self) -> float:
        return self.dropout

    @property
    def dropout_before_output(self) -> float:
        return self.dropout if self.output_dropout is None else self.output_dropout

    @property
    def readout(self) -> int:
        """The width of the hidden layer before the output; the embedding width if they are tied."""
        return self.decoder.hidden if self.tied == "none" else self.embedding

    @property
    def ties_source_embedding(self) -> bool:
        return self.tied == "all"


class FixedModel(_RecurrentBase):
    """A recurrent encoder-decoder without attention: one vector of fixed size connects them."""

    kind: Literal["fixed"] = "fixed"
    decoder: RecurrentSettings = RecurrentSettings()

    context: Literal["initial", "every_step"] = Field(
        "every_step", description="feed the source vector to the decoder only as its initial state, or at every step"
    )

    @property
    def architecture(self) -> str:
        """A description of the model in one line."""
        return f"{self.encoder.architecture}, {self.decoder.description} decoder, no attention"


class RecurrentModel(_RecurrentBase):
    """A recurrent encoder-decoder with attention."""

    kind: Literal["recurrent"] = "recurrent"
    decoder: DecoderSettings = DecoderSettings()
    attention: AttentionChoice = AttentionSettings()

    @property
    def architecture(self) -> str:
        """A description of the model in one line."""
        heads = f" with {self.attention.heads} heads" if self.attention.heads > 1 else ""
        return (
            f"{self.encoder.architecture}, {self.decoder.description} decoder ({self.decoder.order}), "
            f"{self.attention.score.kind} attention{heads}"
        )

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        query, key, heads = self.decoder.hidden, self.encoder.memory_size, self.attention.heads
        if key is None:  # checked when the model is built
            return self
        score = self.attention.score
        if score.equal_sizes and query != key:
            raise ValueError(
                f"attention.score: {score.kind} requires vectors of the same size, but decoder.hidden is {query} and "
                f"the encoder states have size {key}. Make them equal, or use the score general."
            )
        if query % heads or key % heads:
            raise ValueError(
                f"attention.heads: decoder.hidden ({query}) and the size of the encoder states ({key}) must be "
                f"divisible by the number of heads, {heads}."
            )
        return self

    @model_validator(mode="after")
    def _check_scope(self) -> Self:
        if any(scope.self_only for scope in self.attention.scope.parts()):
            raise ValueError(
                f"attention.scope: the scope {self.attention.scope.kind} is for self-attention, but the decoder "
                "attends to the source. Use global, local_m or local_p."
            )
        return self

    @model_validator(mode="after")
    def _check_copying(self) -> Self:
        if self.decoder.copy_source and self.attention.select.marginal:
            raise ValueError(
                f"decoder.copy_source: a {self.attention.select.kind} selection marginalizes over slots and has no "
                "weights to copy with. Use another selection, or set decoder.copy_source=false."
            )
        return self

    @property
    def shared_vocabulary_reason(self) -> str | None:
        copies = "copies tokens (decoder.copy_source)" if self.decoder.copy_source else None
        return super().shared_vocabulary_reason or copies


class TransformerModel(TransformerLayers, ModelSettings):
    """The Transformer (Vaswani et al. 2017)."""

    kind: Literal["transformer"] = "transformer"
    encoder: EncoderSettings | None = Field(
        None, description="an encoder of another kind; by default a Transformer encoder with the settings of the model"
    )
    decoder_layers: PositiveInt | None = Field(
        None, description="number of decoder layers; by default the same as layers"
    )
    tied: Literal["none", "decoder", "all"] = Field(
        "decoder",
        description="weight tying: decoder ties target embedding and output layer, all ties the source embedding too",
    )
    encoder_score: Score = ScaledDot()
    self_score: Score = ScaledDot()
    cross_score: Score = ScaledDot()

    @property
    def architecture(self) -> str:
        decoder_layers = self.decoder_layers or self.layers
        if self.encoder is not None:
            return f"{self.encoder.architecture}, Transformer decoder, {decoder_layers} layers, width {self.size}"
        layers = f"{self.layers} encoder and {decoder_layers} decoder layers"
        return f"Transformer, {layers}, width {self.size}, {self.heads} heads"

    @property
    def encoder_settings(self) -> EncoderSettings:
        if self.encoder is not None:
            return self.encoder
        shared = {name: getattr(self, name) for name in TransformerLayers.model_fields}
        return TransformerEncoderSettings(**shared, score=self.encoder_score)

    @property
    def embedding_size(self) -> int:
        return self.size

    @property
    def embedding_dropout(self) -> float:
        return self.dropout

    @property
    def ties_source_embedding(self) -> bool:
        return self.tied == "all"

    @property
    def recomputes_layers(self) -> bool:
        return self.gradient_checkpointing

    @model_validator(mode="after")
    def _check_self_attention(self) -> Self:
        for name in ("encoder_score", "self_score"):
            _check_self_score(name, getattr(self, name))
        return self


TRANSFORMERS: dict[str, dict[str, Any]] = {
    "transformer-tiny": {"size": 128, "heads": 4, "layers": 4, "feedforward": 256, "dropout": 0.3, "tied": "all"},
    "transformer-small": {"size": 256, "heads": 4, "layers": 6, "feedforward": 1024, "dropout": 0.2, "tied": "all"},
    "transformer-base": {"size": 512, "heads": 8, "layers": 6, "feedforward": 2048, "dropout": 0.1, "tied": "all"},
    "transformer-big": {"size": 1024, "heads": 16, "layers": 6, "feedforward": 4096, "dropout": 0.3, "tied": "all"},
}
"""Transformer sizes by name: base and big as published (Vaswani et al. 2017), tiny as in Wu et al. (2021)."""
