"""What may be set in a model."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from regard.attention.settings import AttentionChoice, AttentionSettings, ScaledDot, Score, scope_kinds
from regard.config import BY_NAME, MAY_CHANGE_ON_RESUME, Settings
from regard.recurrent.settings import RecurrentSettings


class EncoderSettings(RecurrentSettings):
    """A recurrent encoder."""

    bidirectional: bool = True
    initial_state: Literal["zero", "learned"] = Field("zero", description="the state before the first step")
    reverse: bool = Field(False, description="read the source from its end")
    summary: Literal["last", "mean", "max"] = Field("last", description="of the states, what a decoder starts from")


class DecoderSettings(RecurrentSettings):
    """A recurrent decoder with attention."""

    order: Literal["bahdanau", "luong", "simple", "conditional"] = Field(
        "bahdanau",
        description="attend from the state before the step, or after it; simple feeds the context on; conditional "
        "attends between two steps",
    )
    input_feeding: bool = Field(True, description="whether Luong's order feeds s̃ to the next step")
    copy_source: bool = Field(False, description="a pointer-generator: tokens of the source may be copied")


class _RecurrentSizes(Settings):
    """What every recurrent encoder-decoder has."""

    embedding: PositiveInt = Field(64, description="width of a token's vector")
    encoder: EncoderSettings = EncoderSettings()
    dropout: float = Field(0.1, ge=0, lt=1, description="on embeddings and before the output layer")
    memory_dropout: float = Field(0.0, ge=0, lt=1, description="on the states of the encoder")
    output_dropout: float | None = Field(
        None, ge=0, lt=1, description="before the output layer, if another than dropout"
    )
    tied: Literal["none", "decoder", "all"] = Field(
        "none", description="which share one matrix: target embedding and output, and the source's too"
    )

    @property
    def encoder_description(self) -> str:
        """The encoder in a few words."""
        direction = "bidirectional " if self.encoder.bidirectional else ""
        return f"{direction}{self.encoder.description} encoder"

    @property
    def dropout_before_output(self) -> float:
        return self.dropout if self.output_dropout is None else self.output_dropout

    @property
    def memory_size(self) -> int:
        """The width of a slot: both directions of the encoder side by side."""
        return self.encoder.hidden * (2 if self.encoder.bidirectional else 1)


class FixedModel(_RecurrentSizes):
    """A recurrent encoder and a recurrent decoder with one vector between them: no attention."""

    kind: Literal["fixed"] = "fixed"
    decoder: RecurrentSettings = RecurrentSettings()

    context: Literal["initial", "every_step"] = Field(
        "every_step", description="whether the vector only starts the decoder, or is read at every step"
    )

    @property
    def architecture(self) -> str:
        """The model in one line."""
        return f"{self.encoder_description}, {self.decoder.description} decoder, no attention"

    @property
    def readout(self) -> int:
        """The width of the hidden layer before the output: that of an embedding where they share a matrix."""
        return self.decoder.hidden if self.tied == "none" else self.embedding

    @property
    def shares_vocabulary(self) -> bool:
        """Whether a token must be the same in source and target."""
        return self.tied == "all"


class RecurrentModel(_RecurrentSizes):
    """A recurrent encoder and a recurrent decoder with attention between them."""

    kind: Literal["recurrent"] = "recurrent"
    decoder: DecoderSettings = DecoderSettings()
    attention: AttentionChoice = AttentionSettings()

    @property
    def architecture(self) -> str:
        """The model in one line."""
        heads = f" with {self.attention.heads} heads" if self.attention.heads > 1 else ""
        return (
            f"{self.encoder_description}, {self.decoder.description} decoder ({self.decoder.order}), "
            f"{self.attention.score.kind} attention{heads}"
        )

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        query, key, heads = self.decoder.hidden, self.memory_size, self.attention.heads
        score = self.attention.score.kind
        if score in {"dot", "scaled_dot", "cosine"} and query != key:
            raise ValueError(
                f"attention.score: {score} compares vectors of one size, and decoder.hidden is {query} while the "
                f"encoder's states have {key}. Make them equal, or take the score general."
            )
        if query % heads or key % heads:
            raise ValueError(
                f"attention.heads: {heads} heads must divide decoder.hidden ({query}) and the encoder's states ({key})."
            )
        return self

    @model_validator(mode="after")
    def _attends_to_another_sequence(self) -> Self:
        if "causal" in scope_kinds(self.attention.scope):
            raise ValueError(
                "attention.scope: a causal scope compares positions of one sequence with itself, and here a target "
                "attends to a source. Take global, local_m or local_p."
            )
        return self

    @model_validator(mode="after")
    def _points_at_what_it_copies(self) -> Self:
        if self.decoder.copy_source and self.attention.select.kind in {"hard_exact", "hard_monotonic"}:
            raise ValueError(
                f"decoder.copy_source: a {self.attention.select.kind} selection sums over what each slot would say, "
                "and has no weights to copy by. Take another selection, or no copying."
            )
        return self

    @property
    def shares_vocabulary(self) -> bool:
        """Whether a token must be the same in source and target."""
        return self.decoder.copy_source or self.tied == "all"

    @property
    def readout(self) -> int:
        """The width of the hidden layer before the output: that of an embedding where they share a matrix."""
        return self.decoder.hidden if self.tied == "none" else self.embedding


class TransformerModel(Settings):
    """The Transformer (Vaswani et al. 2017)."""

    kind: Literal["transformer"] = "transformer"
    size: PositiveInt = Field(256, description="width of a token's vector, d")
    heads: PositiveInt = 4
    layers: PositiveInt = Field(3, description="of the encoder, and of the decoder")
    decoder_layers: PositiveInt | None = Field(None, description="where the decoder has another number of layers")
    feedforward: PositiveInt = Field(1024, description="width of the hidden layer between attentions")
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    norm: Literal["post", "pre"] = Field("post", description="after each residual, as published, or before each part")
    normalization: Literal["layer", "rms"] = "layer"
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    max_positions: PositiveInt = Field(1024, description="how many learned positions there are")
    tied: Literal["none", "decoder", "all"] = Field(
        "decoder", description="which share one matrix: target embedding and output, and the source's too"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="on embeddings, and on what each part adds")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="on attention weights")
    activation_dropout: float = Field(0.0, ge=0, lt=1, description="within the feed-forward layers")
    encoder_score: Score = ScaledDot()
    self_score: Score = ScaledDot()
    cross_score: Score = ScaledDot()
    gradient_checkpointing: bool = Field(
        False,
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="layers are worked out again for their gradient: less memory",
    )

    @property
    def architecture(self) -> str:
        """The model in one line."""
        layers = f"{self.layers} encoder and {self.decoder_layers or self.layers} decoder layers"
        return f"Transformer, {layers}, width {self.size}, {self.heads} heads"

    @property
    def shares_vocabulary(self) -> bool:
        """Whether a token must be the same in source and target."""
        return self.tied == "all"

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.size % self.heads:
            raise ValueError(f"heads: {self.heads} heads must divide the size {self.size}.")
        if self.size % 2 and self.positions != "learned":
            raise ValueError(f"size: {self.positions} positions come in pairs, and {self.size} is odd.")
        if self.positions == "rotary" and (self.size // self.heads) % 2:
            raise ValueError(f"heads: rotary positions turn pairs, and a head of {self.size // self.heads} is odd.")
        return self

    @model_validator(mode="after")
    def _looks_at_itself(self) -> Self:
        for name in ("encoder_score", "self_score"):
            if getattr(self, name).kind == "location_aware":
                raise ValueError(
                    f"{name}: location_aware follows one memory from step to step, and self-attention has none that "
                    "stays. Take it as cross_score."
                )
        return self


TRANSFORMERS: dict[str, dict[str, Any]] = {
    "transformer-tiny": {"size": 128, "heads": 4, "layers": 4, "feedforward": 256, "dropout": 0.3, "tied": "all"},
    "transformer-small": {"size": 256, "heads": 4, "layers": 6, "feedforward": 1024, "dropout": 0.2, "tied": "all"},
    "transformer-base": {"size": 512, "heads": 8, "layers": 6, "feedforward": 2048, "dropout": 0.1, "tied": "all"},
    "transformer-big": {"size": 1024, "heads": 16, "layers": 6, "feedforward": 4096, "dropout": 0.3, "tied": "all"},
}
"""Sizes by name: base and big as published (Vaswani et al. 2017), tiny as in Wu et al. (2021)."""


def _sized(value: Any) -> Any:
    """A size by its name spelt out; what says no kind is recurrent."""
    if not isinstance(value, dict):
        return value
    kind = value.get("kind", "recurrent")
    return {**TRANSFORMERS[kind], **value, "kind": "transformer"} if kind in TRANSFORMERS else {**value, "kind": kind}


Model = Annotated[
    RecurrentModel | FixedModel | TransformerModel, Field(discriminator="kind"), BeforeValidator(_sized), BY_NAME
]
