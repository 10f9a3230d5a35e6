"""What may be set in a model."""

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from regard.attention.settings import AttentionChoice, AttentionSettings, scope_kinds
from regard.config import Settings
from regard.recurrent.settings import RecurrentSettings


class EncoderSettings(RecurrentSettings):
    """A recurrent encoder."""

    bidirectional: bool = True
    initial_state: Literal["zero", "learned"] = Field("zero", description="the state before the first step")


class DecoderSettings(RecurrentSettings):
    """A recurrent decoder."""

    order: Literal["bahdanau"] = Field("bahdanau", description="attend from the state before the step")


class RecurrentModel(Settings):
    """A recurrent encoder and a recurrent decoder with attention between them."""

    kind: Literal["recurrent"] = "recurrent"
    embedding: PositiveInt = Field(64, description="width of a token's vector")
    encoder: EncoderSettings = EncoderSettings()
    decoder: DecoderSettings = DecoderSettings()
    attention: AttentionChoice = AttentionSettings()
    dropout: float = Field(0.1, ge=0, lt=1, description="on embeddings and before the output layer")

    @property
    def memory_size(self) -> int:
        """The width of a slot: both directions of the encoder side by side."""
        return self.encoder.hidden * (2 if self.encoder.bidirectional else 1)

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
