"""Settings of the models."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from regard.attention.settings import AttentionChoice, AttentionSettings, ScaledDot, Score, scope_kinds
from regard.config import BY_NAME, MAY_CHANGE_ON_RESUME, Settings
from regard.recurrent.settings import RecurrentSettings


class EncoderSettings(RecurrentSettings):
    """A recurrent encoder."""

    bidirectional: bool = True
    initial_state: Literal["zero", "learned"] = Field(
        "zero", description="the initial state: zero, or a learned parameter"
    )
    reverse: bool = Field(False, description="read the source from its end to its start")
    summary: Literal["last", "mean", "max"] = Field(
        "last", description="how the encoder states are summarized to start the decoder"
    )


class DecoderSettings(RecurrentSettings):
    """A recurrent decoder with attention."""

    order: Literal["bahdanau", "luong", "simple", "conditional"] = Field(
        "bahdanau",
        description="bahdanau attends before the recurrent step, luong after it; simple attends after it and feeds the "
        "context to the next step; conditional attends between two steps",
    )
    input_feeding: bool = Field(True, description="with order luong: feed the attentional state s̃ to the next step")
    copy_source: bool = Field(False, description="use a pointer-generator, which can copy source tokens")


class _RecurrentBase(Settings):
    """The settings that all recurrent encoder-decoders share."""

    embedding: PositiveInt = Field(64, description="width of the token embeddings")
    encoder: EncoderSettings = EncoderSettings()
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
    def encoder_description(self) -> str:
        """A short description of the encoder."""
        direction = "bidirectional " if self.encoder.bidirectional else ""
        return f"{direction}{self.encoder.description} encoder"

    @property
    def dropout_before_output(self) -> float:
        return self.dropout if self.output_dropout is None else self.output_dropout

    @property
    def memory_size(self) -> int:
        """The width of a memory slot: both directions of the encoder concatenated."""
        return self.encoder.hidden * (2 if self.encoder.bidirectional else 1)


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
        return f"{self.encoder_description}, {self.decoder.description} decoder, no attention"

    @property
    def readout(self) -> int:
        """The width of the hidden layer before the output; the embedding width if they are tied."""
        return self.decoder.hidden if self.tied == "none" else self.embedding

    @property
    def shares_vocabulary(self) -> bool:
        """Whether source and target must use the same vocabulary."""
        return self.tied == "all"


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
            f"{self.encoder_description}, {self.decoder.description} decoder ({self.decoder.order}), "
            f"{self.attention.score.kind} attention{heads}"
        )

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        query, key, heads = self.decoder.hidden, self.memory_size, self.attention.heads
        score = self.attention.score.kind
        if score in {"dot", "scaled_dot", "cosine"} and query != key:
            raise ValueError(
                f"attention.score: {score} requires vectors of the same size, but decoder.hidden is {query} and the "
                f"encoder states have size {key}. Make them equal, or use the score general."
            )
        if query % heads or key % heads:
            raise ValueError(
                f"attention.heads: decoder.hidden ({query}) and the size of the encoder states ({key}) must be "
                f"divisible by the number of heads, {heads}."
            )
        return self

    @model_validator(mode="after")
    def _check_scope(self) -> Self:
        if "causal" in scope_kinds(self.attention.scope):
            raise ValueError(
                "attention.scope: a causal scope is for self-attention, but the decoder attends to the source. Use "
                "global, local_m or local_p."
            )
        return self

    @model_validator(mode="after")
    def _check_copying(self) -> Self:
        if self.decoder.copy_source and self.attention.select.kind in {"hard_exact", "hard_monotonic"}:
            raise ValueError(
                f"decoder.copy_source: a {self.attention.select.kind} selection marginalizes over slots and has no "
                "weights to copy with. Use another selection, or set decoder.copy_source=false."
            )
        return self

    @property
    def shares_vocabulary(self) -> bool:
        """Whether source and target must use the same vocabulary."""
        return self.decoder.copy_source or self.tied == "all"

    @property
    def readout(self) -> int:
        """The width of the hidden layer before the output; the embedding width if they are tied."""
        return self.decoder.hidden if self.tied == "none" else self.embedding


class TransformerModel(Settings):
    """The Transformer (Vaswani et al. 2017)."""

    kind: Literal["transformer"] = "transformer"
    size: PositiveInt = Field(256, description="width of the model, d")
    heads: PositiveInt = 4
    layers: PositiveInt = Field(3, description="number of encoder layers, and of decoder layers")
    decoder_layers: PositiveInt | None = Field(
        None, description="number of decoder layers; by default the same as layers"
    )
    feedforward: PositiveInt = Field(1024, description="width of the hidden layer of the feed-forward networks")
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    norm: Literal["post", "pre"] = Field(
        "post", description="normalize after each residual connection, as published, or before each sublayer"
    )
    normalization: Literal["layer", "rms"] = "layer"
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    max_positions: PositiveInt = Field(1024, description="number of learned positions")
    tied: Literal["none", "decoder", "all"] = Field(
        "decoder",
        description="weight tying: decoder ties target embedding and output layer, all ties the source embedding too",
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout on embeddings and on the output of each sublayer")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on attention weights")
    activation_dropout: float = Field(0.0, ge=0, lt=1, description="dropout within the feed-forward layers")
    encoder_score: Score = ScaledDot()
    self_score: Score = ScaledDot()
    cross_score: Score = ScaledDot()
    gradient_checkpointing: bool = Field(
        False,
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="recompute layers in the backward pass, to save memory",
    )

    @property
    def architecture(self) -> str:
        """A description of the model in one line."""
        layers = f"{self.layers} encoder and {self.decoder_layers or self.layers} decoder layers"
        return f"Transformer, {layers}, width {self.size}, {self.heads} heads"

    @property
    def shares_vocabulary(self) -> bool:
        """Whether source and target must use the same vocabulary."""
        return self.tied == "all"

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

    @model_validator(mode="after")
    def _check_self_attention(self) -> Self:
        for name in ("encoder_score", "self_score"):
            if getattr(self, name).kind == "location_aware":
                raise ValueError(
                    f"{name}: location_aware requires a memory that stays the same from step to step, which "
                    "self-attention does not have. Use it as cross_score."
                )
        return self


TRANSFORMERS: dict[str, dict[str, Any]] = {
    "transformer-tiny": {"size": 128, "heads": 4, "layers": 4, "feedforward": 256, "dropout": 0.3, "tied": "all"},
    "transformer-small": {"size": 256, "heads": 4, "layers": 6, "feedforward": 1024, "dropout": 0.2, "tied": "all"},
    "transformer-base": {"size": 512, "heads": 8, "layers": 6, "feedforward": 2048, "dropout": 0.1, "tied": "all"},
    "transformer-big": {"size": 1024, "heads": 16, "layers": 6, "feedforward": 4096, "dropout": 0.3, "tied": "all"},
}
"""Transformer sizes by name: base and big as published (Vaswani et al. 2017), tiny as in Wu et al. (2021)."""


def _expand_kind(value: Any) -> Any:
    """Expand the name of a Transformer size into its settings. The default kind is recurrent."""
    if not isinstance(value, dict):
        return value
    kind = value.get("kind", "recurrent")
    return {**TRANSFORMERS[kind], **value, "kind": "transformer"} if kind in TRANSFORMERS else {**value, "kind": kind}


Model = Annotated[
    RecurrentModel | FixedModel | TransformerModel, Field(discriminator="kind"), BeforeValidator(_expand_kind), BY_NAME
]
