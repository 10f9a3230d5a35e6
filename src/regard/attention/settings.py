"""What may be set in an attention: score, scope, selection, heads; a choice by its bare name or with options."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, model_validator

from regard.attention.mechanisms import MECHANISMS
from regard.config import BY_NAME, Settings
from regard.formatting import did_you_mean

_HIDDEN = Field(None, description="width of the hidden layer; by default the query's")


class Dot(Settings):
    kind: Literal["dot"] = "dot"


class ScaledDot(Settings):
    kind: Literal["scaled_dot"] = "scaled_dot"


class General(Settings):
    kind: Literal["general"] = "general"


class Additive(Settings):
    kind: Literal["additive"] = "additive"
    hidden: PositiveInt | None = _HIDDEN


class Concat(Settings):
    kind: Literal["concat"] = "concat"
    hidden: PositiveInt | None = _HIDDEN


class Cosine(Settings):
    kind: Literal["cosine"] = "cosine"
    sharpening: PositiveFloat = Field(10.0, description="β at the start; it is learned")


class Location(Settings):
    kind: Literal["location"] = "location"
    slots: PositiveInt = Field(256, description="the longest memory that can be addressed")


class Projected(Settings):
    kind: Literal["projected"] = "projected"
    scaled: bool = Field(True, description="divide by √d, d the width of a head")
    size: PositiveInt | None = Field(None, description="width of projected queries and keys; by default the query's")


class LocationAware(Settings):
    kind: Literal["location_aware"] = "location_aware"
    hidden: PositiveInt | None = _HIDDEN
    filters: PositiveInt = 10
    reach: PositiveInt = Field(3, description="a filter sees so many slots to either side")
    features: Literal["last", "sum"] = Field(
        "last", description="of the weights of the last step, or of all (coverage)"
    )


class CustomScore(Settings):
    """A score that a user registered, with the options that its class takes."""

    kind: Literal["custom"] = "custom"
    name: str
    options: dict[str, Any] = Field(default_factory=dict)


REGISTERED: set[str] = set()
"""The names of the scores that users registered."""


def _registered(value: Any) -> Any:
    if isinstance(value, dict) and value.get("kind") in REGISTERED:
        options = {key: option for key, option in value.items() if key != "kind"}
        return {"kind": "custom", "name": value["kind"], "options": options}
    return value


Score = Annotated[
    Dot | ScaledDot | General | Additive | Concat | Cosine | Location | Projected | LocationAware | CustomScore,
    Field(discriminator="kind"),
    BeforeValidator(_registered),
    BY_NAME,
]


class GlobalScope(Settings):
    kind: Literal["global"] = "global"


class LocalMonotonic(Settings):
    kind: Literal["local_m"] = "local_m"
    window: PositiveInt = Field(5, description="D: query t sees slots t − D to t + D")


class LocalPredictive(Settings):
    kind: Literal["local_p"] = "local_p"
    window: PositiveInt = Field(5, description="D: slots p − D to p + D, under a Gaussian with σ = D/2")
    normalize: bool = Field(True, description="whether the weights are made to sum to 1 again; in the paper not")


class Causal(Settings):
    kind: Literal["causal"] = "causal"


class AllOf(Settings):
    kind: Literal["all_of"] = "all_of"
    scopes: tuple["Scope", ...] = Field(min_length=1)


Scope = Annotated[GlobalScope | LocalMonotonic | LocalPredictive | Causal | AllOf, Field(discriminator="kind"), BY_NAME]


class Softmax(Settings):
    kind: Literal["softmax"] = "softmax"


class Hard(Settings):
    kind: Literal["hard"] = "hard"
    entropy: float = Field(0.02, ge=0, description="λ of the entropy bonus")
    reward: PositiveFloat = Field(0.2, description="λ of the reward")
    soft: float = Field(0.5, ge=0, le=1, description="how often the soft context is taken in place of the sample")


class HardExact(Settings):
    kind: Literal["hard_exact"] = "hard_exact"


class HardMonotonic(Settings):
    kind: Literal["hard_monotonic"] = "hard_monotonic"


class StraightThrough(Settings):
    kind: Literal["straight_through"] = "straight_through"
    temperature: PositiveFloat = 1.0


class Sparsemax(Settings):
    kind: Literal["sparsemax"] = "sparsemax"


class Entmax15(Settings):
    kind: Literal["entmax15"] = "entmax15"


Selection = Annotated[
    Softmax | Hard | HardExact | HardMonotonic | StraightThrough | Sparsemax | Entmax15,
    Field(discriminator="kind"),
    BY_NAME,
]


def _mechanism(value: Any) -> Any:
    """A mechanism's name stands for its parts; parts beside the name replace its own."""
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, dict) or "kind" not in value:
        return value
    name = str(value["kind"])
    if name not in MECHANISMS:
        raise ValueError(
            f"there is no mechanism '{name}'.{did_you_mean(name, MECHANISMS)} `regard mechanisms` lists them."
        )
    parts = MECHANISMS[name].parts
    for key, part in value.items():
        before = parts.get(key)
        if key != "kind":
            changes_options = isinstance(part, dict) and "kind" not in part
            parts[key] = {**before, **part} if changes_options and isinstance(before, dict) else part
    return parts


class AttentionSettings(Settings):
    """One choice of score × scope × selection × heads; a name of `regard mechanisms` stands for them all."""

    score: Score = Additive()
    scope: Scope = GlobalScope()
    select: Selection = Softmax()
    heads: PositiveInt = 1
    dropout: float = Field(0.0, ge=0, lt=1, description="on the weights")

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        kinds = set(scope_kinds(self.scope))
        if self.select.kind in {"hard_exact", "hard_monotonic"}:
            if self.heads > 1:
                raise ValueError(
                    f"{self.select.kind} sums over the one slot that is read, and {self.heads} heads read several: "
                    "take heads: 1."
                )
            if self.dropout:
                raise ValueError(f"{self.select.kind} needs true probabilities, which dropout spoils: take dropout: 0.")
        if self.select.kind == "hard_monotonic" and kinds & {"local_m", "local_p"}:
            raise ValueError(
                "hard_monotonic moves its own window along the memory, and cannot have that of another scope: "
                "take scope: global."
            )
        if self.score.kind == "location" and "local_p" in kinds:
            raise ValueError(
                "location and local_p both predict a position from the state alone, so nothing would look at the "
                "memory: take another score."
            )
        return self


def scope_kinds(scope: Settings) -> list[str]:
    """The kinds of a scope and of those within it."""
    if isinstance(scope, AllOf):
        return [kind for part in scope.scopes for kind in scope_kinds(part)]
    return [str(getattr(scope, "kind", ""))]


AttentionChoice = Annotated[AttentionSettings, BeforeValidator(_mechanism)]
