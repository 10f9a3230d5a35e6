"""What may be set in a recurrent network: the cell, and the stack that it is put in."""

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, PositiveInt, model_validator

from regard.config import BY_NAME, Settings

Activation = Literal["tanh", "identity"]
Variant = Literal["vanilla", "NIG", "NFG", "NOG", "NIAF", "NOAF", "NP", "CIFG", "FGR", "simplified"]


class LSTMVariant(NamedTuple):
    """Which LSTM it is: the switches of "A Search Space Odyssey" (Greff et al. 2015), each independent of the others.

    As it stands, the usual cell.
    """

    input_gate: bool = True
    forget_gate: bool = True
    output_gate: bool = True
    coupled: bool = False
    input_activation: Activation = "tanh"
    output_activation: Activation = "tanh"
    peepholes: bool = False
    gate_recurrence: bool = False

    @property
    def early(self) -> tuple[str, ...]:
        """The gates that are learned and look at the cell before it changes."""
        own_forget_gate = self.forget_gate and not self.coupled
        return ("input",) * self.input_gate + ("forget",) * own_forget_gate

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates that are learned, in the order of the matrices' rows; the candidate z comes after them."""
        return self.early + ("output",) * self.output_gate

    @property
    def changed(self) -> dict[str, bool | str]:
        """The switches that stand otherwise than in the usual cell."""
        usual = LSTMVariant()._asdict()
        return {name: value for name, value in self._asdict().items() if value != usual[name]}

    @property
    def bounded(self) -> bool:
        """Whether an output cannot grow from step to step without end, whatever the weights."""
        return "tanh" in (self.input_activation, self.output_activation)

    def contradiction(self) -> str | None:
        """Why no such cell exists, or None if it does."""
        if self.coupled and not self.input_gate:
            return "coupled gates mean f = 1 − i, and without an input gate (i = 1) nothing would be remembered"
        if self.coupled and not self.forget_gate:
            return "coupled gates mean f = 1 − i, and forget_gate: false means f = 1; take one of the two"
        if not self.gates:
            for name in ("peepholes", "gate_recurrence"):
                if getattr(self, name):
                    return f"{name} belong to gates, and every gate is switched off"
        return None


_VANILLA = LSTMVariant(peepholes=True)
VARIANTS: dict[str, LSTMVariant] = {
    "vanilla": _VANILLA,
    "NIG": _VANILLA._replace(input_gate=False),
    "NFG": _VANILLA._replace(forget_gate=False),
    "NOG": _VANILLA._replace(output_gate=False),
    "NIAF": _VANILLA._replace(input_activation="identity"),
    "NOAF": _VANILLA._replace(output_activation="identity"),
    "NP": _VANILLA._replace(peepholes=False),
    "CIFG": _VANILLA._replace(coupled=True),
    "FGR": _VANILLA._replace(gate_recurrence=True),
    "simplified": _VANILLA._replace(coupled=True, peepholes=False),
}
"""The Odyssey's names: its vanilla LSTM has peepholes, each variant changes one thing; simplified changes two."""


class RNN(Settings):
    kind: Literal["rnn"] = "rnn"
    activation: Literal["tanh", "relu"] = "tanh"


class GRU(Settings):
    kind: Literal["gru"] = "gru"
    reset: Literal["before", "after"] = Field("after", description="the reset gate, and the product with R")


def _switch(description: str) -> bool | None:
    switch: bool | None = Field(None, description=f"{description}; by default as the variant has it")
    return switch


class LSTM(Settings):
    """The usual LSTM, or the variant that is named beside it; each switch may be set by itself."""

    kind: Literal["lstm"] = "lstm"
    input_gate: bool | None = _switch("i, else 1")
    forget_gate: bool | None = _switch("f, else 1")
    output_gate: bool | None = _switch("o, else 1")
    coupled: bool | None = _switch("f = 1 − i")
    input_activation: Activation | None = Field(None, description="of the candidate z")
    output_activation: Activation | None = Field(None, description="of the cell on its way out")
    peepholes: bool | None = _switch("the gates look into the cell")
    gate_recurrence: bool | None = _switch("the gates look at all gates of the step before")
    forget_bias: float = Field(1.0, description="the forget gate's bias at the start, so that it starts open")


Cell = Annotated[RNN | GRU | LSTM, Field(discriminator="kind"), BY_NAME]


class RecurrentSettings(Settings):
    """A stack of recurrent layers."""

    cell: Cell = GRU()
    variant: Variant | None = Field(
        None, description="which LSTM, by its name in the Odyssey; by default the usual one"
    )
    hidden: PositiveInt = Field(128, description="width of the state, of each direction")
    layers: PositiveInt = 1
    dropout: float = Field(0.0, ge=0, lt=1, description="between layers")
    variational: bool = Field(False, description="one dropout mask for all steps, on the state's way back too")
    residual: bool = Field(False, description="each layer but the first adds to what it is given")
    layer_norm: bool = Field(False, description="normalize what enters the gates, from input and state apart")

    @property
    def description(self) -> str:
        """Cell, layers and width: `GRU 2 × 128`."""
        variant = f"{self.variant} " if self.variant else ""
        return f"{variant}{self.cell.kind.upper()} {self.layers} × {self.hidden}"

    @property
    def start_size(self) -> int:
        """The width of a vector that the states of one direction can be made of: an LSTM's have a cell besides."""
        return self.hidden * self.layers * (2 if isinstance(self.cell, LSTM) else 1)

    @property
    def form(self) -> LSTMVariant:
        """The LSTM that variant and switches name together."""
        if not isinstance(self.cell, LSTM):
            raise TypeError(f"a {self.cell.kind} has no form of LSTM")
        given = {name: getattr(self.cell, name) for name in LSTMVariant._fields}
        return VARIANTS.get(self.variant or "", LSTMVariant())._replace(
            **{name: value for name, value in given.items() if value is not None}
        )

    @model_validator(mode="after")
    def _describes_a_cell(self) -> Self:
        if isinstance(self.cell, LSTM):
            contradiction = self.form.contradiction()
            if contradiction:
                raise ValueError(f"no such LSTM: {contradiction}.")
        elif self.variant is not None:
            raise ValueError(
                f"variant: {self.variant} names an LSTM, and the cell is {self.cell.kind}. Set cell=lstm beside it."
            )
        return self
