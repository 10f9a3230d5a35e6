"""Settings of an attention: score, scope, selection and heads. A choice is a bare name, or a mapping with options."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, model_validator

from regard.attention.mechanisms import MECHANISMS
from regard.config import BY_NAME, Settings
from regard.formatting import did_you_mean

_HIDDEN = Field(None, description="width of the hidden layer; default: that of the query")


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
    sharpening: PositiveFloat = Field(10.0, description="initial value of β, which is learned")


class Location(Settings):
    kind: Literal["location"] = "location"
    slots: PositiveInt = Field(256, description="maximum length of the memory")


class Projected(Settings):
    kind: Literal["projected"] = "projected"
    scaled: bool = Field(True, description="divide by √d, where d is the width of a head")
    size: PositiveInt | None = Field(
        None, description="width of the projected queries and keys; default: that of the query"
    )


class LocationAware(Settings):
    kind: Literal["location_aware"] = "location_aware"
    hidden: PositiveInt | None = _HIDDEN
    filters: PositiveInt = 10
    reach: PositiveInt = Field(3, description="a filter covers this many slots on either side")
    features: Literal["last", "sum"] = Field(
        "last", description="convolve the weights of the last step, or the sum of all steps (coverage)"
    )


class CustomScore(Settings):
    """A registered score, with the options of its class."""

    kind: Literal["custom"] = "custom"
    name: str
    options: dict[str, Any] = Field(default_factory=dict)


REGISTERED: set[str] = set()
"""The names of registered scores."""


def _expand_registered(value: Any) -> Any:
    if isinstance(value, dict) and value.get("kind") in REGISTERED:
        options = {key: option for key, option in value.items() if key != "kind"}
        return {"kind": "custom", "name": value["kind"], "options": options}
    return value


Score = Annotated[
    Dot | ScaledDot | General | Additive | Concat | Cosine | Location | Projected | LocationAware | CustomScore,
    Field(discriminator="kind"),
    BeforeValidator(_expand_registered),
    BY_NAME,
]


class GlobalScope(Settings):
    kind: Literal["global"] = "global"


class LocalMonotonic(Settings):
    kind: Literal["local_m"] = "local_m"
    window: PositiveInt = Field(5, description="D: slots t − D to t + D are visible to query t")


class LocalPredictive(Settings):
    kind: Literal["local_p"] = "local_p"
    window: PositiveInt = Field(
        5, description="D: slots p − D to p + D are visible, weighted by a Gaussian with σ = D/2"
    )
    normalize: bool = Field(True, description="normalize the weights again, so that they sum to 1; the paper does not")


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
    entropy: float = Field(0.02, ge=0, description="λ_e, the weight of the entropy bonus")
    reward: PositiveFloat = Field(0.2, description="λ_r, the weight of the reward")
    soft: float = Field(0.5, ge=0, le=1, description="probability of using the soft context instead of the sample")


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


def _expand_mechanism(value: Any) -> Any:
    """Replace the name of a mechanism with its parts; parts given next to the name override them."""
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, dict) or "kind" not in value:
        return value
    name = str(value["kind"])
    if name not in MECHANISMS:
        raise ValueError(
            f"'{name}' is not a mechanism.{did_you_mean(name, MECHANISMS)} List them with `regard mechanisms`."
        )
    parts = MECHANISMS[name].parts
    for key, part in value.items():
        default = parts.get(key)
        if key != "kind":
            has_only_options = isinstance(part, dict) and "kind" not in part
            parts[key] = {**default, **part} if has_only_options and isinstance(default, dict) else part
    return parts


class AttentionSettings(Settings):
    """A score, a scope, a selection and heads. The name of a mechanism sets all of them."""

    score: Score = Additive()
    scope: Scope = GlobalScope()
    select: Selection = Softmax()
    heads: PositiveInt = 1
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the attention weights")

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        kinds = set(scope_kinds(self.scope))
        if self.select.kind in {"hard_exact", "hard_monotonic"}:
            if self.heads > 1:
                raise ValueError(
                    f"{self.select.kind} reads one slot, so it does not support {self.heads} heads. Use heads: 1."
                )
            if self.dropout:
                raise ValueError(
                    f"{self.select.kind} needs weights that sum to 1, so it does not support dropout. Use dropout: 0."
                )
        if self.select.kind == "hard_monotonic" and kinds & {"local_m", "local_p"}:
            raise ValueError(
                "hard_monotonic restricts the visible slots itself, so it cannot be combined with another scope. "
                "Use scope: global."
            )
        if self.score.kind == "location" and "local_p" in kinds:
            raise ValueError(
                "the score location and the scope local_p both depend only on the query, so the attention would "
                "ignore the memory. Use another score."
            )
        return self


def scope_kinds(scope: Settings) -> list[str]:
    """Return the kinds of a scope and of the scopes that it combines."""
    if isinstance(scope, AllOf):
        return [kind for part in scope.scopes for kind in scope_kinds(part)]
    return [str(getattr(scope, "kind", ""))]


AttentionChoice = Annotated[AttentionSettings, BeforeValidator(_expand_mechanism)]
