"""The fast implementations of each built-in cell, behind one interface. A cell without an entry in `KERNELS` runs on
the reference scan.

B rows, T steps, H state width, G width of all gates together, N cells run in parallel.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, final

import torch
from torch import Tensor

from regard.ops.triton import is_usable
from regard.recurrent.cells import Cell, GRUCell, LSTMCell, RNNCell, State
from regard.recurrent.fast import analytic, analytic_lstm
from regard.recurrent.fast.analytic_lstm import LSTMWeights
from regard.recurrent.settings import LSTMVariant

C = TypeVar("C", bound=Cell)


class LayerInput(NamedTuple):
    """The input of the cells of a layer, which run in parallel: the projected input, the initial state, and optionally
    the dropout mask on the state, and which steps are valid.
    """

    gates_TNBG: Tensor
    state: State
    mask_NBH: Tensor | None
    valid_TB1: Tensor | None


class CellKernels(ABC, Generic[C]):
    """The fast implementations of a class of cells."""

    torch_is_fastest_on_cpu: bool = False
    """Whether oneDNN has a kernel for the cell, which is faster on a CPU than the scan with an analytic gradient."""
    cudnn_is_fastest_in_float16: bool = False
    """Whether cuDNN is faster in float16 than the Triton kernel."""

    @abstractmethod
    def fuses_layer_norm(self, cell: C) -> bool:
        """Whether the Triton kernel of the cell supports layer normalization."""

    @abstractmethod
    def torch_kernel(self, cell: C) -> Callable[..., tuple[Tensor, ...]]:
        """Return the function of torch that runs the cell over a sequence."""

    def torch_weights(self, cell: C) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the weights in the layout of torch.nn: weight_ih, weight_hh, bias_ih, bias_hh."""
        return cell.weight_input, cell.weight_state, cell.bias_input, torch.zeros_like(cell.bias_input)

    def load_torch_weights(self, cell: C, input_GD: Tensor, state_GH: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> None:
        """Copy weights in the layout of torch.nn into the cell."""
        cell.weight_input.copy_(input_GD)
        cell.weight_state.copy_(state_GH)
        cell.bias_input.copy_(bias_ih + bias_hh)

    @abstractmethod
    def scan(self, cells: Sequence[C], layer: LayerInput, *, fused: bool) -> tuple[Tensor, ...]:
        """Return the state after each step, (T, N, B, …) for each of its tensors. The cells have the same options."""

    def step(self, cell: C, gates_BG: Tensor, state: State) -> State:
        """Return the next state, from the projection of the input."""
        return cell.step(gates_BG, state)


@final
class RNNKernels(CellKernels[RNNCell]):
    cudnn_is_fastest_in_float16 = True

    def fuses_layer_norm(self, cell: RNNCell) -> bool:
        del cell
        return False

    def torch_kernel(self, cell: RNNCell) -> Callable[..., tuple[Tensor, ...]]:
        return torch.rnn_tanh if cell.activation == "tanh" else torch.rnn_relu

    def scan(self, cells: Sequence[RNNCell], layer: LayerInput, *, fused: bool) -> tuple[Tensor, ...]:
        gates_TNBG, (h_NBH,), mask_NBH, valid_TB1 = layer
        R_NHH = stack_weights((cell.weight_state for cell in cells), gates_TNBG.dtype)
        args = (cells[0].activation, gates_TNBG, h_NBH, R_NHH, mask_NBH, valid_TB1)
        if fused:
            from regard.recurrent.fast import triton_rnn

            return (triton_rnn.rnn_scan(*args),)
        return (analytic.rnn_scan(*args),)


@final
class GRUKernels(CellKernels[GRUCell]):
    def fuses_layer_norm(self, cell: GRUCell) -> bool:
        del cell
        return False

    def torch_kernel(self, cell: GRUCell) -> Callable[..., tuple[Tensor, ...]]:
        del cell
        return torch.gru

    def torch_weights(self, cell: GRUCell) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        assert cell.bias_state is not None
        return cell.weight_input, cell.weight_state, cell.bias_input, cell.bias_state

    def load_torch_weights(
        self, cell: GRUCell, input_GD: Tensor, state_GH: Tensor, bias_ih: Tensor, bias_hh: Tensor
    ) -> None:
        assert cell.bias_state is not None
        cell.bias_state.copy_(bias_hh)
        super().load_torch_weights(cell, input_GD, state_GH, bias_ih, torch.zeros_like(bias_hh))

    def scan(self, cells: Sequence[GRUCell], layer: LayerInput, *, fused: bool) -> tuple[Tensor, ...]:
        gates_TNBG, (h_NBH,), mask_NBH, _ = layer  # the output of a GRU is bounded, also after the end of a row
        dtype = gates_TNBG.dtype
        R_NGH = stack_weights((cell.weight_state for cell in cells), dtype)
        args = gates_TNBG, h_NBH, R_NGH, stack_present((cell.bias_state for cell in cells), dtype), mask_NBH
        if fused:
            from regard.recurrent.fast import triton_gru

            return (triton_gru.gru_scan(*args),)
        return (analytic.gru_scan(*args),)

    def step(self, cell: GRUCell, gates_BG: Tensor, state: State) -> State:
        if cell.bias_state is None:  # reset before the product with R
            return cell.step(gates_BG, state)
        recurrent_BG = torch.addmm(cell.bias_state, state[0], cell.weight_state.t())
        args = gates_BG.to(recurrent_BG.dtype), recurrent_BG, state[0].to(recurrent_BG.dtype)
        if is_usable(recurrent_BG):
            from regard.recurrent.fast import triton_step

            return (triton_step.gru_step(*args),)
        return (analytic.gru_step(*args),)


@final
class LSTMKernels(CellKernels[LSTMCell]):
    torch_is_fastest_on_cpu = True
    cudnn_is_fastest_in_float16 = True

    def fuses_layer_norm(self, cell: LSTMCell) -> bool:
        return not cell.variant.gate_recurrence

    def torch_kernel(self, cell: LSTMCell) -> Callable[..., tuple[Tensor, ...]]:
        del cell
        return torch.lstm

    def torch_weights(self, cell: LSTMCell) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        weight_ih, weight_hh, bias_ih, bias_hh = map(_swap_last_gates, super().torch_weights(cell))
        return weight_ih, weight_hh, bias_ih, bias_hh

    def load_torch_weights(
        self, cell: LSTMCell, input_GD: Tensor, state_GH: Tensor, bias_ih: Tensor, bias_hh: Tensor
    ) -> None:
        super().load_torch_weights(cell, *map(_swap_last_gates, (input_GD, state_GH, bias_ih, bias_hh)))

    def scan(self, cells: Sequence[LSTMCell], layer: LayerInput, *, fused: bool) -> tuple[Tensor, ...]:
        gates_TNBG, state, mask_NBH, valid_TB1 = layer
        dtype = gates_TNBG.dtype
        weights = LSTMWeights(
            stack_weights((cell.weight_state for cell in cells), dtype),
            stack_present((cell.peepholes for cell in cells), dtype),
            stack_present((cell.weight_gates for cell in cells), dtype),
        )
        if cells[0].layer_norm:
            from regard.recurrent.fast import triton_lstm

            assert fused
            gains, cell_gains, cell_biases = (
                stack_weights((getattr(cell, name) for cell in cells), dtype)
                for name in ("gain_state", "gain_cell", "bias_cell")
            )
            norm = triton_lstm.NormWeights(gains, cell_gains, cell_biases)
            return triton_lstm.lstm_scan(cells[0].variant, gates_TNBG, state, weights, mask_NBH, valid_TB1, norm)
        return scan_lstms(cells[0].variant, gates_TNBG, state, weights, mask_NBH, valid_TB1, fused=fused)

    def step(self, cell: LSTMCell, gates_BG: Tensor, state: State) -> State:
        if cell.variant.gate_recurrence:
            return cell.step(gates_BG, state)
        total_BG = torch.addmm(gates_BG, state[0], cell.weight_state.t())
        if not cell.variant.non_default and is_usable(total_BG):
            from regard.recurrent.fast import triton_step

            return triton_step.lstm_step(total_BG, state[1].to(total_BG.dtype))
        peepholes = None if cell.peepholes is None else cell.peepholes.to(total_BG.dtype)
        return analytic_lstm.lstm_step(cell.variant, total_BG, state[1].to(total_BG.dtype), peepholes)


def _swap_last_gates(rows: Tensor) -> Tensor:
    """Convert between our gate order i, f, o, z and torch's i, f, z, o."""
    i, f, third, fourth = rows.chunk(4)
    return torch.cat([i, f, fourth, third])


KERNELS: dict[type[Cell], CellKernels[Any]] = {
    RNNCell: RNNKernels(),
    GRUCell: GRUKernels(),
    LSTMCell: LSTMKernels(),
}
"""The fast implementations by the class of the cell."""


def scan_lstms(
    variant: LSTMVariant,
    gates_TNBG: Tensor,
    state: State,
    weights: LSTMWeights,
    mask_NBH: Tensor | None = None,
    valid_TB1: Tensor | None = None,
    *,
    fused: bool,
) -> tuple[Tensor, ...]:
    """Return the state after each step of N LSTMs with the given weights, which run in parallel."""
    if fused:
        from regard.recurrent.fast import triton_lstm

        return triton_lstm.lstm_scan(variant, gates_TNBG, state, weights, mask_NBH, valid_TB1)
    return analytic_lstm.lstm_scan(variant, gates_TNBG, state, weights, mask_NBH, valid_TB1)


def stack_weights(tensors: Iterable[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.stack(list(tensors)).to(dtype)


def stack_present(tensors: Iterable[Tensor | None], dtype: torch.dtype) -> Tensor | None:
    """Stack the tensors that are not None; return None if there are none."""
    present = [tensor for tensor in tensors if tensor is not None]
    return torch.stack(present).to(dtype) if present else None
