"""Ways to run the cells of a layer over a sequence: the plain scan, which defines the result, and the fast paths. Each
may refuse, with the reason as text; none may differ.

    torch       PyTorch's own kernels, cuDNN's on CUDA and oneDNN's on a CPU, for the cells that they know
    fused       all steps in one Triton kernel, on CUDA (`fused.py`)
    analytic    step by step with the gradient worked out by hand (`analytic.py`, `analytic_lstm.py`)
    scan        the cell's equations, one step after another

B rows, T steps, D width of the input, H width of the state, N cells side by side (the layer's directions).
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from regard.ops import reference_mode
from regard.ops.dispatch import Dispatch, first_available
from regard.ops.triton import dtype_refusal, is_usable, triton_refusal
from regard.recurrent.cells import Cell, GRUCell, LSTMCell, RNNCell, State
from regard.recurrent.fast import analytic, analytic_lstm
from regard.recurrent.fast.analytic_lstm import LSTMWeights
from regard.recurrent.fast.cudnn import KNOWN, by_torch, unknown_to_torch
from regard.recurrent.scan import Lane, Swept, last_valid, scan
from regard.recurrent.settings import LSTMVariant

FEW_ROWS = 64
"""Up to so many rows our kernel for the LSTM is faster than cuDNN's in float32 (benchmarks/recurrent.py)."""

HALF = (torch.float16, torch.bfloat16)


def torch_refusal(cell: Cell, device: str, dtype: torch.dtype, rows: int, keep: bool, ragged: bool) -> str | None:
    """Why PyTorch's kernels cannot serve, or should not; None if they do."""
    if cell.layer_norm:
        return "it knows no layer normalization"
    if keep:
        return "it knows no dropout on the state"
    unknown = unknown_to_torch(cell)
    if unknown:
        return unknown
    if ragged and not bounded(cell):
        return "it runs on past a row's end, where a relu network may grow without end"
    if device == "cuda":
        few = isinstance(cell, LSTMCell) and (rows <= FEW_ROWS or dtype in HALF)
        if few and fused_refusal(cell, device, dtype) is None:
            return f"the fused kernel is faster for up to {FEW_ROWS} rows, and in half precision"
        return None
    if not isinstance(cell, LSTMCell):
        return "on a CPU the gradient worked out by hand is faster"
    if torch.is_autocast_enabled("cpu") and not reference_mode.cpu_has_bfloat16():
        return "this CPU has no bfloat16"
    return "on a CPU it is fast in float32 only" if dtype != torch.float32 else None


def analytic_refusal(cell: Cell) -> str | None:
    """Why no gradient worked out by hand serves, or None if one does."""
    if not isinstance(cell, KNOWN):
        return f"none has been worked out for {type(cell).__name__}"
    return "it knows no layer normalization" if cell.layer_norm else None


def bounded(cell: Cell) -> bool:
    """Whether the output cannot grow from step to step without end."""
    if isinstance(cell, LSTMCell):
        return cell.form.bounded
    return not (isinstance(cell, RNNCell) and cell.activation == "relu")


def fused_refusal(cell: Cell, device: str, dtype: torch.dtype) -> str | None:
    """Why the Triton kernel cannot serve, or None if it can."""
    if device != "cuda":
        return "it needs a GPU"
    missing = triton_refusal()
    if missing:
        return missing
    if not (isinstance(cell, LSTMCell) or (isinstance(cell, GRUCell) and cell.reset == "before")):
        return "it is written for the LSTM in all its forms, and for the GRU that resets before the product"
    if cell.layer_norm:
        return "it knows no layer normalization"
    return dtype_refusal(dtype)


def dispatch_layer(
    cell: Cell,
    device: str,
    dtype: torch.dtype = torch.float32,
    *,
    rows: int = FEW_ROWS,
    keep: bool = False,
    ragged: bool = False,
) -> Dispatch:
    """The path for a layer of such cells over so many rows, of one length or several, with or without dropout on the
    state.
    """
    return first_available(
        {
            "torch": lambda: torch_refusal(cell, device, dtype, rows, keep, ragged),
            "fused": lambda: fused_refusal(cell, device, dtype),
            "analytic": lambda: analytic_refusal(cell),
        },
        otherwise="scan",
    )


def run(lanes: Sequence[Lane], lengths_B: Tensor | None) -> list[Swept]:
    """Every lane over its input; each row ends at its own length."""
    cell, x_BTD, _, keep_BH = lanes[0]
    if reference_mode.in_reference_mode() or 0 in x_BTD.shape[:2]:
        return [scan(lane, lengths_B) for lane in lanes]
    keep, ragged = keep_BH is not None, lengths_B is not None
    path = dispatch_layer(cell, x_BTD.device.type, x_BTD.dtype, rows=len(x_BTD), keep=keep, ragged=ragged).path
    if path == "scan":
        return [scan(lane, lengths_B) for lane in lanes]
    if path == "torch":
        return [by_torch(lane, lengths_B) for lane in lanes]
    return side_by_side(lanes, lengths_B, fused=path == "fused")


def step(cell: Cell, gates_BG: Tensor, state: State, keep_BH: Tensor | None = None) -> State:
    """The next state, from the input's share of the gates as it was admitted."""
    if not isinstance(cell, KNOWN) or cell.layer_norm or keep_BH is not None or reference_mode.in_reference_mode():
        return cell.step(gates_BG, state, keep_BH)
    if isinstance(cell, GRUCell) and cell.bias_state is not None:
        shares_BG = torch.addmm(cell.bias_state, state[0], cell.weight_state.t())
        given = gates_BG.to(shares_BG.dtype), shares_BG, state[0].to(shares_BG.dtype)
        if is_usable(shares_BG):
            from regard.recurrent.fast import triton_step

            return (triton_step.gru_step(*given),)
        return (analytic.gru_step(*given),)
    if isinstance(cell, LSTMCell) and not cell.form.gate_recurrence:
        total_BG = torch.addmm(gates_BG, state[0], cell.weight_state.t())
        if not cell.form.changed and is_usable(total_BG):
            from regard.recurrent.fast import triton_step

            return triton_step.lstm_step(total_BG, state[1].to(total_BG.dtype))
        peepholes = None if cell.peepholes is None else cell.peepholes.to(total_BG.dtype)
        return analytic_lstm.lstm_step(cell.form, total_BG, state[1].to(total_BG.dtype), peepholes)
    return cell.step(gates_BG, state)


def side_by_side(lanes: Sequence[Lane], lengths_B: Tensor | None, *, fused: bool) -> list[Swept]:
    """All lanes at once: what takes the time is the number of steps. They run on past a row's end, unread."""
    gates_TNBG = torch.stack([lane.cell.project(lane.x_BTD.transpose(0, 1)) for lane in lanes], 1)
    runs_TB1 = None
    if lengths_B is not None and not bounded(lanes[0].cell):
        steps_T1 = torch.arange(len(gates_TNBG), device=gates_TNBG.device).unsqueeze(1)
        runs_TB1 = (steps_T1 < lengths_B).to(gates_TNBG.dtype).unsqueeze(-1)
    with torch.autocast(gates_TNBG.device.type, enabled=False):  # all in the type that the gates came in
        kind = gates_TNBG.dtype
        state = tuple(torch.stack(parts).to(kind) for parts in zip(*(lane.state for lane in lanes), strict=True))
        keep_NBH = _stack((lane.keep_BH for lane in lanes), kind)
        found = sweep([lane.cell for lane in lanes], gates_TNBG, state, keep_NBH, runs_TB1, fused=fused)
    swept = []
    for index, lane in enumerate(lanes):
        parts = [part_TNBH[:, index].transpose(0, 1) for part_TNBH in found]
        last = (last_valid(part, lengths_B, start.to(kind)) for part, start in zip(parts, lane.state, strict=True))
        swept.append(Swept(parts[0], tuple(last)))
    return swept


def sweep(
    cells: Sequence[Cell],
    gates_TNBG: Tensor,
    state: State,
    keep_NBH: Tensor | None,
    runs_TB1: Tensor | None,
    *,
    fused: bool = False,
) -> tuple[Tensor, ...]:
    """The parts of the state after each step, (T, N, B, …) each, of cells of one kind and width."""
    kind = gates_TNBG.dtype
    R_NGH = torch.stack([cell.weight_state for cell in cells]).to(kind)
    first = cells[0]
    match first:
        case RNNCell():
            return (analytic.rnn_scan(first.activation, gates_TNBG, state[0], R_NGH, keep_NBH, runs_TB1),)
        case GRUCell():
            if fused:
                from regard.recurrent.fast import triton_gru

                return (triton_gru.gru_scan(gates_TNBG, state[0], R_NGH, keep_NBH),)
            bias_NG = _stack((cell.bias_state for cell in cells if isinstance(cell, GRUCell)), kind)
            return (analytic.gru_scan(gates_TNBG, state[0], R_NGH, bias_NG, keep_NBH),)
        case LSTMCell():
            lstms = [cell for cell in cells if isinstance(cell, LSTMCell)]
            weights = LSTMWeights(
                R_NGH,
                _stack((cell.peepholes for cell in lstms), kind),
                _stack((cell.weight_gates for cell in lstms), kind),
            )
            return lstm_sweep(first.form, gates_TNBG, state, weights, keep_NBH, runs_TB1, fused=fused)
    raise TypeError(f"no scan is known for {type(first).__name__}")


def lstm_sweep(
    form: LSTMVariant,
    gates_TNBG: Tensor,
    state: State,
    weights: LSTMWeights,
    keep_NBH: Tensor | None = None,
    runs_TB1: Tensor | None = None,
    *,
    fused: bool,
) -> tuple[Tensor, ...]:
    """The parts of the state after each step, of LSTMs side by side whose weights are given."""
    if fused:
        from regard.recurrent.fast import triton_lstm

        return triton_lstm.lstm_scan(form, gates_TNBG, state, weights, keep_NBH, runs_TB1)
    return analytic_lstm.lstm_scan(form, gates_TNBG, state, weights, keep_NBH, runs_TB1)


def _stack(tensors: Iterable[Tensor | None], kind: torch.dtype) -> Tensor | None:
    found = [tensor for tensor in tensors if tensor is not None]
    return torch.stack(found).to(kind) if found else None
