"""Settings of an attention: score, scope, selection and heads. A choice is a bare name, or a mapping with options."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from regard.attention.mechanisms import find_mechanism, mechanisms
from regard.config import TRAINING_ONLY, Settings
from regard.formatting import did_you_mean
from regard.quantities import DropoutProbability, Fraction, Heads, Length, PositiveWeight, Temperature, Weight, Width
from regard.registry import Choice, Registry

_HIDDEN = Field(None, description="width of the hidden layer; default: that of the query")


class Score(Choice):
    """How well a query matches a key. Class attributes describe the score for validation and dispatch."""

    registry: ClassVar[Registry[Any]] = Registry(
        "score",
        "regard.attention.scores",
        provided=frozenset({"query_size", "key_size", "heads"}),
        facts=("equation", "chunkable", "equal_sizes", "uses_past", "reads_keys"),
    )

    equation: ClassVar[str] = ""
    """The score as text."""
    chunkable: ClassVar[bool] = False
    """Whether the score is computed in chunks of bounded memory (`ops/additive_score.py`)."""
    equal_sizes: ClassVar[bool] = False
    """Whether queries and keys must have the same size."""
    uses_past: ClassVar[bool] = False
    """Whether the score depends on the weights of previous steps, so that steps must run one by one."""
    reads_keys: ClassVar[bool] = True
    """Whether the score depends on the keys."""


class Dot(Score):
    kind: Literal["dot"] = "dot"
    equation: ClassVar[str] = "e = qᵀ k"
    equal_sizes: ClassVar[bool] = True


class ScaledDot(Score):
    kind: Literal["scaled_dot"] = "scaled_dot"
    equation: ClassVar[str] = "e = qᵀ k / √d"
    equal_sizes: ClassVar[bool] = True


class General(Score):
    kind: Literal["general"] = "general"
    equation: ClassVar[str] = "e = qᵀ W k"


class Additive(Score):
    kind: Literal["additive"] = "additive"
    equation: ClassVar[str] = "e = vᵀ tanh(W q + U k)"
    chunkable: ClassVar[bool] = True
    hidden: Width | None = _HIDDEN


class Concat(Score):
    kind: Literal["concat"] = "concat"
    equation: ClassVar[str] = "e = vᵀ tanh(W [k; q])"
    chunkable: ClassVar[bool] = True
    hidden: Width | None = _HIDDEN


class Cosine(Score):
    kind: Literal["cosine"] = "cosine"
    equation: ClassVar[str] = "e = β cos(q, k), β > 0 learned for each head"
    equal_sizes: ClassVar[bool] = True
    sharpening: PositiveWeight = Field(
        10.0, json_schema_extra=TRAINING_ONLY, description="initial value of β, which is learned"
    )


class Location(Score):
    kind: Literal["location"] = "location"
    equation: ClassVar[str] = "e_j = (W q)_j"
    reads_keys: ClassVar[bool] = False
    slots: Length = Field(256, description="maximum length of the memory")


class Projected(Score):
    kind: Literal["projected"] = "projected"
    equation: ClassVar[str] = "e = (W_Q q)ᵀ (W_K k), divided by √d if scaled"
    scaled: bool = Field(True, description="divide by √d, where d is the width of a head")
    size: Width | None = Field(None, description="width of the projected queries and keys; default: that of the query")


class LocationAware(Score):
    kind: Literal["location_aware"] = "location_aware"
    equation: ClassVar[str] = "e = vᵀ tanh(W q + U k + V f), f = F ∗ a₋"
    chunkable: ClassVar[bool] = True
    uses_past: ClassVar[bool] = True
    hidden: Width | None = _HIDDEN
    filters: Width = 10
    reach: Length = Field(3, description="a filter covers this many slots on either side")
    features: Literal["last", "sum"] = Field(
        "last", description="convolve the weights of the last step, or the sum of all steps (coverage)"
    )


class Scope(Choice):
    """Which slots are visible to a query, in addition to the mask of the memory."""

    registry: ClassVar[Registry[Any]] = Registry(
        "scope",
        "regard.attention.scopes",
        provided=frozenset({"query_size"}),
        facts=("is_global", "learned", "self_only"),
    )

    is_global: ClassVar[bool] = False
    """Whether every slot is visible, so that the scope needs no computation."""
    learned: ClassVar[bool] = False
    """Whether the scope depends on the queries, so that it needs a gradient."""
    self_only: ClassVar[bool] = False
    """Whether the scope is defined only for self-attention."""

    def parts(self) -> tuple["Scope", ...]:
        """Return the scopes that this one combines; itself if it combines none."""
        return (self,)


class GlobalScope(Scope):
    kind: Literal["global"] = "global"
    is_global: ClassVar[bool] = True


class LocalMonotonic(Scope):
    kind: Literal["local_m"] = "local_m"
    window: Length = Field(5, description="D: slots t − D to t + D are visible to query t")


class LocalPredictive(Scope):
    kind: Literal["local_p"] = "local_p"
    learned: ClassVar[bool] = True
    window: Length = Field(5, description="D: slots p − D to p + D are visible, weighted by a Gaussian with σ = D/2")
    normalize: bool = Field(True, description="normalize the weights again, so that they sum to 1; the paper does not")
    scaled: bool = Field(
        False,
        description="divide the argument of the sigmoid by √d (d: width of the query), so that the sigmoid does not "
        "saturate early in training; not in the paper",
    )


class Causal(Scope):
    kind: Literal["causal"] = "causal"
    self_only: ClassVar[bool] = True


class AllOf(Scope):
    kind: Literal["all_of"] = "all_of"
    scopes: tuple[Scope, ...] = Field(min_length=1)

    def parts(self) -> tuple[Scope, ...]:
        return tuple(part for scope in self.scopes for part in scope.parts())


class Selection(Choice):
    """How scores become weights."""

    registry: ClassVar[Registry[Any]] = Registry(
        "selection", "regard.attention.selections", facts=("is_softmax", "marginal", "uses_past", "restricts_slots")
    )

    is_softmax: ClassVar[bool] = False
    """Whether the weights are the softmax of the scores, which fused kernels compute."""
    marginal: ClassVar[bool] = False
    """Whether the output distribution is marginalized over the slot that is read, with the weights as probabilities."""
    uses_past: ClassVar[bool] = False
    """Whether it depends on the belief about the previous position."""
    restricts_slots: ClassVar[bool] = False
    """Whether it restricts the visible slots itself, so that it cannot be combined with a scope."""


class Softmax(Selection):
    kind: Literal["softmax"] = "softmax"
    is_softmax: ClassVar[bool] = True


class Hard(Selection):
    kind: Literal["hard"] = "hard"
    entropy: Weight = Field(0.02, json_schema_extra=TRAINING_ONLY, description="λ_e, the weight of the entropy bonus")
    reward: PositiveWeight = Field(0.2, json_schema_extra=TRAINING_ONLY, description="λ_r, the weight of the reward")
    soft: Fraction = Field(
        0.5, json_schema_extra=TRAINING_ONLY, description="probability of using the soft context instead of the sample"
    )


class HardExact(Selection):
    kind: Literal["hard_exact"] = "hard_exact"
    marginal: ClassVar[bool] = True


class HardMonotonic(Selection):
    kind: Literal["hard_monotonic"] = "hard_monotonic"
    marginal: ClassVar[bool] = True
    uses_past: ClassVar[bool] = True
    restricts_slots: ClassVar[bool] = True


class StraightThrough(Selection):
    kind: Literal["straight_through"] = "straight_through"
    temperature: Temperature = Field(1.0, json_schema_extra=TRAINING_ONLY)


class Sparsemax(Selection):
    kind: Literal["sparsemax"] = "sparsemax"


class Entmax15(Selection):
    kind: Literal["entmax15"] = "entmax15"


def _expand_mechanism(value: Any) -> Any:
    """Replace the name of a mechanism with its parts; parts given next to the name override them."""
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, dict) or "kind" not in value:
        return value
    name = str(value["kind"])
    mechanism = find_mechanism(name)
    if mechanism is None:
        names = [entry.name for entry in mechanisms()]
        raise ValueError(f"'{name}' is not a mechanism.{did_you_mean(name, names)} List them with `regard mechanisms`.")
    parts = mechanism.parts
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
    heads: Heads = 1
    dropout: DropoutProbability = Field(
        0.0, json_schema_extra=TRAINING_ONLY, description="dropout of the attention weights"
    )

    @property
    def description(self) -> str:
        """A description by selection, scope and score: "hard-monotonic attention (additive score)"."""
        scopes = [scope.kind for scope in self.scope.parts() if not scope.is_global]
        kinds = [*([] if self.select.is_softmax else [self.select.kind]), *scopes]
        heads = f" with {self.heads} heads" if self.heads > 1 else ""
        score = f" ({self.score.kind} score)" if kinds else ""
        name = f"{' '.join(kinds or [self.score.kind])} attention{heads}{score}"
        return name.replace("_", "-")

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.select.marginal:
            if self.heads > 1:
                raise ValueError(
                    f"{self.select.kind} reads one slot, so it does not support {self.heads} heads. Use heads: 1."
                )
            if self.dropout:
                raise ValueError(
                    f"{self.select.kind} needs weights that sum to 1, so it does not support dropout. Use dropout: 0."
                )
        if self.select.restricts_slots and not all(scope.is_global or scope.self_only for scope in self.scope.parts()):
            raise ValueError(f"{self.select.kind} {RESTRICTS_SLOTS}")
        if not self.score.reads_keys and any(scope.learned for scope in self.scope.parts()):
            raise ValueError(
                f"the score {self.score.kind} and the scope {self.scope.kind} both depend only on the query, so the "
                "attention would ignore the memory. Use another score."
            )
        return self


RESTRICTS_SLOTS = "restricts the visible slots itself, so it cannot be combined with another scope. Use scope: global."

AttentionChoice = Annotated[AttentionSettings, BeforeValidator(_expand_mechanism)]
