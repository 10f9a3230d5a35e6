"""Settings of recurrent networks: the cell, and the stack of layers built from it."""

from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from regard.config import TRAINING_ONLY, Settings
from regard.quantities import DropoutProbability, Layers, Width
from regard.registry import Choice, Registry, default_choice

Activation = Literal["tanh", "identity"]
VariantName = Literal["vanilla", "NIG", "NFG", "NOG", "NIAF", "NOAF", "NP", "CIFG", "FGR", "simplified"]


class LSTMVariant(NamedTuple):
    """An LSTM variant: the switches of "A Search Space Odyssey" (Greff et al. 2015), each independent of the others.

    The defaults are the standard LSTM of torch.nn.
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
    def early_gates(self) -> tuple[str, ...]:
        """The learned gates whose peepholes read the cell state before its update."""
        learns_forget_gate = self.forget_gate and not self.coupled
        return ("input",) * self.input_gate + ("forget",) * learns_forget_gate

    @property
    def gates(self) -> tuple[str, ...]:
        """The learned gates, in the order of their rows in the weight matrices. The candidate z follows them."""
        return self.early_gates + ("output",) * self.output_gate

    def override(self, *switches: bool | str | None) -> "LSTMVariant":
        """Return the variant with those of the switches, given in order, that are not None."""
        return LSTMVariant._make(old if new is None else new for old, new in zip(self, switches, strict=True))

    @property
    def non_default(self) -> dict[str, bool | str]:
        """The switches that differ from the standard LSTM."""
        defaults = LSTMVariant()._asdict()
        return {name: value for name, value in self._asdict().items() if value != defaults[name]}

    @property
    def bounded(self) -> bool:
        """Whether the output stays bounded over any number of steps, for all weights."""
        return "tanh" in (self.input_activation, self.output_activation)

    @property
    def description(self) -> str:
        """The name of the variant, or else the switches that differ from the standard LSTM."""
        names = [name for name, variant in VARIANTS.items() if variant == self and self.non_default]
        return " ".join(["LSTM", *(names or (f"{name}={value}" for name, value in self.non_default.items()))])

    def find_contradiction(self) -> str | None:
        """Return why the switches contradict each other, or None if they do not."""
        if self.coupled and not self.input_gate:
            return "coupled gates mean f = 1 − i, but without an input gate (i = 1) the cell would forget everything"
        if self.coupled and not self.forget_gate:
            return "coupled gates mean f = 1 − i, but forget_gate: false means f = 1; set only one of the two"
        if not self.gates:
            for name in ("peepholes", "gate_recurrence"):
                if getattr(self, name):
                    return f"{name} requires at least one gate, but all gates are disabled"
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
"""The variants by their names in Greff et al. (2015). Its vanilla LSTM has peepholes; each variant changes one
switch, except simplified, which changes two.
"""


class Cell(Choice):
    """A recurrent cell. Its class attributes are described in `regard.Cell`."""

    registry: ClassVar[Registry] = Registry(
        "cell",
        "regard.recurrent.cells",
        provided=frozenset({"input_size", "hidden_size", "layer_norm", "lstm_variant", "role"}),
        facts=("state_parts", "initial_parts"),
    )
    state_parts: ClassVar[tuple[str, ...]] = ("h",)
    initial_parts: ClassVar[int] = 1

    @property
    def description(self) -> str:
        """The name of the cell with the options that differ from their defaults."""
        changed = self.model_dump(exclude_defaults=True)
        return " ".join([self.kind.upper(), *(f"{name}={value}" for name, value in changed.items())])


class RecurrentSettings(Settings):
    """A stack of recurrent layers."""

    cell: Cell = default_choice("gru")
    variant: VariantName | None = Field(
        None, description="LSTM variant by its name in Greff et al. (2015); by default the standard LSTM"
    )
    hidden: Width = Field(128, description="state width, per direction")
    layers: Layers = Field(1, description="number of layers")
    dropout: DropoutProbability = Field(0.0, json_schema_extra=TRAINING_ONLY, description="dropout between layers")
    variational: bool = Field(
        False,
        json_schema_extra=TRAINING_ONLY,
        description="use the same dropout mask at all steps, on the recurrent state too",
    )
    residual: bool = Field(False, description="add each layer's input to its output, from the second layer on")
    layer_norm: bool = Field(False, description="normalize W x and R h separately before the gates")

    @property
    def description(self) -> str:
        """Cell, layers and width: `GRU 2 × 128`."""
        variant = f"{self.variant} " if self.variant else ""
        return f"{variant}{self.cell.kind.upper()} {self.layers} × {self.hidden}"

    @property
    def initial_state_size(self) -> int:
        """The width of a vector that holds the initial states of one direction; an LSTM has h and c per layer."""
        return self.hidden * self.layers * self.cell.initial_parts

    @property
    def lstm_variant(self) -> LSTMVariant:
        """The LSTM that `variant` and the switches of the cell select together; a switch overrides the variant."""
        named = VARIANTS[self.variant] if self.variant else LSTMVariant()
        return named.override(*(getattr(self.cell, name, None) for name in LSTMVariant._fields))

    @model_validator(mode="after")
    def _check_variant(self) -> Self:
        if self.cell.kind != "lstm":
            if self.variant is not None:
                raise ValueError(
                    f"variant: {self.variant} is an LSTM variant, but the cell is {self.cell.kind}. Set cell=lstm as "
                    "well."
                )
            return self
        contradiction = self.lstm_variant.find_contradiction()
        if contradiction and "coupled" in type(self.cell).model_fields:  # otherwise the options are not validated yet
            raise ValueError(f"the LSTM settings contradict each other: {contradiction}.")
        return self
