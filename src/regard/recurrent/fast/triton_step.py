"""One step of a cell in one Triton kernel each way, for decoders whose steps cannot run at once.

B rows, H width of the state, G width of all gates. A program owns some units of some rows: each unit's gates are all
that it needs, since their products with the state are made before.
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
"""Units that a program owns."""


@triton.jit
def _units(B, H: tl.constexpr, BLOCK: tl.constexpr):
    """The row and the unit of each place that a program owns, and which there are."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return place // H, place % H, place < B * H


@triton.jit(do_not_specialize=["B", "a_row"])
def _gru_forward(a, u, h, opened, after, B, a_row, H: tl.constexpr, BLOCK: tl.constexpr):
    row, unit, here = _units(B, H, BLOCK)
    left, right, own = a + row * a_row + unit, u + row * 3 * H + unit, opened + row * 3 * H + unit
    r = tl.sigmoid(tl.load(left, here, 0.0).to(tl.float32) + tl.load(right, here, 0.0).to(tl.float32))
    z = tl.sigmoid(tl.load(left + H, here, 0.0).to(tl.float32) + tl.load(right + H, here, 0.0).to(tl.float32))
    n = tanh(tl.load(left + 2 * H, here, 0.0).to(tl.float32) + r * tl.load(right + 2 * H, here, 0.0).to(tl.float32))
    before = tl.load(h + row * H + unit, here, 0.0).to(tl.float32)
    tl.store(own, r.to(opened.dtype.element_ty), here)
    tl.store(own + H, z.to(opened.dtype.element_ty), here)
    tl.store(own + 2 * H, n.to(opened.dtype.element_ty), here)
    tl.store(after + row * H + unit, (n + z * (before - n)).to(after.dtype.element_ty), here)


@triton.jit(do_not_specialize=["B"])
def _gru_backward(d_after, opened, u, h, d_a, d_u, d_h, B, H: tl.constexpr, BLOCK: tl.constexpr):
    row, unit, here = _units(B, H, BLOCK)
    own, place = row * 3 * H + unit, row * H + unit
    r = tl.load(opened + own, here, 0.0).to(tl.float32)
    z = tl.load(opened + own + H, here, 0.0).to(tl.float32)
    n = tl.load(opened + own + 2 * H, here, 0.0).to(tl.float32)
    d = tl.load(d_after + place, here, 0.0).to(tl.float32)
    d_n = d * (1 - z) * (1 - n * n)
    d_r = d_n * tl.load(u + own + 2 * H, here, 0.0).to(tl.float32) * r * (1 - r)
    d_z = d * (tl.load(h + place, here, 0.0).to(tl.float32) - n) * z * (1 - z)
    kind = d_a.dtype.element_ty
    tl.store(d_a + own, d_r.to(kind), here)
    tl.store(d_a + own + H, d_z.to(kind), here)
    tl.store(d_a + own + 2 * H, d_n.to(kind), here)
    tl.store(d_u + own, d_r.to(kind), here)
    tl.store(d_u + own + H, d_z.to(kind), here)
    tl.store(d_u + own + 2 * H, (d_n * r).to(kind), here)
    tl.store(d_h + place, (d * z).to(kind), here)


@triton.jit(do_not_specialize=["B"])
def _lstm_forward(gates, before, opened, output, after, B, H: tl.constexpr, BLOCK: tl.constexpr):
    row, unit, here = _units(B, H, BLOCK)
    own, place = row * 4 * H + unit, row * H + unit
    i = tl.sigmoid(tl.load(gates + own, here, 0.0).to(tl.float32))
    f = tl.sigmoid(tl.load(gates + own + H, here, 0.0).to(tl.float32))
    o = tl.sigmoid(tl.load(gates + own + 2 * H, here, 0.0).to(tl.float32))
    z = tanh(tl.load(gates + own + 3 * H, here, 0.0).to(tl.float32))
    cell = f * tl.load(before + place, here, 0.0).to(tl.float32) + i * z
    kind = opened.dtype.element_ty
    tl.store(opened + own, i.to(kind), here)
    tl.store(opened + own + H, f.to(kind), here)
    tl.store(opened + own + 2 * H, o.to(kind), here)
    tl.store(opened + own + 3 * H, z.to(kind), here)
    tl.store(after + place, cell.to(kind), here)
    tl.store(output + place, (o * tanh(cell)).to(kind), here)


@triton.jit(do_not_specialize=["B"])
def _lstm_backward(
    d_output, d_after, opened, before, after, d_gates, d_before, B, H: tl.constexpr, BLOCK: tl.constexpr
):
    row, unit, here = _units(B, H, BLOCK)
    own, place = row * 4 * H + unit, row * H + unit
    i = tl.load(opened + own, here, 0.0).to(tl.float32)
    f = tl.load(opened + own + H, here, 0.0).to(tl.float32)
    o = tl.load(opened + own + 2 * H, here, 0.0).to(tl.float32)
    z = tl.load(opened + own + 3 * H, here, 0.0).to(tl.float32)
    shown = tanh(tl.load(after + place, here, 0.0).to(tl.float32))
    d = tl.load(d_output + place, here, 0.0).to(tl.float32)
    d_cell = tl.load(d_after + place, here, 0.0).to(tl.float32) + d * o * (1 - shown * shown)
    held = tl.load(before + place, here, 0.0).to(tl.float32)
    kind = d_gates.dtype.element_ty
    tl.store(d_gates + own, (d_cell * z * i * (1 - i)).to(kind), here)
    tl.store(d_gates + own + H, (d_cell * held * f * (1 - f)).to(kind), here)
    tl.store(d_gates + own + 2 * H, (d * shown * o * (1 - o)).to(kind), here)
    tl.store(d_gates + own + 3 * H, (d_cell * i * (1 - z * z)).to(kind), here)
    tl.store(d_before + place, (d_cell * f).to(kind), here)


def _run(kernel: Any, like_BH: Tensor, *given: Any) -> None:
    rows, size = like_BH.shape
    with device_of(like_BH):
        kernel[(triton.cdiv(rows * size, BLOCK),)](*given, H=size, BLOCK=BLOCK)


class _GRUStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a_BG: Tensor, u_BG: Tensor, h_BH: Tensor) -> Tensor:
        a_BG = a_BG if a_BG.stride(-1) == 1 else a_BG.contiguous()  # a step of many need not lie by itself
        u_BG, h_BH = u_BG.contiguous(), h_BH.contiguous()
        opened_BG, after_BH = torch.empty_like(u_BG), torch.empty_like(h_BH)
        _run(_gru_forward, h_BH, a_BG, u_BG, h_BH, opened_BG, after_BH, len(h_BH), a_BG.stride(0))
        ctx.save_for_backward(opened_BG, u_BG, h_BH)
        return after_BH

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_after: Tensor) -> Gradients:
        opened_BG, u_BG, h_BH = ctx.saved_tensors
        d_a, d_u, d_h = torch.empty_like(u_BG), torch.empty_like(u_BG), torch.empty_like(h_BH)
        _run(_gru_backward, h_BH, d_after.contiguous(), opened_BG, u_BG, h_BH, d_a, d_u, d_h, len(h_BH))
        return d_a, d_u, d_h


class _LSTMStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total_BG: Tensor, before_BH: Tensor) -> tuple[Tensor, Tensor]:
        total_BG, before_BH = total_BG.contiguous(), before_BH.contiguous()
        opened_BG = torch.empty_like(total_BG)
        output_BH, after_BH = torch.empty_like(before_BH), torch.empty_like(before_BH)
        _run(_lstm_forward, before_BH, total_BG, before_BH, opened_BG, output_BH, after_BH, len(before_BH))
        ctx.save_for_backward(opened_BG, before_BH, after_BH)
        return output_BH, after_BH

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_output: Tensor, d_after: Tensor) -> Gradients:
        opened_BG, before_BH, after_BH = ctx.saved_tensors
        d_gates, d_before = torch.empty_like(opened_BG), torch.empty_like(before_BH)
        given = (d_output.contiguous(), d_after.contiguous(), opened_BG, before_BH, after_BH)
        _run(_lstm_backward, before_BH, *given, d_gates, d_before, len(before_BH))
        return d_gates, d_before


def gru_step(a_BG: Tensor, u_BG: Tensor, h_BH: Tensor) -> Tensor:
    """As `analytic.gru_step`; all of one precision."""
    after: Tensor = _GRUStep.apply(a_BG, u_BG, h_BH)
    return after


def lstm_step(total_BG: Tensor, cell_BH: Tensor) -> tuple[Tensor, Tensor]:
    """As `analytic_lstm.lstm_step`, of the usual LSTM; all of one precision."""
    output_BH, after_BH = _LSTMStep.apply(total_BG, cell_BH)
    return output_BH, after_BH
