"""The recurrent kernels of PyTorch: cuDNN on CUDA, oneDNN on a CPU.

B rows, T steps, D input width, G gates, H state width.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.recurrent.cells import Cell, GRUCell, LSTMCell, RNNCell
from regard.recurrent.scan import CellInput, ScanOutput, select_last_valid

FAST_CELLS = (RNNCell, GRUCell, LSTMCell)
"""The cells that have fast implementations. Any other cell runs on the reference scan."""

SATURATED = 1e4
"""A preactivation that saturates a gate: σ(−10⁴) is exactly 0 and σ(10⁴) is exactly 1."""


def scan_torch(cell_input: CellInput, lengths_B: Tensor | None) -> ScanOutput:
    """Run a cell with PyTorch's kernel. The kernel runs past the end of a row; those outputs are not used."""
    cell, x_BTD, state, _ = cell_input
    weights = list(to_torch_weights(cell))
    if isinstance(cell, LSTMCell) and lengths_B is not None:
        x_BTD, weights[0] = _hold_cell_past_end(x_BTD, lengths_B, weights[0])
    with warnings.catch_warnings():
        # cuDNN prefers the four weights contiguous in memory, and copies them; the copy is small beside the scan.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")
        initial = [part.unsqueeze(0).contiguous() for part in state]  # cuDNN rejects a slice of a larger tensor
        kernel = _torch_kernel(cell)
        hx = initial if isinstance(cell, LSTMCell) else initial[0]
        outputs_BTH, *last = kernel(x_BTD, hx, weights, True, 1, 0.0, cell.training, False, True)
    cell_states = [part.squeeze(0) for part in last[1:]]
    return ScanOutput(outputs_BTH, (select_last_valid(outputs_BTH, lengths_B, state[0]), *cell_states))


def _torch_kernel(cell: Cell) -> Callable[..., tuple[Tensor, ...]]:
    if isinstance(cell, LSTMCell):
        return torch.lstm
    if isinstance(cell, GRUCell):
        return torch.gru
    assert isinstance(cell, RNNCell)
    return torch.rnn_tanh if cell.activation == "tanh" else torch.rnn_relu


def _hold_cell_past_end(x_BTD: Tensor, lengths_B: Tensor, weight_GD: Tensor) -> tuple[Tensor, Tensor]:
    """Append an input feature that closes the input gate and opens the forget gate past the end of each row. The cell
    state then stays constant, and can be read after the last step. Seven unused features keep the rows aligned.
    """
    past_end_BT = torch.arange(x_BTD.shape[1], device=x_BTD.device) >= lengths_B.unsqueeze(1)
    feature_BT8 = nn.functional.pad(past_end_BT.unsqueeze(-1).to(x_BTD.dtype), (0, 7))
    size = len(weight_GD) // 4
    column_G = torch.cat([weight_GD.new_full((size,), -SATURATED), weight_GD.new_full((size,), SATURATED)])
    column_G = nn.functional.pad(column_G, (0, 2 * size))
    return torch.cat([x_BTD, feature_BT8], -1), torch.cat(
        [weight_GD, nn.functional.pad(column_G.unsqueeze(-1), (0, 7))], -1
    )


def to_torch_weights(cell: Cell) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the weights of a cell in the layout of torch.nn: weight_ih, weight_hh, bias_ih, bias_hh."""
    assert cell.torch_nn_unsupported_reason is None
    parts: tuple[Tensor, ...] = (cell.weight_input, cell.weight_state, cell.bias_input)
    if isinstance(cell, LSTMCell):
        parts = tuple(torch.cat(_swap_last_gates(part)) for part in parts)
    if isinstance(cell, GRUCell) and cell.bias_state is not None:
        return parts[0], parts[1], parts[2], cell.bias_state
    return parts[0], parts[1], parts[2], torch.zeros_like(parts[2])


def _swap_last_gates(rows: Tensor) -> list[Tensor]:
    """Convert between our gate order i, f, o, z and torch's i, f, z, o."""
    i, f, third, fourth = rows.chunk(4)
    return [i, f, fourth, third]


@torch.no_grad()
def load_torch_weights(cell: Cell, input_GD: Tensor, state_GH: Tensor, bias_input: Tensor, bias_state: Tensor) -> None:
    """Copy the weights of one layer and direction of a torch.nn network into a cell."""
    if isinstance(cell, GRUCell):
        assert cell.bias_state is not None
        cell.bias_state.copy_(bias_state)
    else:
        bias_input = bias_input + bias_state
    for ours, theirs in ((cell.weight_input, input_GD), (cell.weight_state, state_GH), (cell.bias_input, bias_input)):
        ours.copy_(torch.cat(_swap_last_gates(theirs)) if isinstance(cell, LSTMCell) else theirs)
