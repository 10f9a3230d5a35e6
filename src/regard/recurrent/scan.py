"""The reference scan: run a cell step by step. It defines the result that every fast implementation must reproduce.

B rows, T steps, D input width, H state width.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

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
    empty_B0H = x_BTD.new_zeros(x_BTD.shape[0], 0, cell.hidden_size)
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


@final
class _ExportedStep(nn.Module):
    """A step of a cell. Rows that are not valid keep their state."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, gates_BG: Tensor, valid_B1: Tensor, state: State) -> State:
        pairs = zip(self.cell.step(gates_BG, state), state, strict=True)
        return tuple(torch.where(valid_B1, after, before) for after, before in pairs)


def scan_exported(cell_input: CellInput, lengths_B: Tensor) -> ScanOutput:
    """The reference scan as one operator, which `torch.export` does not unroll, so that the graph can run any number of
    steps. In ONNX, it is the operator Scan.
    """
    from torch._higher_order_ops.scan import scan_op

    cell, x_BTD, state, _ = cell_input
    step = _ExportedStep(cell)
    weights = dict(step.named_parameters())

    def run_step(*tensors: Tensor) -> list[Tensor]:
        before, (gates_BG, valid_B1), values = (
            tensors[: len(state)],
            tensors[len(state) :][:2],
            tensors[len(state) + 2 :],
        )
        named = dict(zip(weights, values, strict=True))
        after = torch.func.functional_call(step, named, (gates_BG, valid_B1, before))
        return [*after, after[0].clone()]

    gates_TBG = cell.normalize_projection(cell.project(x_BTD)).transpose(0, 1)
    valid_TB1 = (torch.arange(x_BTD.shape[1], device=x_BTD.device).unsqueeze(1) < lengths_B).unsqueeze(-1)
    *final, outputs_TBH = scan_op(run_step, list(state), [gates_TBG, valid_TB1], tuple(weights.values()))
    return ScanOutput(outputs_TBH.transpose(0, 1), tuple(final))


def select_last_valid(states_BTH: Tensor, lengths_B: Tensor | None, initial_BH: Tensor) -> Tensor:
    """Return the state after the last step of each row, or the initial state for a row of length 0."""
    if lengths_B is None:
        return states_BTH[:, -1]
    index_B1H = (lengths_B - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, states_BTH.shape[-1])
    last_BH = states_BTH.gather(1, index_B1H).squeeze(1)
    return torch.where((lengths_B > 0).unsqueeze(-1), last_BH, initial_BH)
