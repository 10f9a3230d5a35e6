"""The reference scan: run a cell step by step. It defines the result that every fast implementation must reproduce.

B rows, T steps, D input width, H state width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.tape import Tape
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
    """Run a cell step by step, and record it if it has hooks. The state of a row stays constant past its length."""
    cell, x_BTD, state, mask_BH = cell_input
    gates_BTG = cell.normalize_projection(cell.project(x_BTD))
    outputs = []
    for time, gates_BG in enumerate(gates_BTG.unbind(1)):
        next_state = take_step(cell, gates_BG, state, mask_BH)
        if lengths_B is not None:
            valid_B1 = (time < lengths_B).unsqueeze(-1)
            pairs = zip(next_state, state, strict=True)
            next_state = tuple(_keep_finished(valid_B1, after, before) for after, before in pairs)
        state = next_state
        outputs.append(state[0])
    empty_B0H = x_BTD.new_zeros(len(x_BTD), 0, cell.hidden_size)
    return ScanOutput(torch.stack(outputs, dim=1) if outputs else empty_B0H, state)


def _keep_finished(valid_B1: Tensor, after: Tensor | Tape, before: Tensor) -> Tensor | Tape:
    """Return a part of the state after a step. Rows that are not valid keep their state before the step."""
    return after.hide_last(valid_B1) if isinstance(after, Tape) else torch.where(valid_B1, after, before)


def take_step(cell: Cell, gates_BG: Tensor, state: State, mask_BH: Tensor | None) -> State:
    """Return the next state. If the cell has hooks, record the state before and after the step, and the gates."""
    recorders = hooks_of(cell)
    if not recorders:
        return cell.step(gates_BG, state, mask_BH)
    with observe_values() as gates:
        next_state = cell.step(gates_BG, state, mask_BH)
    parts: dict[str, Tensor] = {}
    for name, before_BH, after_BH in zip(cell.state_parts, state, next_state, strict=False):
        parts |= {f"previous.{name}": before_BH, f"state.{name}": after_BH}
    parts |= {f"gate.{name}": gate_BH for name, gate_BH in gates.items()}
    for recorder in recorders:
        recorder.record({name: part_BH.unsqueeze(1) for name, part_BH in parts.items()})
    return next_state


def select_last_valid(states_BTH: Tensor, lengths_B: Tensor | None, initial_BH: Tensor) -> Tensor:
    """Return the state after the last step of each row, or the initial state for a row of length 0."""
    if lengths_B is None:
        return states_BTH[:, -1]
    index_B1H = (lengths_B - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, states_BTH.shape[-1])
    last_BH = states_BTH.gather(1, index_B1H).squeeze(1)
    return torch.where((lengths_B > 0).unsqueeze(-1), last_BH, initial_BH)
