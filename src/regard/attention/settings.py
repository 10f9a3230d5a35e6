"""Settings of an attention: score, scope, selection and heads. A choice is a bare name, or a mapping with options."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from regard.attention.mechanisms import find_mechanism, mechanisms
from regard.config import TRAINING_ONLY, Settings
from regard.errors import ConfigError
from regard.formatting import did_you_mean
from regard.quantities import DropoutProbability, Heads
from regard.registry import Choice, Registry, default_choice


class Score(Choice):
    """A score: how well a query matches a key. Its class attributes are described in `regard.Score`."""

    registry: ClassVar[Registry] = Registry(
        "score",
        "regard.attention.scores",
        provided=frozenset({"query_size", "key_size", "heads"}),
        facts=("equation", "chunkable", "equal_sizes", "uses_past", "reads_keys"),
    )
    equation: ClassVar[str] = ""
    chunkable: ClassVar[bool] = False
    equal_sizes: ClassVar[bool] = False
    uses_past: ClassVar[bool] = False
    reads_keys: ClassVar[bool] = True


class Scope(Choice):
    """A scope: which slots are visible to a query. Its class attributes are described in `regard.Scope`."""

    registry: ClassVar[Registry] = Registry(
        "scope",
        "regard.attention.scopes",
        provided=frozenset({"query_size"}),
        facts=("is_global", "learned", "self_only"),
    )
    is_global: ClassVar[bool] = False
    learned: ClassVar[bool] = False
    self_only: ClassVar[bool] = False

    def parts(self) -> tuple["Scope", ...]:
        """Return the scopes that this one combines, its option `scopes`; itself if it combines none."""
        scopes = [scope for scope in getattr(self, "scopes", ()) if isinstance(scope, Scope)]
        return tuple(part for scope in scopes for part in scope.parts()) or (self,)


class Selection(Choice):
    """A selection: how scores become weights. Its class attributes are described in `regard.Selection`."""

    registry: ClassVar[Registry] = Registry(
        "selection", "regard.attention.selections", facts=("is_softmax", "marginal", "uses_past", "restricts_slots")
    )
    is_softmax: ClassVar[bool] = False
    marginal: ClassVar[bool] = False
    uses_past: ClassVar[bool] = False
    restricts_slots: ClassVar[bool] = False


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

    score: Score = default_choice("additive")
    scope: Scope = default_choice("global")
    select: Selection = default_choice("softmax")
    heads: Heads = Field(1, description="number of heads")
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
        check_scope(self.select.kind, self.select, *self.scope.parts())
        if not self.score.reads_keys and any(scope.learned for scope in self.scope.parts()):
            raise ValueError(
                f"the score {self.score.kind} and the scope {self.scope.kind} both depend only on the query, so the "
                "attention would ignore the memory. Use another score."
            )
        return self


def check_scope(name: str, select: Any, *scopes: Any) -> None:
    """Raise ConfigError if a selection cannot be combined with a scope. Both are settings or both are modules, which
    have the same attributes. `name` is the name of the selection in the message.
    """
    if select.restricts_slots and not all(scope.is_global for scope in scopes):
        raise ConfigError(
            f"{name} restricts the visible slots itself, so it cannot be combined with another scope. Use scope: "
            "global."
        )


AttentionChoice = Annotated[AttentionSettings, BeforeValidator(_expand_mechanism)]
