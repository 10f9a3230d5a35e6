"""What may be set in an attention: score, scope, selection, each by its bare name or with options."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from regard.attention.mechanisms import MECHANISMS
from regard.config import BY_NAME, Settings
from regard.errors import did_you_mean


class Additive(Settings):
    kind: Literal["additive"] = "additive"
    hidden: PositiveInt | None = Field(None, description="width of the hidden layer; by default the query's")


class Dot(Settings):
    kind: Literal["dot"] = "dot"


class ScaledDot(Settings):
    kind: Literal["scaled_dot"] = "scaled_dot"


class General(Settings):
    kind: Literal["general"] = "general"


Score = Annotated[Additive | Dot | ScaledDot | General, Field(discriminator="kind"), BY_NAME]


class GlobalScope(Settings):
    kind: Literal["global"] = "global"


class LocalMonotonic(Settings):
    kind: Literal["local_m"] = "local_m"
    window: PositiveInt = Field(5, description="D: query t sees slots t − D to t + D")


Scope = Annotated[GlobalScope | LocalMonotonic, Field(discriminator="kind"), BY_NAME]


class Softmax(Settings):
    kind: Literal["softmax"] = "softmax"


Selection = Annotated[Softmax, BY_NAME]


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
        if key != "kind":
            changes_options = isinstance(part, dict) and "kind" not in part and key in parts
            parts[key] = {**parts[key], **part} if changes_options else part
    return parts


class AttentionSettings(Settings):
    """One choice of score × scope × selection; a name of `regard mechanisms` stands for all three."""

    score: Score = Additive()
    scope: Scope = GlobalScope()
    select: Selection = Softmax()


AttentionChoice = Annotated[AttentionSettings, BeforeValidator(_mechanism)]
