"""Recurrent cells: one step of recurrence each. The projection of the input does not depend on the state, so `project`
computes it for all steps at once, and `step` adds the projection of the state. These equations define the result; the
implementations in `fast` must reproduce it.

B rows, T steps, D input width, H state width, G width of all gates together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, Literal, final

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.arguments import check_floating, check_tensors
from regard.attention.attention import Attention, Part, Role
from regard.attention.scores import Projected
from regard.attention.settings import Score as ScoreSettings
from regard.attention.tape import EARLIER, Tape
from regard.config import TRAINING_ONLY
from regard.errors import ConfigError
from regard.ops.hooks import ObservedModule
from regard.quantities import Bias
from regard.recurrent import settings
from regard.recurrent.settings import Activation, LSTMVariant, RecurrentSettings

State = tuple[Any, ...]
"""The state that a cell carries from step to step: tensors with rows on axis 0, and possibly a tape. The first is the
output.
"""


class Cell(ObservedModule, ABC):
    """One step of recurrence.

    A subclass calls `super().__init__(input_size, hidden_size, width, layer_norm)` with the width of all its gates
    together, and defines `step`.

    With layer normalization (Ba et al. 2016), W x and R h are each normalized over all gates before they are added. A
    GRU that resets before the product multiplies by R twice, once for r and z and once for n; each product is
    normalized separately.
    """

    state_parts: tuple[str, ...] = ("h",)
    """The names of the tensors of a state. The first is the output."""
    initial_parts: int = 1
    """The number of these tensors, each as wide as the output, that a decoder initializes from the source. The others
    start at zero.
    """
    description: str = ""
    """The cell with its options, for `regard explain`; by default, as in the settings."""

    def __init__(self, input_size: int, hidden_size: int, width: int, layer_norm: bool) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.width = input_size, hidden_size, width
        self.weight_input = self._uniform(width, input_size)
        self.weight_state = self._uniform(width, hidden_size)
        self.bias_input = self._uniform(width)
        self.gain_input = nn.Parameter(torch.ones(width)) if layer_norm else None
        self.gain_state = nn.Parameter(torch.ones(width)) if layer_norm else None

    def _uniform(self, *shape: int) -> nn.Parameter:
        bound = self.hidden_size**-0.5
        return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + (", layer_norm=True" if self.layer_norm else "")

    @property
    def layer_norm(self) -> bool:
        return self.gain_state is not None

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The widths of the tensors of a state."""
        return (self.hidden_size,) * len(self.state_parts)

    @property
    def bounded(self) -> bool:
        """Whether the output stays bounded over any number of steps."""
        return True

    @property
    def torch_nn_unsupported_reason(self) -> str | None:
        """Why torch.nn has no counterpart of this cell; None if it has one."""
        return f"torch.nn does not support {type(self).__name__}"

    @final
    def init_state(self, rows: int, like: Tensor) -> State:
        """Return the zero state for a batch of `rows`, with the device and dtype of `like`."""
        return (*(like.new_zeros(rows, size) for size in self.state_sizes), *self.begin_tape(rows, like))

    def begin_tape(self, rows: int, like: Tensor) -> tuple[Tape, ...]:
        """Return the tape of a cell that attends to its previous states; by default, a cell has none."""
        del rows, like
        return ()

    def init_state_from(self, initial_BX: Tensor) -> State:
        """Return the initial state. The vector holds its first `initial_parts` tensors; the others are zero."""
        given = initial_BX.chunk(self.initial_parts, dim=-1)
        return (*given, *self.init_state(initial_BX.shape[0], initial_BX)[self.initial_parts :])

    def project(self, x: Tensor) -> Tensor:
        """Return W x + b, (…, D) → (…, G). If x is narrower than the input, use the first columns of W."""
        check_tensors(x=x)
        if x.shape[-1:] > (self.input_size,):
            raise ConfigError(
                f"The last dimension of x must be at most {self.input_size}, but x has the shape {tuple(x.shape)}."
            )
        check_floating(self.weight_input, "the cell is", x=x)
        bias = None if self.layer_norm else self.bias_input
        return nn.functional.linear(x, self.weight_input[:, : x.shape[-1]], bias)

    def add_projection(self, gates_BG: Tensor, x_BD: Tensor) -> Tensor:
        """Add the projection of the last columns of the input to the gates."""
        return torch.addmm(gates_BG, x_BD, self.weight_input[:, -x_BD.shape[-1] :].t())

    def normalize_projection(self, gates: Tensor) -> Tensor:
        """Apply layer normalization, if the cell has it, to the complete projection of the input, ready for `step`."""
        if self.gain_input is None:
            return gates
        return nn.functional.layer_norm(gates, gates.shape[-1:], self.gain_input, self.bias_input)

    @final
    def project_state(self, h_BH: Tensor, rows: slice | None = None) -> Tensor:
        """Return R h, or these rows of it, normalized if the cell has layer normalization."""
        product_BG = h_BH @ (self.weight_state if rows is None else self.weight_state[rows]).t()
        if self.gain_state is None:
            return product_BG
        gain = self.gain_state if rows is None else self.gain_state[rows]
        return nn.functional.layer_norm(product_BG, product_BG.shape[-1:], gain)

    @abstractmethod
    def step(self, gates_BG: Tensor, state: State, mask_BH: Tensor | None = None) -> State:
        """Return the next state. `mask_BH` is a dropout mask on the previous output, applied before the product with R;
        it is the same at every step. `self.observe(name=gate)` shows a gate to recordings.
        """


@final
class RNNCell(Cell):
    """The simple recurrent network (Elman 1990): h' = φ(W x + R h + b), φ = tanh or relu."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        activation: Annotated[Literal["tanh", "relu"], Field(description="the function φ")] = "tanh",
        *,
        layer_norm: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size, hidden_size, layer_norm)
        self.activation = activation
        self.description = f"RNN with {activation}"

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation}"

    @property
    def bounded(self) -> bool:
        return self.activation == "tanh"

    @property
    def torch_nn_unsupported_reason(self) -> str | None:
        return None

    def step(self, gates_BG: Tensor, state: State, mask_BH: Tensor | None = None) -> State:
        total_BH = gates_BG + self.project_state(apply_mask(state[0], mask_BH))
        return (torch.tanh(total_BH) if self.activation == "tanh" else torch.relu(total_BH),)


@final
class GRUCell(Cell):
    """The gated recurrent unit (Cho et al. 2014).

        r = σ(W_r x + R_r h + b_r)
        z = σ(W_z x + R_z h + b_z)
        n = tanh(W_n x + b_n + r ⊙ (R_n h + b_Rn))     reset after the product, as in cuDNN
        n = tanh(W_n x + b_n + R_n (r ⊙ h))            reset before the product, as in the paper
        h' = z ⊙ h + (1 − z) ⊙ n

    The rows of the matrices are ordered r, z, n, as in torch.nn.GRU.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        reset: Annotated[
            Literal["before", "after"], Field(description="apply the reset gate before or after the product with R")
        ] = "after",
        *,
        layer_norm: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size, 3 * hidden_size, layer_norm)
        self.reset = reset
        self.description = f"GRU, reset {reset} the product with R"
        self.bias_state = self._uniform(3 * hidden_size) if reset == "after" else None

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, reset={self.reset}"

    @property
    def torch_nn_unsupported_reason(self) -> str | None:
        return "torch.nn resets after the product with R" if self.reset == "before" else None

    def step(self, gates_BG: Tensor, state: State, mask_BH: Tensor | None = None) -> State:
        size = self.hidden_size
        (previous_BH,) = state
        h_BH = apply_mask(previous_BH, mask_BH)
        if self.bias_state is not None:  # reset after the product with R
            recurrent_BG = self.project_state(h_BH) + self.bias_state
            reset, update = torch.sigmoid(gates_BG[:, : 2 * size] + recurrent_BG[:, : 2 * size]).chunk(2, dim=-1)
            candidate = torch.tanh(torch.addcmul(gates_BG[:, 2 * size :], reset, recurrent_BG[:, 2 * size :]))
        else:
            recurrent_rz = self.project_state(h_BH, slice(None, 2 * size))
            reset, update = torch.sigmoid(gates_BG[:, : 2 * size] + recurrent_rz).chunk(2, dim=-1)
            recurrent_n = self.project_state(reset * h_BH, slice(2 * size, None))
            candidate = torch.tanh(gates_BG[:, 2 * size :] + recurrent_n)
        self.observe(reset=reset, update=update, candidate=candidate)
        return (torch.lerp(candidate, previous_BH, update),)


Switch = bool | None
ForgetBias = Annotated[
    Bias,
    Field(json_schema_extra=TRAINING_ONLY, description="initial bias of the forget gate; a positive value opens it"),
]


def _describe_switch(description: str) -> Any:
    return Field(description=f"{description}; by default as in the variant")


@final
class LSTMCell(Cell):
    """Long short-term memory with all switches of "A Search Space Odyssey" (Greff et al. 2015).

        z = g(W_z x + R_z y₋ + b_z)
        i = σ(W_i x + R_i y₋ + p_i ⊙ c₋ + b_i)         or 1
        f = σ(W_f x + R_f y₋ + p_f ⊙ c₋ + b_f)         or 1, or 1 − i
        c = z ⊙ i + c₋ ⊙ f
        o = σ(W_o x + R_o y₋ + p_o ⊙ c + b_o)          or 1
        y = h(c) ⊙ o

    p are the peepholes; g and h are tanh or the identity. With gate recurrence, each gate also receives the products of
    all gates of the previous step with additional matrices. The rows of the matrices are the learned gates in the order
    i, f, o, followed by z. Layer normalization also normalizes c before the activation h; it does not
    normalize the gate recurrence.
    """

    state_parts = ("h", "c")
    initial_parts = 2

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        lstm_variant: LSTMVariant = LSTMVariant(),  # noqa: B008 (a constant)
        *,
        input_gate: Annotated[Switch, _describe_switch("learn an input gate i; otherwise i = 1")] = None,
        forget_gate: Annotated[Switch, _describe_switch("learn a forget gate f; otherwise f = 1")] = None,
        output_gate: Annotated[Switch, _describe_switch("learn an output gate o; otherwise o = 1")] = None,
        coupled: Annotated[Switch, _describe_switch("couple the input and forget gates: f = 1 − i")] = None,
        input_activation: Annotated[Activation | None, Field(description="activation of the candidate z")] = None,
        output_activation: Annotated[
            Activation | None, Field(description="activation of the cell state before the output gate")
        ] = None,
        peepholes: Annotated[Switch, _describe_switch("let the gates read the cell state")] = None,
        gate_recurrence: Annotated[
            Switch, _describe_switch("let each gate read all gates of the previous step")
        ] = None,
        forget_bias: ForgetBias = 1.0,
        layer_norm: bool = False,
    ) -> None:
        gate_switches = (input_gate, forget_gate, output_gate, coupled)
        variant = lstm_variant.override(*gate_switches, input_activation, output_activation, peepholes, gate_recurrence)
        gates = len(variant.gates)
        super().__init__(input_size, hidden_size, (gates + 1) * hidden_size, layer_norm)
        self.variant = variant
        self.description = variant.description
        self.weight_gates = self._uniform(gates * hidden_size, gates * hidden_size) if variant.gate_recurrence else None
        self.peepholes = self._uniform(gates, hidden_size) if variant.peepholes else None
        self.gain_cell = nn.Parameter(torch.ones(hidden_size)) if layer_norm else None
        self.bias_cell = nn.Parameter(torch.zeros(hidden_size)) if layer_norm else None
        if "forget" in variant.gates:
            first = variant.gates.index("forget") * hidden_size
            with torch.no_grad():
                self.bias_input[first : first + hidden_size] = forget_bias

    def extra_repr(self) -> str:
        return super().extra_repr() + "".join(f", {name}={value}" for name, value in self.variant.non_default.items())

    @property
    def state_sizes(self) -> tuple[int, ...]:
        gates = (len(self.variant.gates) * self.hidden_size,) if self.variant.gate_recurrence else ()
        return (self.hidden_size, self.hidden_size, *gates)

    @property
    def bounded(self) -> bool:
        return self.variant.bounded

    @property
    def torch_nn_unsupported_reason(self) -> str | None:
        if not self.variant.non_default:
            return None
        changed = ", ".join(self.variant.non_default)
        return f"torch.nn supports only the standard LSTM, and this one differs in {changed}"

    def step(self, gates_BG: Tensor, state: State, mask_BH: Tensor | None = None) -> State:
        variant = self.variant
        output_BH, previous_BH = state[:2]
        total_BG = gates_BG + self.project_state(apply_mask(output_BH, mask_BH))
        preactivations = dict(zip((*variant.gates, "z"), total_BG.chunk(len(variant.gates) + 1, dim=-1), strict=True))
        if self.weight_gates is not None:
            recurrent = (state[2] @ self.weight_gates.t()).chunk(len(variant.gates), dim=-1)
            for name, product in zip(variant.gates, recurrent, strict=True):
                preactivations[name] = preactivations[name] + product
        gates = {
            name: torch.sigmoid(self._add_peephole(name, preactivations[name], previous_BH))
            for name in variant.early_gates
        }
        candidate = torch.tanh(preactivations["z"]) if variant.input_activation == "tanh" else preactivations["z"]
        update = candidate * gates["input"] if "input" in gates else candidate
        forget = 1 - gates["input"] if variant.coupled else gates.get("forget")
        cell_BH = update + (previous_BH if forget is None else previous_BH * forget)
        output_BH = cell_BH
        if self.gain_cell is not None:
            output_BH = nn.functional.layer_norm(cell_BH, cell_BH.shape[-1:], self.gain_cell, self.bias_cell)
        output_BH = torch.tanh(output_BH) if variant.output_activation == "tanh" else output_BH
        if variant.output_gate:
            gates["output"] = torch.sigmoid(self._add_peephole("output", preactivations["output"], cell_BH))
            output_BH = output_BH * gates["output"]
        gate_state = (torch.cat(list(gates.values()), dim=-1),) if variant.gate_recurrence else ()
        if variant.coupled and forget is not None:
            gates["forget"] = forget
        self.observe(**gates, candidate=candidate)
        return (output_BH, cell_BH, *gate_state)

    def _add_peephole(self, gate: str, preactivation_BH: Tensor, cell_BH: Tensor) -> Tensor:
        if self.peepholes is None:
            return preactivation_BH
        return torch.addcmul(preactivation_BH, self.peepholes[self.variant.gates.index(gate)], cell_BH)


@final
class LSTMNCell(Cell):
    """Long short-term memory-network (Cheng, Dong & Lapata 2016): an LSTM that attends to all its previous states,
    instead of reading only the last one. It keeps them on a tape.

        q_t = W_q x_t + R_q h̃_{t−1} + b_q
        a_i = softmax_i(score(q_t, h_i))               i < t
        h̃_t = Σ_i a_i h_i,  c̃_t = Σ_i a_i c_i
        i, f, o = σ(W x_t + R h̃_t + b)                 one matrix each
        ĉ = tanh(W_c x_t + R_c h̃_t + b_c)
        c_t = f ⊙ c̃_t + i ⊙ ĉ
        h_t = o ⊙ tanh(c_t)

    At the first step, the tape is empty, and h̃, c̃ are the initial state. The score of the paper,
    vᵀ tanh(W_h h_i + W_x x_t + W_h̃ h̃_{t−1}), is the additive score vᵀ tanh(W q_t + U h_i) with U = W_h, W W_q = W_x
    and W R_q = W_h̃. The rows of the matrices are ordered i, f, o, c, q.
    """

    state_parts = ("h", "c")
    initial_parts = 2

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        role: Role = "encoder-self",
        *,
        score: Annotated[
            ScoreSettings | Part,
            Field(validate_default=True, description="the score of the attention to the previous states"),
        ] = "additive",
        forget_bias: ForgetBias = 1.0,
    ) -> None:
        super().__init__(input_size, hidden_size, 5 * hidden_size, layer_norm=False)
        self.attention = Attention(hidden_size, hidden_size, score=score, scope=EARLIER, role=role)
        kind = self.attention.settings["score"]["kind"]
        if self.attention.score.uses_past:
            raise ConfigError(
                f"The score {kind} requires a memory that stays the same from step to step, but the previous states of "
                "a cell are a new memory at each step. Use another score."
            )
        if isinstance(self.attention.score, Projected):
            raise ConfigError(
                f"The score {kind} projects the values, but a cell must read its previous states unchanged. Use the "
                "score general or additive."
            )
        self.description = f"LSTM with self-attention ({kind} score)"
        with torch.no_grad():
            self.bias_input[hidden_size : 2 * hidden_size] = forget_bias

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The widths of h, c and h̃."""
        return (self.hidden_size,) * 3

    def begin_tape(self, rows: int, like: Tensor) -> tuple[Tape, ...]:
        return (Tape.begin(self.attention, 2 * self.hidden_size, rows, like),)

    def step(self, gates_BG: Tensor, state: State, mask_BH: Tensor | None = None) -> State:
        """The gates may be followed by H columns, which are added to the cell state (deep fusion)."""
        size = self.hidden_size
        h_BH, c_BH, previous_read_BH, tape = state
        query_BH = gates_BG[:, 4 * size : 5 * size] + self.project_state(previous_read_BH, slice(4 * size, None))
        read = torch.where(tape.has_steps_B1, tape.read(self.attention, query_BH), torch.cat([h_BH, c_BH], dim=-1))
        read_h_BH, read_c_BH = read.chunk(2, dim=-1)
        total_BG = gates_BG[:, : 4 * size] + self.project_state(apply_mask(read_h_BH, mask_BH), slice(4 * size))
        input_gate, forget, output = torch.sigmoid(total_BG[:, : 3 * size]).chunk(3, dim=-1)
        candidate = torch.tanh(total_BG[:, 3 * size :])
        c_BH = torch.addcmul(input_gate * candidate, forget, read_c_BH)
        if gates_BG.shape[1] > self.width:
            c_BH = c_BH + gates_BG[:, self.width :]
        h_BH = output * torch.tanh(c_BH)
        self.observe(input=input_gate, forget=forget, output=output, candidate=candidate)
        return h_BH, c_BH, read_h_BH, tape.write(self.attention, torch.cat([h_BH, c_BH], dim=-1))


def apply_mask(output: Tensor, mask: Tensor | None) -> Tensor:
    """Apply a dropout mask, if there is one."""
    return output if mask is None else output * mask


def register_cell(name: str, cell: Callable[..., Cell]) -> None:
    """Register a recurrent cell: a subclass of `Cell`, or a function that builds one.

    It is called with the arguments `input_size`, `hidden_size` and `layer_norm` that it has parameters for. Its other
    parameters are options. Afterwards, `cell: name` works wherever `cell: gru` does.
    """
    settings.Cell.registry.register(settings.Cell, name, cell)


def build_cell(stack: RecurrentSettings, input_size: int, role: Role = "encoder-self") -> Cell:
    """Build the cell that the settings describe."""
    choice = stack.cell
    cell: Cell = choice.build_part(
        input_size=input_size,
        hidden_size=stack.hidden,
        layer_norm=stack.layer_norm,
        lstm_variant=stack.lstm_variant,
        role=role,
    )
    if stack.layer_norm and not cell.layer_norm:
        raise ConfigError(f"The cell '{choice.kind}' does not support layer normalization. Set layer_norm=false.")
    return cell


register_cell("rnn", RNNCell)
register_cell("gru", GRUCell)
register_cell("lstm", LSTMCell)
register_cell("lstmn", LSTMNCell)
