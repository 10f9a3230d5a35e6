"""Ways to run the cells of a layer over a sequence: the plain scan, which defines the result, and the fast paths. Each
may refuse, with the reason as text; none may differ.

    torch       PyTorch's own kernels, cuDNN's on CUDA and oneDNN's on a CPU, for the cells that they know
    fused       all steps in one Triton kernel, on CUDA (`fused.py`)
    analytic    step by step with the gradient worked out by hand (`analytic.py`, `analytic_lstm.py`)
    scan        the cell's equations, one step after another

B rows, T steps, D width of the input, H width of the state, N cells side by side (the layer's directions).
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard import plain
from regard.fused import can_serve, dtype_refusal, triton_refusal
from regard.recurrent import analytic, analytic_lstm
from regard.recurrent.analytic_lstm import LSTMWeights
from regard.recurrent.cells import Cell, GRUCell, LSTMCell, RNNCell, State
from regard.recurrent.settings import LSTMForm

FEW_ROWS = 64
"""Up to so many rows our kernel for the LSTM is faster than cuDNN's in float32 (benchmarks/recurrent.py)."""

KNOWN = (RNNCell, GRUCell, LSTMCell)
"""The cells that fast paths were written for; any other runs on the plain scan."""

HALF = (torch.float16, torch.bfloat16)

SHUT = 1e4
"""What shuts a gate for good: σ(−10⁴) is 0 and σ(10⁴) is 1, to the last bit."""


class Lane(NamedTuple):
    """A cell of a layer with what it is run over; a backward cell is given its input reversed."""

    cell: Cell
    x_BTD: Tensor
    state: State
    keep_BH: Tensor | None = None


class Swept(NamedTuple):
    """The output of each step, and the state after each row's last."""

    outputs_BTH: Tensor
    state: State


class Plan(NamedTuple):
    """The path that a layer takes, and why it takes no faster one."""

    path: str
    refused: dict[str, str]


def torch_refusal(cell: Cell, device: str, dtype: torch.dtype, rows: int, keep: bool, ragged: bool) -> str | None:
    """Why PyTorch's kernels cannot serve, or should not; None if they do."""
    if cell.layer_norm:
        return "it knows no layer normalisation"
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
    if torch.is_autocast_enabled("cpu") and not plain.cpu_has_bfloat16():
        return "this CPU has no bfloat16"
    return "on a CPU it is fast in float32 only" if dtype != torch.float32 else None


def unknown_to_torch(cell: Cell) -> str | None:
    """What torch.nn has no name for in a cell."""
    if not isinstance(cell, KNOWN):
        return f"it knows no {type(cell).__name__}"
    if isinstance(cell, GRUCell) and cell.reset == "before":
        return "it resets after the product with R"
    if isinstance(cell, LSTMCell) and cell.form.changed:
        return f"it knows the usual LSTM only, and this one differs in {', '.join(cell.form.changed)}"
    return None


def analytic_refusal(cell: Cell) -> str | None:
    """Why no gradient worked out by hand serves, or None if one does."""
    if not isinstance(cell, KNOWN):
        return f"none has been worked out for {type(cell).__name__}"
    return "it knows no layer normalisation" if cell.layer_norm else None


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
        return "it knows no layer normalisation"
    return dtype_refusal(dtype)


def plan(
    cell: Cell,
    device: str,
    dtype: torch.dtype = torch.float32,
    *,
    rows: int = FEW_ROWS,
    keep: bool = False,
    ragged: bool = False,
) -> Plan:
    """The path for a layer of such cells over so many rows, of one length or several, with or without dropout on the
    state.
    """
    checks: dict[str, Callable[[], str | None]] = {
        "torch": lambda: torch_refusal(cell, device, dtype, rows, keep, ragged),
        "fused": lambda: fused_refusal(cell, device, dtype),
        "analytic": lambda: analytic_refusal(cell),
    }
    refused: dict[str, str] = {}
    for path, check in checks.items():
        reason = check()
        if reason is None:
            return Plan(path, refused)
        refused[path] = reason
    return Plan("scan", refused)


def run(lanes: Sequence[Lane], lengths_B: Tensor | None) -> list[Swept]:
    """Every lane over its input; each row ends at its own length."""
    cell, x_BTD, _, keep_BH = lanes[0]
    if plain.asked_for() or 0 in x_BTD.shape[:2]:
        return [scan(lane, lengths_B) for lane in lanes]
    keep, ragged = keep_BH is not None, lengths_B is not None
    path = plan(cell, x_BTD.device.type, x_BTD.dtype, rows=len(x_BTD), keep=keep, ragged=ragged).path
    if path == "scan":
        return [scan(lane, lengths_B) for lane in lanes]
    if path == "torch":
        return [by_torch(lane, lengths_B) for lane in lanes]
    return side_by_side(lanes, lengths_B, fused=path == "fused")


def step(cell: Cell, gates_BG: Tensor, state: State, keep_BH: Tensor | None = None) -> State:
    """The next state, from the input's share of the gates as it was admitted."""
    if not isinstance(cell, KNOWN) or cell.layer_norm or keep_BH is not None or plain.asked_for():
        return cell.step(gates_BG, state, keep_BH)
    if isinstance(cell, GRUCell) and cell.bias_state is not None:
        shares_BG = torch.addmm(cell.bias_state, state[0], cell.weight_state.t())
        given = gates_BG.to(shares_BG.dtype), shares_BG, state[0].to(shares_BG.dtype)
        if can_serve(shares_BG):
            from regard.recurrent import fused_steps

            return (fused_steps.gru_step(*given),)
        return (analytic.gru_step(*given),)
    if isinstance(cell, LSTMCell) and not cell.form.gate_recurrence:
        total_BG = torch.addmm(gates_BG, state[0], cell.weight_state.t())
        if not cell.form.changed and can_serve(total_BG):
            from regard.recurrent import fused_steps

            return fused_steps.lstm_step(total_BG, state[1].to(total_BG.dtype))
        peepholes = None if cell.peepholes is None else cell.peepholes.to(total_BG.dtype)
        return analytic_lstm.lstm_step(cell.form, total_BG, state[1].to(total_BG.dtype), peepholes)
    return cell.step(gates_BG, state)


def scan(lane: Lane, lengths_B: Tensor | None) -> Swept:
    """One step after another; a row that has ended keeps its state."""
    cell, x_BTD, state, keep_BH = lane
    gates_BTG = cell.admit(cell.project(x_BTD))
    outputs = []
    for time, gates_BG in enumerate(gates_BTG.unbind(1)):
        after = cell.step(gates_BG, state, keep_BH)
        if lengths_B is not None:
            running_B1 = (time < lengths_B).unsqueeze(-1)
            after = tuple(torch.where(running_B1, new, old) for new, old in zip(after, state, strict=True))
        state = after
        outputs.append(state[0])
    empty_B0H = x_BTD.new_zeros(len(x_BTD), 0, cell.hidden_size)
    return Swept(torch.stack(outputs, dim=1) if outputs else empty_B0H, state)


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
                from regard.recurrent import fused_gru

                return (fused_gru.gru_scan(gates_TNBG, state[0], R_NGH, keep_NBH),)
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
    form: LSTMForm,
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
        from regard.recurrent import fused_lstm

        return fused_lstm.lstm_scan(form, gates_TNBG, state, weights, keep_NBH, runs_TB1)
    return analytic_lstm.lstm_scan(form, gates_TNBG, state, weights, keep_NBH, runs_TB1)


def _stack(tensors: Iterable[Tensor | None], kind: torch.dtype) -> Tensor | None:
    found = [tensor for tensor in tensors if tensor is not None]
    return torch.stack(found).to(kind) if found else None


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


def last_valid(states_BTH: Tensor, lengths_B: Tensor | None, state_BH: Tensor) -> Tensor:
    """The state after each row's last step; that before the first where a row has none."""
    if lengths_B is None:
        return states_BTH[:, -1]
    index_B1H = (lengths_B - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, states_BTH.shape[-1])
    last_BH = states_BTH.gather(1, index_B1H).squeeze(1)
    return torch.where((lengths_B > 0).unsqueeze(-1), last_BH, state_BH)
