"""Choose how to run the cells of a layer over a sequence: the reference scan, which defines the result, or a fast path.
A fast path may reject a layer, with a reason; it must not compute a different result.

    torch       the kernels of PyTorch, cuDNN on CUDA and oneDNN on a CPU, for the cells that they support
    fused       all steps in one Triton kernel, on CUDA (`fast/triton_launch.py`)
    analytic    step by step, with an analytic gradient (`fast/analytic.py`, `fast/analytic_lstm.py`)
    scan        the equations of the cell, step by step

B rows, T steps, D input width, H state width, N cells run in parallel (the directions of the layer).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from regard.ops import reference_mode
from regard.ops.hooks import hooks_of
from regard.ops.reference_mode import Dispatch, disable_autocast, first_available
from regard.ops.triton import dtype_unsupported_reason, triton_unsupported_reason
from regard.recurrent.cells import Cell, State
from regard.recurrent.fast.cudnn import scan_torch
from regard.recurrent.fast.kernels import KERNELS, LayerInput, stack_present
from regard.recurrent.scan import CellInput, ScanOutput, scan, scan_exported, select_last_valid, take_step

FUSED_MAX_ROWS = 64
"""Up to this many rows, the fused kernel is faster than cuDNN in float32 (benchmarks/recurrent.py)."""

FUSED_MAX_BYTES = 4096
"""The largest state of a row for which the fused kernel has enough shared memory."""

PARAMETRIZED = "it does not support parametrized weights, such as those of weight_norm"


def torch_unsupported_reason(
    cell: Cell, device: str, dtype: torch.dtype, rows: int, state_dropout: bool, ragged: bool
) -> str | None:
    """Return why PyTorch's kernels cannot run a cell, or should not; None if they can."""
    if is_parametrized(cell):
        return PARAMETRIZED
    if cell.layer_norm:
        return "it does not support layer normalization"
    if state_dropout:
        return "it does not support dropout on the state"
    if cell.torch_nn_unsupported_reason:
        return cell.torch_nn_unsupported_reason
    if ragged and not cell.bounded:
        return "it runs past the end of a row, where the state of a relu network may overflow"
    if device == "cuda":
        slower = {torch.float16: KERNELS[type(cell)].cudnn_is_fastest_in_float16, torch.float32: rows > FUSED_MAX_ROWS}
        if not slower.get(dtype, False) and fused_unsupported_reason(cell, device, dtype) is None:
            return "the fused kernel is faster for this dtype and number of rows"
        return None
    if not KERNELS[type(cell)].torch_is_fastest_on_cpu or not reference_mode.keeps_onednn(half_precision=False):
        return "on this CPU the analytic gradient is faster"
    if torch.is_autocast_enabled("cpu") and not reference_mode.cpu_has_bfloat16():
        return "this CPU does not support bfloat16"
    return "on a CPU it is fast in float32 only" if dtype != torch.float32 else None


def analytic_unsupported_reason(cell: Cell) -> str | None:
    """Return why the scan with an analytic gradient cannot run a cell, or None if it can."""
    if is_parametrized(cell):
        return PARAMETRIZED
    if type(cell) not in KERNELS:
        return f"{type(cell).__name__} has no analytic gradient"
    return "it does not support layer normalization" if cell.layer_norm else None


def fused_unsupported_reason(cell: Cell, device: str, dtype: torch.dtype) -> str | None:
    """Return why the Triton kernel cannot run a cell, or None if it can."""
    if is_parametrized(cell):
        return PARAMETRIZED
    if device != "cuda":
        return "it needs a GPU"
    reason = triton_unsupported_reason()
    if reason:
        return reason
    kernels = KERNELS.get(type(cell))
    if kernels is None:
        return f"{type(cell).__name__} has no Triton kernel"
    if cell.layer_norm and not kernels.fuses_layer_norm(cell):
        return "it supports layer normalization only for an LSTM without gate recurrence"
    max_units = FUSED_MAX_BYTES // dtype.itemsize
    if cell.hidden_size > max_units:
        return f"it supports at most {max_units:,} units for this dtype"
    return dtype_unsupported_reason(dtype)


def dispatch_layer(
    cell: Cell,
    device: str,
    dtype: torch.dtype = torch.float32,
    *,
    rows: int = FUSED_MAX_ROWS,
    state_dropout: bool = False,
    ragged: bool = False,
) -> Dispatch:
    """Choose the path for a layer of cells like this one. `ragged` means that the rows have different lengths."""
    return first_available(
        {
            "torch": lambda: torch_unsupported_reason(cell, device, dtype, rows, state_dropout, ragged),
            "fused": lambda: fused_unsupported_reason(cell, device, dtype),
            "analytic": lambda: analytic_unsupported_reason(cell),
        },
        otherwise="scan",
    )


def scan_layer(inputs: Sequence[CellInput], lengths_B: Tensor | None) -> list[ScanOutput]:
    """Run each cell of a layer over its input, on the fastest path that supports it."""
    cell, x_BTD, _, mask_BH = inputs[0]
    path = "scan"
    if not (reference_mode.in_reference_mode() or 0 in x_BTD.shape[:2]):
        state_dropout, ragged = mask_BH is not None, lengths_B is not None
        # The cells of a layer have the same options, but possibly only one direction has parametrized weights.
        like = next((cell_input.cell for cell_input in inputs if is_parametrized(cell_input.cell)), cell)
        path = dispatch_layer(
            like, x_BTD.device.type, x_BTD.dtype, rows=len(x_BTD), state_dropout=state_dropout, ragged=ragged
        ).path
    if torch.compiler.is_exporting() and lengths_B is not None:
        return [scan_exported(cell_input, lengths_B) for cell_input in inputs]
    if path == "scan":
        return [scan(cell_input, lengths_B) for cell_input in inputs]
    if hooks_of(cell):
        # The result still comes from the fast path, so that recording does not change it.
        for cell_input in inputs:
            scan(cell_input, lengths_B)
    if path == "torch":
        return [scan_torch(cell_input, lengths_B) for cell_input in inputs]
    return scan_in_parallel(inputs, lengths_B, fused=path == "fused")


def step(cell: Cell, gates_BG: Tensor, state: State, mask_BH: Tensor | None = None) -> State:
    """Return the next state of a cell, from the normalized projection of its input."""
    kernels = KERNELS.get(type(cell))
    if kernels is None or cell.layer_norm or mask_BH is not None or reference_mode.in_reference_mode():
        return take_step(cell, gates_BG, state, mask_BH)
    if hooks_of(cell):
        take_step(cell, gates_BG, state, mask_BH)
    return kernels.step(cell, gates_BG, state)


def scan_in_parallel(inputs: Sequence[CellInput], lengths_B: Tensor | None, *, fused: bool) -> list[ScanOutput]:
    """Scan the cells of a layer in parallel: the time of a scan depends mostly on the number of steps, not on the work
    per step. The scan runs past the end of a row; those outputs are not used.
    """
    gates_TNBG = torch.stack([_project(cell_input).transpose(0, 1) for cell_input in inputs], 1)
    valid_TB1 = None
    if lengths_B is not None and not inputs[0].cell.bounded:
        steps_T1 = torch.arange(len(gates_TNBG), device=gates_TNBG.device).unsqueeze(1)
        valid_TB1 = (steps_T1 < lengths_B).to(gates_TNBG.dtype).unsqueeze(-1)
    with disable_autocast(gates_TNBG.device):  # compute everything in the dtype of the gates
        dtype = gates_TNBG.dtype
        initial = tuple(torch.stack(parts).to(dtype) for parts in zip(*(i.state for i in inputs), strict=True))
        mask_NBH = stack_present((cell_input.mask_BH for cell_input in inputs), dtype)
        cells = [cell_input.cell for cell_input in inputs]
        kernels = KERNELS[type(cells[0])]
        states = kernels.scan(cells, LayerInput(gates_TNBG, initial, mask_NBH, valid_TB1), fused=fused)
    outputs = []
    for index, cell_input in enumerate(inputs):
        parts = [part_TNBH[:, index].transpose(0, 1) for part_TNBH in states]
        last = (
            select_last_valid(part, lengths_B, initial_BH.to(dtype))
            for part, initial_BH in zip(parts, cell_input.state, strict=True)
        )
        outputs.append(ScanOutput(parts[0], tuple(last)))
    return outputs


def _project(cell_input: CellInput) -> Tensor:
    """Return the normalized projection of the input, in the dtype of the projection. Autocast would widen it."""
    gates_BTG = cell_input.cell.project(cell_input.x_BTD)
    return cell_input.cell.normalize_projection(gates_BTG).to(gates_BTG.dtype)
