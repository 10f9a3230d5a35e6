"""The recurrent kernels of PyTorch: cuDNN on CUDA, oneDNN on a CPU.

B rows, T steps, D input width, G gates, H state width.
"""

import warnings

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from regard.recurrent.cells import Cell
from regard.recurrent.fast.kernels import KERNELS
from regard.recurrent.scan import CellInput, ScanOutput, select_last_valid

SATURATED = 1e4
"""A preactivation that saturates a gate: σ(−10⁴) is exactly 0 and σ(10⁴) is exactly 1."""


def scan_torch(cell_input: CellInput, lengths_B: Tensor | None) -> ScanOutput:
    """Run a cell with PyTorch's kernel. The kernel runs past the end of a row; those outputs are not used."""
    cell, x_BTD, state, _ = cell_input
    weights = list(to_torch_weights(cell))
    has_cell_state = len(state) > 1
    if has_cell_state and lengths_B is not None:
        x_BTD, weights[0] = _hold_cell_past_end(x_BTD, lengths_B, weights[0])
    with warnings.catch_warnings():
        # cuDNN prefers the four weights contiguous in memory, and copies them; the copy is small beside the scan.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")
        initial = [part.unsqueeze(0).contiguous() for part in state]  # cuDNN rejects a slice of a larger tensor
        kernel = KERNELS[type(cell)].torch_kernel(cell)
        hx = initial if has_cell_state else initial[0]
        outputs_BTH, *last = kernel(x_BTD, hx, weights, True, 1, 0.0, cell.training, False, True)
    cell_states = [part.squeeze(0) for part in last[1:]]
    return ScanOutput(outputs_BTH, (select_last_valid(outputs_BTH, lengths_B, state[0]), *cell_states))


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
    return KERNELS[type_before_parametrizations(cell)].torch_weights(cell)


@torch.no_grad()
def load_torch_weights(cell: Cell, input_GD: Tensor, state_GH: Tensor, bias_input: Tensor, bias_state: Tensor) -> None:
    """Copy the weights of one layer and direction of a torch.nn network into a cell."""
    KERNELS[type(cell)].load_torch_weights(cell, input_GD, state_GH, bias_input, bias_state)
