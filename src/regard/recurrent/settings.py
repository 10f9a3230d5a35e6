"""What may be set in a recurrent network."""

from typing import Literal

from pydantic import Field, PositiveInt

from regard.config import Settings


class RecurrentSettings(Settings):
    """A stack of recurrent layers."""

    cell: Literal["gru"] = "gru"
    hidden: PositiveInt = Field(128, description="width of the state, of each direction")
    layers: PositiveInt = 1
    dropout: float = Field(0.0, ge=0, lt=1, description="between layers")
