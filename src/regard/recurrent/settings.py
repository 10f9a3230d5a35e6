"""Settings of recurrent networks: the cell, and the stack of layers built from it."""

from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from regard.config import TRAINING_ONLY, Settings
from regard.quantities import Bias, DropoutProbability, Layers, Width
from regard.registry import Choice, Registry

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

    @property
    def non_default(self) -> dict[str, bool | str]:
        """The switches that differ from the standard LSTM."""
        defaults = LSTMVariant()._asdict()
        return {name: value for name, value in self._asdict().items() if value != defaults[name]}

    @property
    def bounded(self) -> bool:
        """Whether the output stays bounded over any number of steps, for all weights."""
        return "tanh" in (self.input_activation, self.output_activation)

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
    """A recurrent cell. Class attributes describe the cell for models and `regard explain`."""

    registry: ClassVar[Registry[Any]] = Registry(
        "cell",
        "regard.recurrent.cells",
        provided=frozenset({"input_size", "hidden_size", "layer_norm"}),
        facts=("state_parts", "initial_parts"),
    )

    state_parts: ClassVar[tuple[str, ...]] = ("h",)
    """The names of the tensors of a state. The first is the output."""
    initial_parts: ClassVar[int] = 1
    """The number of these tensors, each as wide as the output, that a decoder initializes from the source. The others
    start at zero.
    """

    def description(self, variant: str | None) -> str:
        """Return the name of the cell with the options that differ from their defaults."""
        del variant
        changed = self.model_dump(exclude_defaults=True)
        return " ".join([self.kind.upper(), *(f"{name}={value}" for name, value in changed.items())])

    def builder_options(self, variant: str | None) -> dict[str, Any]:
        """Return the options of the cell as its class expects them. Raise ValueError if the variant does not exist."""
        if variant is not None:
            raise ValueError(
                f"variant: {variant} is an LSTM variant, but the cell is {self.kind}. Set cell=lstm as well."
            )
        return {name: getattr(self, name) for name in type(self).model_fields if name != "kind"}


class RNN(Cell):
    kind: Literal["rnn"] = "rnn"
    activation: Literal["tanh", "relu"] = "tanh"

    def description(self, variant: str | None) -> str:
        del variant
        return f"RNN with {self.activation}"


class GRU(Cell):
    kind: Literal["gru"] = "gru"
    reset: Literal["before", "after"] = Field(
        "after", description="apply the reset gate before or after the product with R"
    )

    def description(self, variant: str | None) -> str:
        del variant
        return f"GRU, reset {self.reset} the product with R"


def _switch(description: str) -> bool | None:
    switch: bool | None = Field(None, description=f"{description}; by default as in the variant")
    return switch


class LSTM(Cell):
    """The standard LSTM, or the variant named by `variant`; a switch that is set overrides the variant."""

    state_parts: ClassVar[tuple[str, ...]] = ("h", "c")
    initial_parts: ClassVar[int] = 2

    kind: Literal["lstm"] = "lstm"
    input_gate: bool | None = _switch("learn an input gate i; otherwise i = 1")
    forget_gate: bool | None = _switch("learn a forget gate f; otherwise f = 1")
    output_gate: bool | None = _switch("learn an output gate o; otherwise o = 1")
    coupled: bool | None = _switch("couple the input and forget gates: f = 1 − i")
    input_activation: Activation | None = Field(None, description="activation of the candidate z")
    output_activation: Activation | None = Field(
        None, description="activation of the cell state before the output gate"
    )
    peepholes: bool | None = _switch("let the gates read the cell state")
    gate_recurrence: bool | None = _switch("let each gate read all gates of the previous step")
    forget_bias: Bias = Field(
        1.0, json_schema_extra=TRAINING_ONLY, description="initial bias of the forget gate; a positive value opens it"
    )

    def select_variant(self, name: str | None) -> LSTMVariant:
        """Return the variant that a name (None for the standard LSTM) and the switches select together."""
        switches = {name: getattr(self, name) for name in LSTMVariant._fields}
        return VARIANTS.get(name or "", LSTMVariant())._replace(
            **{name: value for name, value in switches.items() if value is not None}
        )

    def description(self, variant: str | None) -> str:
        selected = self.select_variant(variant)
        names = [name for name, known in VARIANTS.items() if known == selected and selected.non_default]
        return " ".join(["LSTM", *(names or (f"{name}={value}" for name, value in selected.non_default.items()))])

    def builder_options(self, variant: str | None) -> dict[str, Any]:
        selected = self.select_variant(variant)
        contradiction = selected.find_contradiction()
        if contradiction:
            raise ValueError(f"the LSTM settings contradict each other: {contradiction}.")
        return {"variant": selected, "forget_bias": self.forget_bias}


class RecurrentSettings(Settings):
    """A stack of recurrent layers."""

    cell: Cell = GRU()
    variant: VariantName | None = Field(
        None, description="LSTM variant by its name in Greff et al. (2015); by default the standard LSTM"
    )
    hidden: Width = Field(128, description="state width, per direction")
    layers: Layers = 1
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

    @model_validator(mode="after")
    def _check_variant(self) -> Self:
        self.cell.builder_options(self.variant)
        return self
