"""Ways to run the cells of a layer over a sequence: the plain scan, which defines the result, and the fast paths.

B rows, T steps, D width of the input, H width of the state, N cells side by side (the layer's directions).
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.recurrent import analytic
from regard.recurrent.cells import Cell, GRUCell


class Lane(NamedTuple):
    """A cell of a layer with what it is run over; a backward cell is given its input reversed."""

    cell: Cell
    x_BTD: Tensor
    state_BH: Tensor


def run(lanes: Sequence[Lane], lengths_B: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For each lane, the state after each step and after each row's last: (states_BTH, last_BH)."""
    if not all(isinstance(lane.cell, GRUCell) for lane in lanes):
        return [scan(*lane, lengths_B) for lane in lanes]
    states = [cudnn_gru(*lane) for lane in lanes] if lanes[0].x_BTD.is_cuda else analytic_gru(lanes)
    return [
        (states_BTH, last_valid(states_BTH, lengths_B, lane.state_BH))
        for lane, states_BTH in zip(lanes, states, strict=True)
    ]


def step(cell: Cell, gates_BG: Tensor, state_BH: Tensor) -> Tensor:
    """The next state."""
    if isinstance(cell, GRUCell):
        return analytic.gru_step(gates_BG, cell.recur(state_BH), state_BH)
    return cell.step(gates_BG, state_BH)


def scan(cell: Cell, x_BTD: Tensor, state_BH: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """One step after another; a row that has ended keeps its state."""
    gates_BTG = cell.project(x_BTD)
    states = []
    for time in range(x_BTD.shape[1]):
        running_B1 = (time < lengths_B).unsqueeze(-1)
        state_BH = torch.where(running_B1, cell.step(gates_BTG[:, time], state_BH), state_BH)
        states.append(state_BH)
    return torch.stack(states, dim=1), state_BH


def cudnn_gru(cell: Cell, x_BTD: Tensor, state_BH: Tensor) -> Tensor:
    """PyTorch's kernel, which is cuDNN's on CUDA. It runs on past a row's end, where nothing is read."""
    assert isinstance(cell, GRUCell)
    weights: list[Tensor] = [cell.weight_input, cell.weight_state, cell.bias_input, cell.bias_state]
    with warnings.catch_warnings():
        # cuDNN would rather have the four side by side in memory, and copies them: they are small.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")
        states_BTH, _ = torch.gru(x_BTD, state_BH.unsqueeze(0), weights, True, 1, 0.0, cell.training, False, True)
    return states_BTH


def analytic_gru(lanes: Sequence[Lane]) -> list[Tensor]:
    """All lanes at once, with the gradient worked out by hand: what a CPU waits for is the number of steps."""
    cells = [lane.cell for lane in lanes if isinstance(lane.cell, GRUCell)]
    gates = torch.stack([cell.project(lane.x_BTD.transpose(0, 1)) for cell, lane in zip(cells, lanes, strict=True)], 1)
    states_TNBH = analytic.gru_scan(
        gates,
        torch.stack([lane.state_BH for lane in lanes]),
        torch.stack([cell.weight_state for cell in cells]),
        torch.stack([cell.bias_state for cell in cells]),
    )
    return [states_TBH.transpose(0, 1) for states_TBH in states_TNBH.unbind(1)]


def last_valid(states_BTH: Tensor, lengths_B: Tensor, state_BH: Tensor) -> Tensor:
    """The state after each row's last step; that before the first where a row has none."""
    index_B1H = (lengths_B - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, states_BTH.shape[-1])
    last_BH = states_BTH.gather(1, index_B1H).squeeze(1)
    return torch.where((lengths_B > 0).unsqueeze(-1), last_BH, state_BH)
