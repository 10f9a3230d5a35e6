"""The reference scan: run a cell step by step. It defines the result that every fast implementation must reproduce.

B rows, T steps, D input width, H state width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.recurrent.cells import Cell, State


class Lane(NamedTuple):
    """A cell of a layer with what it is run over; a backward cell is given its input reversed."""

    cell: Cell
    x_BTD: Tensor
    state: State
    keep_BH: Tensor | None = None


class Swept(NamedTuple):
    """The output of each step, and the state after each row's last."""

    outputs_BTH: Tensor
    state: State


def scan(lane: Lane, lengths_B: Tensor | None) -> Swept:
    """One step after another; a row that has ended keeps its state."""
    cell, x_BTD, state, keep_BH = lane
    gates_BTG = cell.admit(cell.project(x_BTD))
    outputs = []
    for time, gates_BG in enumerate(gates_BTG.unbind(1)):
        after = cell.step(gates_BG, state, keep_BH)
        if lengths_B is not None:
            running_B1 = (time < lengths_B).unsqueeze(-1)
            after = tuple(torch.where(running_B1, new, old) for new, old in zip(after, state, strict=True))
        state = after
        outputs.append(state[0])
    empty_B0H = x_BTD.new_zeros(len(x_BTD), 0, cell.hidden_size)
    return Swept(torch.stack(outputs, dim=1) if outputs else empty_B0H, state)


def last_valid(states_BTH: Tensor, lengths_B: Tensor | None, state_BH: Tensor) -> Tensor:
    """The state after each row's last step; that before the first where a row has none."""
    if lengths_B is None:
        return states_BTH[:, -1]
    index_B1H = (lengths_B - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, states_BTH.shape[-1])
    last_BH = states_BTH.gather(1, index_B1H).squeeze(1)
    return torch.where((lengths_B > 0).unsqueeze(-1), last_BH, state_BH)
