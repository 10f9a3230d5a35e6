"""PyTorch's own recurrent kernels: cuDNN on CUDA, oneDNN on a CPU.

B rows, T steps, D input width, G gates, H state width.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.recurrent.cells import Cell, GRUCell, LSTMCell, RNNCell
from regard.recurrent.scan import Lane, Swept, last_valid

KNOWN = (RNNCell, GRUCell, LSTMCell)
"""The cells that have fast implementations; any other runs on the reference scan."""

SHUT = 1e4
"""What shuts a gate for good: σ(−10⁴) is 0 and σ(10⁴) is 1, to the last bit."""


def unknown_to_torch(cell: Cell) -> str | None:
    """What torch.nn has no name for in a cell."""
    if not isinstance(cell, KNOWN):
        return f"it knows no {type(cell).__name__}"
    if isinstance(cell, GRUCell) and cell.reset == "before":
        return "it resets after the product with R"
    if isinstance(cell, LSTMCell) and cell.form.changed:
        return f"it knows the usual LSTM only, and this one differs in {', '.join(cell.form.changed)}"
    return None


def by_torch(lane: Lane, lengths_B: Tensor | None) -> Swept:
    """PyTorch's kernel for a cell that it knows. It runs on past a row's end, where no output is read."""
    cell, x_BTD, state, _ = lane
    weights = list(torch_weights(cell))
    if isinstance(cell, LSTMCell) and lengths_B is not None:
        x_BTD, weights[0] = _held_beyond(x_BTD, lengths_B, weights[0])
    with warnings.catch_warnings():
        # cuDNN would rather have the four side by side in memory, and copies them: they are small beside the work.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")
        start = [part.unsqueeze(0).contiguous() for part in state]  # cuDNN refuses a slice of something larger
        kernel = _torch_kernel(cell)
        given = start if isinstance(cell, LSTMCell) else start[0]
        outputs_BTH, *last = kernel(x_BTD, given, weights, True, 1, 0.0, cell.training, False, True)
    held = [part.squeeze(0) for part in last[1:]]
    return Swept(outputs_BTH, (last_valid(outputs_BTH, lengths_B, state[0]), *held))


def _torch_kernel(cell: Cell) -> Callable[..., tuple[Tensor, ...]]:
    if isinstance(cell, LSTMCell):
        return torch.lstm
    if isinstance(cell, GRUCell):
        return torch.gru
    assert isinstance(cell, RNNCell)
    return torch.rnn_tanh if cell.activation == "tanh" else torch.rnn_relu


def _held_beyond(x_BTD: Tensor, lengths_B: Tensor, weight_GD: Tensor) -> tuple[Tensor, Tensor]:
    """Beyond a row's end, one more input shuts the input gate and opens the forget gate: the cell stays as it was, and
    can be read after the last step. (With seven idle ones, so that rows stay aligned.)
    """
    beyond_BT = torch.arange(x_BTD.shape[1], device=x_BTD.device) >= lengths_B.unsqueeze(1)
    sign_BT8 = nn.functional.pad(beyond_BT.unsqueeze(-1).to(x_BTD.dtype), (0, 7))
    size = len(weight_GD) // 4
    column_G = torch.cat([weight_GD.new_full((size,), -SHUT), weight_GD.new_full((size,), SHUT)])
    column_G = nn.functional.pad(column_G, (0, 2 * size))
    return torch.cat([x_BTD, sign_BT8], -1), torch.cat(
        [weight_GD, nn.functional.pad(column_G.unsqueeze(-1), (0, 7))], -1
    )


def torch_weights(cell: Cell) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A cell's weights as torch.nn has them: of the input and of the state, and their biases."""
    assert unknown_to_torch(cell) is None
    parts: tuple[Tensor, ...] = (cell.weight_input, cell.weight_state, cell.bias_input)
    if isinstance(cell, LSTMCell):
        parts = tuple(torch.cat(_swapped(part)) for part in parts)
    if isinstance(cell, GRUCell) and cell.bias_state is not None:
        return parts[0], parts[1], parts[2], cell.bias_state
    return parts[0], parts[1], parts[2], torch.zeros_like(parts[2])


def _swapped(rows: Tensor) -> list[Tensor]:
    """Our i, f, o, z in torch's order i, f, z, o, and back."""
    i, f, third, fourth = rows.chunk(4)
    return [i, f, fourth, third]


@torch.no_grad()
def take_torch_weights(cell: Cell, input_GD: Tensor, state_GH: Tensor, bias_input: Tensor, bias_state: Tensor) -> None:
    """Give a cell the weights of one of torch.nn's layers and directions."""
    if isinstance(cell, GRUCell):
        assert cell.bias_state is not None
        cell.bias_state.copy_(bias_state)
    else:
        bias_input = bias_input + bias_state
    for ours, theirs in ((cell.weight_input, input_GD), (cell.weight_state, state_GH), (cell.bias_input, bias_input)):
        ours.copy_(torch.cat(_swapped(theirs)) if isinstance(cell, LSTMCell) else theirs)
