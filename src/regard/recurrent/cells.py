"""Cells: one step of recurrence. The input's share of a step depends on no state, so `project` works it out
for all steps at once and `step` adds the state's.

B rows, T steps, D width of the input, H width of the state, G width of all gates together.
"""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor, nn


class Cell(nn.Module, ABC):
    """One step of recurrence."""

    input_size: int
    hidden_size: int

    @abstractmethod
    def start(self, rows: int, like: Tensor) -> Tensor:
        """The state before the first step, for so many rows, of the device and type of `like`."""

    @abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """The input's share of the gates, (…, D) → (…, G); of its first columns where x is narrower."""

    @abstractmethod
    def add_projection(self, gates_BG: Tensor, x_BD: Tensor) -> Tensor:
        """The gates with the share of the input's last columns added."""

    @abstractmethod
    def step(self, gates_BG: Tensor, state_BH: Tensor) -> Tensor:
        """The next state."""


@final
class GRUCell(Cell):
    """The gated recurrent unit (Cho et al. 2014), the reset gate applied after the product with R.

        r = σ(W_r x + R_r h + b_r)
        z = σ(W_z x + R_z h + b_z)
        n = tanh(W_n x + b_n + r ⊙ (R_n h + b_Rn))
        h' = z ⊙ h + (1 − z) ⊙ n

    The rows of the matrices are ordered r, z, n, as torch.nn.GRU has them.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        bound = hidden_size**-0.5
        self.weight_input = nn.Parameter(torch.empty(3 * hidden_size, input_size).uniform_(-bound, bound))
        self.weight_state = nn.Parameter(torch.empty(3 * hidden_size, hidden_size).uniform_(-bound, bound))
        self.bias_input = nn.Parameter(torch.empty(3 * hidden_size).uniform_(-bound, bound))
        self.bias_state = nn.Parameter(torch.empty(3 * hidden_size).uniform_(-bound, bound))

    def start(self, rows: int, like: Tensor) -> Tensor:
        return like.new_zeros(rows, self.hidden_size)

    def project(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_input[:, : x.shape[-1]], self.bias_input)

    def add_projection(self, gates_BG: Tensor, x_BD: Tensor) -> Tensor:
        return torch.addmm(gates_BG, x_BD, self.weight_input[:, -x_BD.shape[-1] :].t())

    def recur(self, state_BH: Tensor) -> Tensor:
        """The state's share of the gates, R h + b_R."""
        return torch.addmm(self.bias_state, state_BH, self.weight_state.t())

    def step(self, gates_BG: Tensor, state_BH: Tensor) -> Tensor:
        size = self.hidden_size
        recurrent_BG = self.recur(state_BH)
        input_rz, input_n = gates_BG[:, : 2 * size], gates_BG[:, 2 * size :]
        state_rz, state_n = recurrent_BG[:, : 2 * size], recurrent_BG[:, 2 * size :]
        reset, update = torch.sigmoid(input_rz + state_rz).chunk(2, dim=-1)
        candidate = torch.tanh(torch.addcmul(input_n, reset, state_n))
        return torch.lerp(candidate, state_BH, update)
