"""Settings of the models."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.attention.settings import AttentionChoice, Score
from regard.config import TRAINING_ONLY
from regard.formatting import quantity
from regard.models.encoder_settings import (
    TEXT,
    EncoderSettings,
    TransformerEncoderSettings,
    TransformerLayers,
    check_self_score,
)
from regard.models.vision import settings as _image_encoders  # noqa: F401 - registers the settings of image encoders
from regard.quantities import DropoutProbability, Layers, Weight, Width
from regard.recurrent.settings import RecurrentSettings
from regard.registry import Choice, Registry, default_choice


class ModelSettings(Choice):
    """A model of any kind: an encoder, and the settings of a decoder."""

    registry: ClassVar[Registry[Any]] = Registry(
        "decoder", "regard.models.seq2seq", provided=frozenset({"vocabulary", "memory_size"}), default="recurrent"
    )

    @property
    @abstractmethod
    def encoder_settings(self) -> EncoderSettings:
        """The settings of the encoder, including those that it shares with the decoder."""

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
    def attention_layers(self) -> int | None:
        """The number of decoder layers that attend to the source; None if it is not known."""
        return None

    @property
    def ties_source_embedding(self) -> bool:
        """Whether source and target use the same embedding."""
        return False

    @property
    def shared_vocabulary_reason(self) -> str | None:
        """Why source and target must use the same vocabulary; None if they need not."""
        return "ties all embeddings (model.tied=all)" if self.ties_source_embedding else None

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

    encoder: EncoderSettings = default_choice("recurrent")
    embedding: Width = Field(64, description="width of the token embeddings")
    dropout: DropoutProbability = Field(0.1, json_schema_extra=TRAINING_ONLY, description="dropout on embeddings")

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
    gate: bool = Field(False, description="scale the context by a learned gate β = σ(w · q + b), q the query")
    doubly_stochastic: Weight = Field(
        0.0,
        json_schema_extra=TRAINING_ONLY,
        description="weight λ of the penalty λ Σ_j (1 − Σ_t a_tj)², which encourages attention to every slot",
    )


class _RecurrentBase(ModelSettings):
    """The settings that all recurrent encoder-decoders share."""

    embedding: Width = Field(64, description="width of the token embeddings")
    encoder: EncoderSettings = default_choice("recurrent")
    decoder: RecurrentSettings
    dropout: DropoutProbability = Field(
        0.1, json_schema_extra=TRAINING_ONLY, description="dropout on embeddings and before the output layer"
    )
    memory_dropout: DropoutProbability = Field(
        0.0, json_schema_extra=TRAINING_ONLY, description="dropout on the encoder states"
    )
    output_dropout: DropoutProbability | None = Field(
        None,
        json_schema_extra=TRAINING_ONLY,
        description="dropout before the output layer; by default the same as dropout",
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
    decoder: RecurrentSettings = default_choice({})

    context: Literal["initial", "every_step"] = Field(
        "every_step", description="feed the source vector to the decoder only as its initial state, or at every step"
    )

    @property
    def attention_layers(self) -> int:
        return 0

    @property
    def architecture(self) -> str:
        """A description of the model in one line."""
        return f"{self.encoder.architecture}, {self.decoder.description} decoder, no attention"


class RecurrentModel(_RecurrentBase):
    """A recurrent encoder-decoder with attention."""

    kind: Literal["recurrent"] = "recurrent"
    decoder: DecoderSettings = default_choice({})
    attention: AttentionChoice = default_choice({})

    @property
    def attention_layers(self) -> int:
        return 1

    @property
    def architecture(self) -> str:
        """A description of the model in one line."""
        decoder = f"{self.decoder.description} decoder ({self.decoder.order})"
        return f"{self.encoder.architecture}, {decoder}, {self.attention.description}"

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
        if self.decoder.copy_source and self.encoder.source_kind != TEXT:
            raise ValueError(
                f"decoder.copy_source: the encoder '{self.encoder.kind}' reads no tokens that could be copied. Set "
                "decoder.copy_source=false."
            )
        if self.decoder.copy_source and self.attention.select.marginal:
            raise ValueError(
                f"decoder.copy_source: a {self.attention.select.kind} selection marginalizes over slots and has no "
                "weights to copy with. Use another selection, or set decoder.copy_source=false."
            )
        return self

    @property
    def shared_vocabulary_reason(self) -> str | None:
        copies = "copies tokens (model.decoder.copy_source)" if self.decoder.copy_source else None
        return super().shared_vocabulary_reason or copies


class TransformerModel(TransformerLayers, ModelSettings):
    """The Transformer (Vaswani et al. 2017)."""

    kind: Literal["transformer"] = "transformer"
    encoder: EncoderSettings | None = Field(
        None, description="encoder of another kind; by default a Transformer encoder with the settings of the model"
    )
    decoder_layers: Layers | None = Field(None, description="number of decoder layers; by default the same as layers")
    tied: Literal["none", "decoder", "all"] = Field(
        "decoder",
        description="weight tying: decoder ties target embedding and output layer, all ties the source embedding too",
    )
    encoder_score: Score = default_choice("scaled_dot")
    self_score: Score = default_choice("scaled_dot")
    cross_score: Score = default_choice("scaled_dot")

    @property
    def attention_layers(self) -> int:
        return self.decoder_layers or self.layers

    @property
    def architecture(self) -> str:
        decoder_layers = self.attention_layers
        if self.encoder is not None:
            decoder = f"Transformer decoder, {quantity(decoder_layers, 'layer')}, width {self.size}"
            return f"{self.encoder.architecture}, {decoder}"
        layers = f"{self.layers} encoder and {decoder_layers} decoder layers"
        return f"Transformer, {layers}, width {self.size}, {quantity(self.heads, 'head')}"

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
            check_self_score(name, getattr(self, name))
        return self


TRANSFORMERS: dict[str, dict[str, Any]] = {
    "transformer-tiny": {"size": 128, "heads": 4, "layers": 4, "feedforward": 256, "dropout": 0.3, "tied": "all"},
    "transformer-small": {"size": 256, "heads": 4, "layers": 6, "feedforward": 1024, "dropout": 0.2, "tied": "all"},
    "transformer-base": {"size": 512, "heads": 8, "layers": 6, "feedforward": 2048, "dropout": 0.1, "tied": "all"},
    "transformer-big": {"size": 1024, "heads": 16, "layers": 6, "feedforward": 4096, "dropout": 0.3, "tied": "all"},
}
"""Transformer sizes by name: base and big as published (Vaswani et al. 2017), tiny as in Wu et al. (2021)."""
