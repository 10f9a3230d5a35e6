"""The reference scan: run a cell step by step. It defines the result that every fast implementation must reproduce.

B rows, T steps, D input width, H state width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.hooks import hooks_of, observe_values
from regard.recurrent.cells import Cell, State


class CellInput(NamedTuple):
    """A cell of a layer, its input sequence, initial state and dropout mask. A backward cell reads reversed input."""

    cell: Cell
    x_BTD: Tensor
    state: State
    mask_BH: Tensor | None = None


class ScanOutput(NamedTuple):
    """The output of each step, and the state after the last step of each row."""

    outputs_BTH: Tensor
    state: State


def scan(cell_input: CellInput, lengths_B: Tensor | None) -> ScanOutput:
    """Run a cell step by step. The state of a row stays constant past its length."""
    cell, x_BTD, state, mask_BH = cell_input
    gates_BTG = cell.normalize_projection(cell.project(x_BTD))
    outputs = []
    for time, gates_BG in enumerate(gates_BTG.unbind(1)):
        next_state = cell.step(gates_BG, state, mask_BH)
        if lengths_B is not None:
            valid_B1 = (time < lengths_B).unsqueeze(-1)
            next_state = tuple(torch.where(valid_B1, new, old) for new, old in zip(next_state, state, strict=True))
        state = next_state
        outputs.append(state[0])
    empty_B0H = x_BTD.new_zeros(len(x_BTD), 0, cell.hidden_size)
    return ScanOutput(torch.stack(outputs, dim=1) if outputs else empty_B0H, state)


def record_scan(cell_input: CellInput) -> None:
    """Record the states and gates of a cell at every step. Steps past the end of a row are recorded too."""
    cell, x_BTD, state, mask_BH = cell_input
    for gates_BG in cell.normalize_projection(cell.project(x_BTD)).unbind(1):
        state = record_step(cell, gates_BG, state, mask_BH)


def record_step(cell: Cell, gates_BG: Tensor, state: State, mask_BH: Tensor | None) -> State:
    """Record the state before a step, the state after it, and the gates. Return the next state."""
    with observe_values() as gates:
        next_state = cell.step(gates_BG, state, mask_BH)
    parts: dict[str, Tensor] = {}
    for name, before_BH, after_BH in zip(cell.state_parts, state, next_state, strict=False):
        parts |= {f"previous.{name}": before_BH, f"state.{name}": after_BH}
    parts |= {f"gate.{name}": gate_BH for name, gate_BH in gates.items()}
    for recorder in hooks_of(cell):
        recorder.record({name: part_BH.unsqueeze(1) for name, part_BH in parts.items()})
    return next_state


def select_last_valid(states_BTH: Tensor, lengths_B: Tensor | None, initial_BH: Tensor) -> Tensor:
    """Return the state after the last step of each row, or the initial state for a row of length 0."""
    if lengths_B is None:
        return states_BTH[:, -1]
    index_B1H = (lengths_B - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, states_BTH.shape[-1])
    last_BH = states_BTH.gather(1, index_B1H).squeeze(1)
    return torch.where((lengths_B > 0).unsqueeze(-1), last_BH, initial_BH)
