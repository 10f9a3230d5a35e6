"""Settings of encoders: the choice of an encoder, and those of encoders of text."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.attention.settings import Score
from regard.config import MAY_CHANGE_ON_RESUME, TRAINING_ONLY, Settings
from regard.formatting import quantity
from regard.quantities import DropoutProbability, Heads, Layers, Length, Width
from regard.recurrent.settings import RecurrentSettings
from regard.registry import Choice, Registry, default_choice

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


class TransformerBlocks(Settings):
    """The settings of Transformer layers, whatever they read."""

    size: Width = Field(256, description="width of the model, d")
    heads: Heads = 4
    layers: Layers = Field(3, description="number of encoder layers, and of decoder layers")
    feedforward: Width = Field(1024, description="width of the hidden layer of the feed-forward networks")
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    norm: Literal["post", "pre"] = Field(
        "post", description="normalize after each residual connection, as published, or before each sublayer"
    )
    normalization: Literal["layer", "rms"] = "layer"
    dropout: DropoutProbability = Field(
        0.1, json_schema_extra=TRAINING_ONLY, description="dropout on embeddings and on the output of each sublayer"
    )
    attention_dropout: DropoutProbability = Field(
        0.0, json_schema_extra=TRAINING_ONLY, description="dropout on attention weights"
    )
    activation_dropout: DropoutProbability = Field(
        0.0, json_schema_extra=TRAINING_ONLY, description="dropout within the feed-forward layers"
    )

    @property
    def rotates(self) -> bool:
        """Whether self-attention uses rotary positions."""
        return False

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.size % self.heads:
            raise ValueError(f"heads: the size {self.size} must be divisible by the number of heads, {self.heads}.")
        return self


class TransformerLayers(TransformerBlocks):
    """The settings that the encoder and the decoder of a Transformer share."""

    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    max_positions: Length = Field(1024, description="number of learned positions")
    gradient_checkpointing: bool = Field(
        False,
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="recompute layers in the backward pass, to save memory",
    )

    @property
    def rotates(self) -> bool:
        return self.positions == "rotary"

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.size % 2 and self.positions != "learned":
            raise ValueError(f"size: {self.positions} positions require an even size, but it is {self.size}.")
        if self.rotates and (self.size // self.heads) % 2:
            head_size = self.size // self.heads
            raise ValueError(f"heads: rotary positions require an even size per head, but it is {head_size}.")
        return self


def check_self_score(name: str, score: Score) -> None:
    if score.uses_past:
        raise ValueError(
            f"{name}: {score.kind} requires a memory that stays the same from step to step, which self-attention does "
            "not have. Use it as cross_score."
        )


class TransformerEncoderSettings(TransformerLayers, EncoderSettings):
    """The encoder of a Transformer (Vaswani et al. 2017), for use with any decoder."""

    kind: Literal["transformer"] = "transformer"
    score: Score = default_choice("scaled_dot")

    @property
    def architecture(self) -> str:
        return f"Transformer encoder, {quantity(self.layers, 'layer')}, width {self.size}"

    @property
    def memory_size(self) -> int:
        return self.size

    @model_validator(mode="after")
    def _check_score(self) -> Self:
        check_self_score("score", self.score)
        return self
