"""One step of a cell in one Triton kernel for each of forward and backward, for decoders that run step by step.

B rows, H state width, G width of all gates. A program owns some units of some rows. It needs only the gates of these
units, because the products with the state are computed before.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.ops.triton import device_of
from regard.recurrent.fast.triton_launch import tanh

BLOCK = 512
"""The number of units that a program owns."""


@triton.jit
def _locate_units(B, H: tl.constexpr, BLOCK: tl.constexpr):
    """Return the row and unit of each element that a program owns, and which elements exist."""
    offset_H = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return offset_H // H, offset_H % H, offset_H < B * H


@triton.jit(do_not_specialize=["B", "a_row"])
def _gru_forward(a, u, h, gates, after, B, a_row, H: tl.constexpr, BLOCK: tl.constexpr):
    row, unit, ok = _locate_units(B, H, BLOCK)
    a_ptr, u_ptr, gates_ptr = a + row * a_row + unit, u + row * 3 * H + unit, gates + row * 3 * H + unit
    r = tl.sigmoid(tl.load(a_ptr, ok, 0.0).to(tl.float32) + tl.load(u_ptr, ok, 0.0).to(tl.float32))
    z = tl.sigmoid(tl.load(a_ptr + H, ok, 0.0).to(tl.float32) + tl.load(u_ptr + H, ok, 0.0).to(tl.float32))
    n = tanh(tl.load(a_ptr + 2 * H, ok, 0.0).to(tl.float32) + r * tl.load(u_ptr + 2 * H, ok, 0.0).to(tl.float32))
    before = tl.load(h + row * H + unit, ok, 0.0).to(tl.float32)
    tl.store(gates_ptr, r.to(gates.dtype.element_ty), ok)
    tl.store(gates_ptr + H, z.to(gates.dtype.element_ty), ok)
    tl.store(gates_ptr + 2 * H, n.to(gates.dtype.element_ty), ok)
    tl.store(after + row * H + unit, (n + z * (before - n)).to(after.dtype.element_ty), ok)


@triton.jit(do_not_specialize=["B"])
def _gru_backward(d_after, gates, u, h, d_a, d_u, d_h, B, H: tl.constexpr, BLOCK: tl.constexpr):
    row, unit, ok = _locate_units(B, H, BLOCK)
    offset_G, offset_H = row * 3 * H + unit, row * H + unit
    r = tl.load(gates + offset_G, ok, 0.0).to(tl.float32)
    z = tl.load(gates + offset_G + H, ok, 0.0).to(tl.float32)
    n = tl.load(gates + offset_G + 2 * H, ok, 0.0).to(tl.float32)
    d = tl.load(d_after + offset_H, ok, 0.0).to(tl.float32)
    d_n = d * (1 - z) * (1 - n * n)
    d_r = d_n * tl.load(u + offset_G + 2 * H, ok, 0.0).to(tl.float32) * r * (1 - r)
    d_z = d * (tl.load(h + offset_H, ok, 0.0).to(tl.float32) - n) * z * (1 - z)
    dtype = d_a.dtype.element_ty
    tl.store(d_a + offset_G, d_r.to(dtype), ok)
    tl.store(d_a + offset_G + H, d_z.to(dtype), ok)
    tl.store(d_a + offset_G + 2 * H, d_n.to(dtype), ok)
    tl.store(d_u + offset_G, d_r.to(dtype), ok)
    tl.store(d_u + offset_G + H, d_z.to(dtype), ok)
    tl.store(d_u + offset_G + 2 * H, (d_n * r).to(dtype), ok)
    tl.store(d_h + offset_H, (d * z).to(dtype), ok)


@triton.jit(do_not_specialize=["B"])
def _lstm_forward(total, before, gates, output, after, B, H: tl.constexpr, BLOCK: tl.constexpr):
    row, unit, ok = _locate_units(B, H, BLOCK)
    offset_G, offset_H = row * 4 * H + unit, row * H + unit
    i = tl.sigmoid(tl.load(total + offset_G, ok, 0.0).to(tl.float32))
    f = tl.sigmoid(tl.load(total + offset_G + H, ok, 0.0).to(tl.float32))
    o = tl.sigmoid(tl.load(total + offset_G + 2 * H, ok, 0.0).to(tl.float32))
    z = tanh(tl.load(total + offset_G + 3 * H, ok, 0.0).to(tl.float32))
    cell = f * tl.load(before + offset_H, ok, 0.0).to(tl.float32) + i * z
    dtype = gates.dtype.element_ty
    tl.store(gates + offset_G, i.to(dtype), ok)
    tl.store(gates + offset_G + H, f.to(dtype), ok)
    tl.store(gates + offset_G + 2 * H, o.to(dtype), ok)
    tl.store(gates + offset_G + 3 * H, z.to(dtype), ok)
    tl.store(after + offset_H, cell.to(dtype), ok)
    tl.store(output + offset_H, (o * tanh(cell)).to(dtype), ok)


@triton.jit(do_not_specialize=["B"])
def _lstm_backward(d_output, d_after, gates, before, after, d_gates, d_before, B, H: tl.constexpr, BLOCK: tl.constexpr):
    row, unit, ok = _locate_units(B, H, BLOCK)
    offset_G, offset_H = row * 4 * H + unit, row * H + unit
    i = tl.load(gates + offset_G, ok, 0.0).to(tl.float32)
    f = tl.load(gates + offset_G + H, ok, 0.0).to(tl.float32)
    o = tl.load(gates + offset_G + 2 * H, ok, 0.0).to(tl.float32)
    z = tl.load(gates + offset_G + 3 * H, ok, 0.0).to(tl.float32)
    activated = tanh(tl.load(after + offset_H, ok, 0.0).to(tl.float32))
    d = tl.load(d_output + offset_H, ok, 0.0).to(tl.float32)
    d_cell = tl.load(d_after + offset_H, ok, 0.0).to(tl.float32) + d * o * (1 - activated * activated)
    c_before = tl.load(before + offset_H, ok, 0.0).to(tl.float32)
    dtype = d_gates.dtype.element_ty
    tl.store(d_gates + offset_G, (d_cell * z * i * (1 - i)).to(dtype), ok)
    tl.store(d_gates + offset_G + H, (d_cell * c_before * f * (1 - f)).to(dtype), ok)
    tl.store(d_gates + offset_G + 2 * H, (d * activated * o * (1 - o)).to(dtype), ok)
    tl.store(d_gates + offset_G + 3 * H, (d_cell * i * (1 - z * z)).to(dtype), ok)
    tl.store(d_before + offset_H, (d_cell * f).to(dtype), ok)


def _launch(kernel: Any, like_BH: Tensor, *args: Any) -> None:
    rows, size = like_BH.shape
    with device_of(like_BH):
        kernel[(triton.cdiv(rows * size, BLOCK),)](*args, H=size, BLOCK=BLOCK)


class _GRUStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a_BG: Tensor, u_BG: Tensor, h_BH: Tensor) -> Tensor:
        a_BG = a_BG if a_BG.stride(-1) == 1 else a_BG.contiguous()  # a slice of one step need not be contiguous
        u_BG, h_BH = u_BG.contiguous(), h_BH.contiguous()
        gates_BG, after_BH = torch.empty_like(u_BG), torch.empty_like(h_BH)
        _launch(_gru_forward, h_BH, a_BG, u_BG, h_BH, gates_BG, after_BH, len(h_BH), a_BG.stride(0))
        ctx.save_for_backward(gates_BG, u_BG, h_BH)
        return after_BH

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_after: Tensor) -> Gradients:
        gates_BG, u_BG, h_BH = ctx.saved_tensors
        d_a, d_u, d_h = torch.empty_like(u_BG), torch.empty_like(u_BG), torch.empty_like(h_BH)
        _launch(_gru_backward, h_BH, d_after.contiguous(), gates_BG, u_BG, h_BH, d_a, d_u, d_h, len(h_BH))
        return d_a, d_u, d_h


class _LSTMStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total_BG: Tensor, before_BH: Tensor) -> tuple[Tensor, Tensor]:
        total_BG, before_BH = total_BG.contiguous(), before_BH.contiguous()
        gates_BG = torch.empty_like(total_BG)
        output_BH, after_BH = torch.empty_like(before_BH), torch.empty_like(before_BH)
        _launch(_lstm_forward, before_BH, total_BG, before_BH, gates_BG, output_BH, after_BH, len(before_BH))
        ctx.save_for_backward(gates_BG, before_BH, after_BH)
        return output_BH, after_BH

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_output: Tensor, d_after: Tensor) -> Gradients:
        gates_BG, before_BH, after_BH = ctx.saved_tensors
        d_gates, d_before = torch.empty_like(gates_BG), torch.empty_like(before_BH)
        args = (d_output.contiguous(), d_after.contiguous(), gates_BG, before_BH, after_BH)
        _launch(_lstm_backward, before_BH, *args, d_gates, d_before, len(before_BH))
        return d_gates, d_before


def gru_step(a_BG: Tensor, u_BG: Tensor, h_BH: Tensor) -> Tensor:
    """The same as `analytic.gru_step`, for tensors of one dtype."""
    after: Tensor = _GRUStep.apply(a_BG, u_BG, h_BH)
    return after


def lstm_step(total_BG: Tensor, cell_BH: Tensor) -> tuple[Tensor, Tensor]:
    """The same as `analytic_lstm.lstm_step` for the standard LSTM, for tensors of one dtype."""
    output_BH, after_BH = _LSTMStep.apply(total_BG, cell_BH)
    return output_BH, after_BH
