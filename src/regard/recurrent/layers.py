"""Layers: any cell, deep, in one direction or both, over rows of their own lengths.

B rows, T steps, D width of the input, H width of the state.
"""

from typing import final

import torch
from torch import Tensor, nn

from regard.recurrent import kernels
from regard.recurrent.cells import Cell, GRUCell
from regard.recurrent.settings import RecurrentSettings

State = tuple[Tensor, ...]
"""The state of each layer and direction, (B, H) each: layer 0 forward, layer 0 backward, layer 1 …"""


def reverse_within(x_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    """Each row's own steps in reverse order; what lies beyond its length stays where it is."""
    steps_T = torch.arange(x_BTD.shape[1], device=x_BTD.device)
    mirrored_BT = lengths_B.unsqueeze(1) - 1 - steps_T
    index_BT = torch.where(mirrored_BT >= 0, mirrored_BT, steps_T)
    return x_BTD.gather(1, index_BT.unsqueeze(-1).expand_as(x_BTD))


@final
class GRU(nn.Module):
    """A stack of GRU layers: like torch.nn.GRU, batch first, with lengths.

    `outputs, state = gru(x_BTD, lengths=lengths_B, state=None)`: beyond a row's length its outputs are zero;
    its backward pass starts at its own end; its final state is the one after its last step. A row of
    length 0 keeps the state it started with.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.directions = 2 if bidirectional else 1
        self.output_size = hidden_size * self.directions
        sizes = [input_size] + [self.output_size] * (layers - 1)
        self.cells = nn.ModuleList(GRUCell(size, hidden_size) for size in sizes for _ in range(self.directions))
        self.dropout = nn.Dropout(dropout)

    @classmethod
    def from_settings(cls, settings: RecurrentSettings, input_size: int, *, bidirectional: bool) -> "GRU":
        return cls(input_size, settings.hidden, settings.layers, bidirectional, settings.dropout)

    def start(self, rows: int, like: Tensor) -> State:
        return tuple(cell.start(rows, like) for cell in self._cells())

    def forward(self, x_BTD: Tensor, lengths: Tensor | None = None, state: State | None = None) -> tuple[Tensor, State]:
        rows, steps = x_BTD.shape[:2]
        lengths_B = torch.full((rows,), steps, device=x_BTD.device) if lengths is None else lengths
        before = self.start(rows, x_BTD) if state is None else state
        valid_BT1 = (torch.arange(steps, device=x_BTD.device) < lengths_B.unsqueeze(1)).unsqueeze(-1)
        after: list[Tensor] = []
        outputs = x_BTD
        for first in range(0, len(self.cells), self.directions):
            inputs = outputs if first == 0 else self.dropout(outputs)
            steered = [inputs, reverse_within(inputs, lengths_B)][: self.directions]
            lanes = [
                kernels.Lane(cell, x, begin)
                for cell, x, begin in zip(self._cells()[first:], steered, before[first:], strict=False)
            ]
            states, last = zip(*kernels.run(lanes, lengths_B), strict=True)
            facing = [states[0], *(reverse_within(backward, lengths_B) for backward in states[1:])]
            outputs = torch.cat(facing, dim=-1).masked_fill(~valid_BT1, 0.0)
            after += last
        return outputs, tuple(after)

    def project(self, x: Tensor) -> Tensor:
        """The share of the input's first columns in the first layer's gates, for all steps at once."""
        return self._cells()[0].project(x)

    def add_projection(self, gates_BG: Tensor, x_BD: Tensor) -> Tensor:
        """The gates with the share of the input's last columns, known only at a step, added."""
        return self._cells()[0].add_projection(gates_BG, x_BD)

    def step(self, gates_BG: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of a one-directional stack, from the gates of its first layer → (output_BH, state)."""
        cells = self._cells()
        after = [kernels.step(cells[0], gates_BG, state[0])]
        for cell, before_BH in zip(cells[1:], state[1:], strict=True):
            after.append(kernels.step(cell, cell.project(self.dropout(after[-1])), before_BH))
        return after[-1], tuple(after)

    def _cells(self) -> list[Cell]:
        return [cell for cell in self.cells if isinstance(cell, Cell)]
