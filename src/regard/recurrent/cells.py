"""Cells: one step of recurrence. The input's share of a step depends on no state, so `project` works it out
for all steps at once and `step` adds the state's. These equations define the truth; `kernels` is faster.

B rows, T steps, D width of the input, H width of the state, G width of all gates together.
"""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor, nn

from regard.recurrent import settings
from regard.recurrent.settings import LSTMVariant, RecurrentSettings

State = tuple[Tensor, ...]
"""What a cell carries from step to step, rows on axis 0; its output comes first."""


class Cell(nn.Module, ABC):
    """One step of recurrence.

    With layer normalization (Ba et al. 2016), W x and R h are each normalized over all gates before they are added; of
    a GRU that resets before the product, R h over r and z, and over n, which are two products.
    """

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
    def parts(self) -> tuple[int, ...]:
        """The widths of the tensors that a state is made of."""
        return (self.hidden_size,)

    def start(self, rows: int, like: Tensor) -> State:
        """The state before the first step, for so many rows, of the device and type of `like`."""
        return tuple(like.new_zeros(rows, width) for width in self.parts)

    def start_from(self, start_BX: Tensor) -> State:
        """The state before the first step, made of a vector."""
        return (start_BX,)

    def project(self, x: Tensor) -> Tensor:
        """The input's share of the gates, (…, D) → (…, G); of its first columns where x is narrower."""
        bias = None if self.layer_norm else self.bias_input
        return nn.functional.linear(x, self.weight_input[:, : x.shape[-1]], bias)

    def add_projection(self, gates_BG: Tensor, x_BD: Tensor) -> Tensor:
        """The gates with the share of the input's last columns added."""
        return torch.addmm(gates_BG, x_BD, self.weight_input[:, -x_BD.shape[-1] :].t())

    def admit(self, gates: Tensor) -> Tensor:
        """The input's share, all of it there, made ready for `step`."""
        if self.gain_input is None:
            return gates
        return nn.functional.layer_norm(gates, gates.shape[-1:], self.gain_input, self.bias_input)

    def recur(self, seen_BH: Tensor) -> Tensor:
        """The state's share of the gates, R h."""
        product_BG = seen_BH @ self.weight_state.t()
        if self.gain_state is None:
            return product_BG
        return nn.functional.layer_norm(product_BG, product_BG.shape[-1:], self.gain_state)

    @abstractmethod
    def step(self, gates_BG: Tensor, state: State, keep_BH: Tensor | None = None) -> State:
        """The next state. Of the output before, R sees what `keep` leaves: a mask that is the same at every step."""


@final
class RNNCell(Cell):
    """The simple recurrent network (Elman 1990): h' = φ(W x + R h + b), φ = tanh or relu."""

    def __init__(self, input_size: int, hidden_size: int, activation: str = "tanh", *, layer_norm: bool = False):
        super().__init__(input_size, hidden_size, hidden_size, layer_norm)
        self.activation = activation

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation}"

    def step(self, gates_BG: Tensor, state: State, keep_BH: Tensor | None = None) -> State:
        total_BH = gates_BG + self.recur(masked(state[0], keep_BH))
        return (torch.tanh(total_BH) if self.activation == "tanh" else torch.relu(total_BH),)


@final
class GRUCell(Cell):
    """The gated recurrent unit (Cho et al. 2014).

        r = σ(W_r x + R_r h + b_r)
        z = σ(W_z x + R_z h + b_z)
        n = tanh(W_n x + b_n + r ⊙ (R_n h + b_Rn))     reset after the product, as cuDNN has it
        n = tanh(W_n x + b_n + R_n (r ⊙ h))            reset before it, as the paper has it
        h' = z ⊙ h + (1 − z) ⊙ n

    The rows of the matrices are ordered r, z, n, as torch.nn.GRU has them.
    """

    def __init__(self, input_size: int, hidden_size: int, reset: str = "after", *, layer_norm: bool = False) -> None:
        super().__init__(input_size, hidden_size, 3 * hidden_size, layer_norm)
        self.reset = reset
        self.bias_state = self._uniform(3 * hidden_size) if reset == "after" else None

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, reset={self.reset}"

    def recur(self, seen_BH: Tensor) -> Tensor:
        product_BG = super().recur(seen_BH)
        return product_BG if self.bias_state is None else product_BG + self.bias_state

    def step(self, gates_BG: Tensor, state: State, keep_BH: Tensor | None = None) -> State:
        size = self.hidden_size
        (before_BH,) = state
        seen_BH = masked(before_BH, keep_BH)
        if self.reset == "after":
            recurrent_BG = self.recur(seen_BH)
            reset, update = torch.sigmoid(gates_BG[:, : 2 * size] + recurrent_BG[:, : 2 * size]).chunk(2, dim=-1)
            candidate = torch.tanh(torch.addcmul(gates_BG[:, 2 * size :], reset, recurrent_BG[:, 2 * size :]))
        else:
            recurrent_rz = self._recur_rows(seen_BH, slice(None, 2 * size))
            reset, update = torch.sigmoid(gates_BG[:, : 2 * size] + recurrent_rz).chunk(2, dim=-1)
            recurrent_n = self._recur_rows(reset * seen_BH, slice(2 * size, None))
            candidate = torch.tanh(gates_BG[:, 2 * size :] + recurrent_n)
        return (torch.lerp(candidate, before_BH, update),)

    def _recur_rows(self, seen_BH: Tensor, rows: slice) -> Tensor:
        product = seen_BH @ self.weight_state[rows].t()
        if self.gain_state is None:
            return product
        return nn.functional.layer_norm(product, product.shape[-1:], self.gain_state[rows])


@final
class LSTMCell(Cell):
    """The long short-term memory with every switch of "A Search Space Odyssey" (Greff et al. 2015).

        z = g(W_z x + R_z y₋ + b_z)
        i = σ(W_i x + R_i y₋ + p_i ⊙ c₋ + b_i)         or 1
        f = σ(W_f x + R_f y₋ + p_f ⊙ c₋ + b_f)         or 1, or 1 − i
        c = z ⊙ i + c₋ ⊙ f
        o = σ(W_o x + R_o y₋ + p_o ⊙ c + b_o)          or 1
        y = h(c) ⊙ o

    p are the peepholes, g and h tanh or the identity. With gate recurrence, each gate also receives the products of
    last step's gates with matrices of their own. The rows of the matrices are the learned gates in the order i, f, o,
    and then z. Layer normalization also normalizes c on its way to h; what last step's gates send it leaves alone.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        form: LSTMVariant = LSTMVariant(),  # noqa: B008 (a constant)
        *,
        forget_bias: float = 1.0,
        layer_norm: bool = False,
    ) -> None:
        gates = len(form.gates)
        super().__init__(input_size, hidden_size, (gates + 1) * hidden_size, layer_norm)
        self.form = form
        self.weight_gates = self._uniform(gates * hidden_size, gates * hidden_size) if form.gate_recurrence else None
        self.peepholes = self._uniform(gates, hidden_size) if form.peepholes else None
        self.gain_cell = nn.Parameter(torch.ones(hidden_size)) if layer_norm else None
        self.bias_cell = nn.Parameter(torch.zeros(hidden_size)) if layer_norm else None
        if "forget" in form.gates:
            first = form.gates.index("forget") * hidden_size
            with torch.no_grad():
                self.bias_input[first : first + hidden_size] = forget_bias

    def extra_repr(self) -> str:
        return super().extra_repr() + "".join(f", {name}={value}" for name, value in self.form.changed.items())

    @property
    def parts(self) -> tuple[int, ...]:
        gates = (len(self.form.gates) * self.hidden_size,) if self.form.gate_recurrence else ()
        return (self.hidden_size, self.hidden_size, *gates)

    def start_from(self, start_BX: Tensor) -> State:
        return (*start_BX.chunk(2, dim=-1), *self.start(len(start_BX), start_BX)[2:])

    def step(self, gates_BG: Tensor, state: State, keep_BH: Tensor | None = None) -> State:
        output_BH, before_BH = state[:2]
        total = (gates_BG + self.recur(masked(output_BH, keep_BH))).chunk(len(self.form.gates) + 1, dim=-1)
        raw = dict(zip((*self.form.gates, "z"), total, strict=True))
        if self.weight_gates is not None:
            recurrent = (state[2] @ self.weight_gates.t()).chunk(len(self.form.gates), dim=-1)
            raw |= {name: raw[name] + share for name, share in zip(self.form.gates, recurrent, strict=True)}
        opened = {name: torch.sigmoid(self._peep(name, raw[name], before_BH)) for name in self.form.early}
        candidate = torch.tanh(raw["z"]) if self.form.input_activation == "tanh" else raw["z"]
        admitted = candidate * opened["input"] if "input" in opened else candidate
        forget = 1 - opened["input"] if self.form.coupled else opened.get("forget")
        cell_BH = admitted + (before_BH if forget is None else before_BH * forget)
        shown = cell_BH
        if self.gain_cell is not None:
            shown = nn.functional.layer_norm(cell_BH, cell_BH.shape[-1:], self.gain_cell, self.bias_cell)
        shown = torch.tanh(shown) if self.form.output_activation == "tanh" else shown
        if self.form.output_gate:
            opened["output"] = torch.sigmoid(self._peep("output", raw["output"], cell_BH))
            shown = shown * opened["output"]
        remembered = (torch.cat(list(opened.values()), dim=-1),) if self.form.gate_recurrence else ()
        return (shown, cell_BH, *remembered)

    def _peep(self, gate: str, raw_BH: Tensor, cell_BH: Tensor) -> Tensor:
        if self.peepholes is None:
            return raw_BH
        return torch.addcmul(raw_BH, self.peepholes[self.form.gates.index(gate)], cell_BH)


def masked(output: Tensor, keep: Tensor | None) -> Tensor:
    """What R sees of an output."""
    return output if keep is None else output * keep


def build_cell(stack: RecurrentSettings, input_size: int) -> Cell:
    """The cell that settings describe."""
    match stack.cell:
        case settings.RNN(activation=activation):
            return RNNCell(input_size, stack.hidden, activation, layer_norm=stack.layer_norm)
        case settings.GRU(reset=reset):
            return GRUCell(input_size, stack.hidden, reset, layer_norm=stack.layer_norm)
        case settings.LSTM(forget_bias=bias):
            return LSTMCell(input_size, stack.hidden, stack.form, forget_bias=bias, layer_norm=stack.layer_norm)
