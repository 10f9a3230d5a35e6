"""What may be set in decoding."""

from typing import Any, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from regard.config import MAY_CHANGE_ON_RESUME, Settings


class SearchSettings(Settings):
    """How an answer is looked for: greedily, with a beam, or by drawing."""

    beam: PositiveInt = Field(
        1, description="hypotheses kept at each step; 1 is greedy search. By default as many as nbest and groups need"
    )
    nbest: PositiveInt = Field(1, description="answers to each source, the best first")
    length_penalty: NonNegativeFloat = Field(0.6, description="α: log p is divided by ((5 + length) / 6)^α")
    coverage_penalty: NonNegativeFloat = Field(0.0, description="β, for source tokens that no answer token looked at")
    groups: PositiveInt = Field(1, description="diverse groups that a beam is divided into")
    diversity_penalty: NonNegativeFloat = Field(0.5, description="what a token costs that another group has just said")
    sample: bool = Field(False, description="draw each token instead of taking the likeliest")
    temperature: PositiveFloat = Field(1.0, description="of drawing: below 1 bolder, above 1 freer")
    top_k: NonNegativeInt = Field(0, description="draw from the k likeliest tokens; 0 is all")
    top_p: float = Field(1.0, gt=0, le=1, description="draw from the likeliest tokens that have this share together")
    min_p: float = Field(0.0, ge=0, lt=1, description="draw from tokens at least this share as likely as the likeliest")
    mbr_samples: NonNegativeInt = Field(0, description="draw so many answers, take the one most like the others (chrF)")
    no_repeat_ngram: NonNegativeInt = Field(0, description="no sequence of so many tokens is said twice; 0 is no guard")
    repetition_penalty: float = Field(1.0, ge=1, description="what tokens already said are made less likely by")
    min_length: NonNegativeInt = Field(0, description="tokens before an answer may end")
    seed: NonNegativeInt = Field(0, description="of drawing")

    @model_validator(mode="before")
    @classmethod
    def _wide_enough(cls, values: Any) -> Any:
        """By default, the beam is the smallest multiple of `groups` that holds `nbest` hypotheses."""
        if not isinstance(values, dict) or values.get("sample") or values.get("mbr_samples"):
            return values
        nbest, groups = values.get("nbest", 1), values.get("groups", 1)
        if not (isinstance(nbest, int) and isinstance(groups, int) and groups > 0):
            return values  # rejected by the types of the fields
        return {"beam": -(-nbest // groups) * groups, **values}

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.beam % self.groups:
            raise ValueError(f"groups: {self.groups} groups must divide the beam of {self.beam}.")
        if self.sample and self.beam > 1:
            raise ValueError("sample: drawing and a beam exclude each other; draw several answers with nbest.")
        if not self.sample and not self.mbr_samples and self.nbest > self.beam:
            raise ValueError(f"nbest: a beam of {self.beam} has no {self.nbest} answers. Widen the beam.")
        return self


class DecodingSettings(Settings):
    """An answer has at most `max_length_ratio` · (source length) + `max_length_extra` tokens."""

    max_length_ratio: PositiveFloat = Field(2.0, json_schema_extra=MAY_CHANGE_ON_RESUME)
    max_length_extra: NonNegativeInt = Field(20, json_schema_extra=MAY_CHANGE_ON_RESUME)
