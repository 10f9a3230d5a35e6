"""Triton kernels for layer normalization, forward and backward.

N rows of D units. A program holds one or more complete rows. In the backward pass, each program processes many rows and
accumulates its own gradients of the weight and bias, which are summed at the end.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.ops.triton import device_of

MAX_PROGRAMS = 512
"""The maximum number of programs in the backward pass."""


@triton.jit(do_not_specialize=["N"])
def _forward(x, weight, bias, y, means, rstds, N, eps, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    mask = (row < N)[:, None] & (column < D)[None, :]
    offset = row[:, None] * D + column[None, :]
    values = tl.load(x + offset, mask, 0.0).to(tl.float32)
    mean = tl.sum(values, 1) / D
    centered = tl.where(mask, values - mean[:, None], 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centered * centered, 1) / D + eps)
    w = tl.load(weight + column, column < D, 0.0).to(tl.float32)
    b = tl.load(bias + column, column < D, 0.0).to(tl.float32)
    output = centered * rstd[:, None] * w[None, :] + b[None, :]
    tl.store(y + offset, output.to(y.dtype.element_ty), mask)
    tl.store(means + row, mean, row < N)
    tl.store(rstds + row, rstd, row < N)


@triton.jit(do_not_specialize=["N"])
def _backward(
    dy, x, weight, means, rstds, dx, d_weights, d_biases, N,
    D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLUMNS)
    w = tl.load(weight + column, column < D, 0.0).to(tl.float32)
    d_weight = tl.zeros([COLUMNS], tl.float32)
    d_bias = tl.zeros([COLUMNS], tl.float32)
    for first in range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS).to(tl.int64)
        mask = (row < N)[:, None] & (column < D)[None, :]
        offset = row[:, None] * D + column[None, :]
        d_output = tl.load(dy + offset, mask, 0.0).to(tl.float32)
        mean = tl.load(means + row, row < N, 0.0)
        rstd = tl.load(rstds + row, row < N, 0.0)
        centered = tl.load(x + offset, mask, 0.0).to(tl.float32) - mean[:, None]
        normalized = tl.where(mask, centered * rstd[:, None], 0.0)
        d_weight += tl.sum(d_output * normalized, 0)
        d_bias += tl.sum(d_output, 0)
        d_normalized = d_output * w[None, :]
        mean_grad = tl.sum(d_normalized, 1) / D
        projection = tl.sum(d_normalized * normalized, 1) / D
        d_input = (d_normalized - mean_grad[:, None] - normalized * projection[:, None]) * rstd[:, None]
        tl.store(dx + offset, d_input.to(dx.dtype.element_ty), mask)
    partial = tl.program_id(0) * D + column
    tl.store(d_weights + partial, d_weight, column < D)
    tl.store(d_biases + partial, d_bias, column < D)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        x = x.contiguous()
        rows, size = x.numel() // x.shape[-1], x.shape[-1]
        y = torch.empty_like(x, dtype=dtype)
        means, rstds = torch.empty(2, rows, dtype=torch.float32, device=x.device).unbind()
        ctx.tile = _tile(size)
        grid = (triton.cdiv(rows, ctx.tile["ROWS"]),)
        with device_of(x):
            _forward[grid](x, weight, bias, y, means, rstds, rows, eps, size, **ctx.tile)
        ctx.save_for_backward(x, weight, means, rstds)
        return y

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        x, weight, means, rstds = ctx.saved_tensors
        rows, size = x.numel() // x.shape[-1], x.shape[-1]
        programs = min(MAX_PROGRAMS, triton.cdiv(rows, ctx.tile["ROWS"]))
        dx = torch.empty_like(x)
        d_weights, d_biases = torch.empty(2, programs, size, dtype=torch.float32, device=x.device).unbind()
        tensors = (dy.contiguous(), x, weight, means, rstds, dx, d_weights, d_biases)
        with device_of(x):
            _backward[(programs,)](*tensors, rows, size, **ctx.tile)
        return dx, d_weights.sum(0).to(weight.dtype), d_biases.sum(0).to(weight.dtype), None, None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """`torch.nn.functional.layer_norm` over the last dimension, with statistics in float32 and output in `dtype`."""
    output: Tensor = _LayerNorm.apply(x, weight, bias, eps, dtype)
    return output


def _tile(size: int) -> dict[str, int]:
    """Return the rows and columns that a program holds at once."""
    columns = triton.next_power_of_2(size)
    return {"ROWS": max(1, 2048 // columns), "COLUMNS": columns}
