"""Layer normalization in one kernel each way.

N rows of D units. A program holds some rows whole; in the gradient it goes through many, and keeps its own sums for
the weights and biases, which are added up at the end.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.ops.triton import device_of

PROGRAMS = 512
"""How many share the work of a gradient."""


@triton.jit(do_not_specialize=["N"])
def _forward(x, weight, bias, y, mean, scale, N, eps, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    here = (row < N)[:, None] & (column < D)[None, :]
    place = row[:, None] * D + column[None, :]
    own = tl.load(x + place, here, 0.0).to(tl.float32)
    middle = tl.sum(own, 1) / D
    apart = tl.where(here, own - middle[:, None], 0.0)
    inverse = 1 / tl.sqrt(tl.sum(apart * apart, 1) / D + eps)
    w = tl.load(weight + column, column < D, 0.0).to(tl.float32)
    b = tl.load(bias + column, column < D, 0.0).to(tl.float32)
    made = apart * inverse[:, None] * w[None, :] + b[None, :]
    tl.store(y + place, made.to(y.dtype.element_ty), here)
    tl.store(mean + row, middle, row < N)
    tl.store(scale + row, inverse, row < N)


@triton.jit(do_not_specialize=["N"])
def _backward(
    dy, x, weight, mean, scale, dx, d_weights, d_biases, N,
    D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLUMNS)
    w = tl.load(weight + column, column < D, 0.0).to(tl.float32)
    d_weight = tl.zeros([COLUMNS], tl.float32)
    d_bias = tl.zeros([COLUMNS], tl.float32)
    for first in range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS).to(tl.int64)
        here = (row < N)[:, None] & (column < D)[None, :]
        place = row[:, None] * D + column[None, :]
        given = tl.load(dy + place, here, 0.0).to(tl.float32)
        middle = tl.load(mean + row, row < N, 0.0)
        inverse = tl.load(scale + row, row < N, 0.0)
        apart = tl.load(x + place, here, 0.0).to(tl.float32) - middle[:, None]
        normal = tl.where(here, apart * inverse[:, None], 0.0)
        d_weight += tl.sum(given * normal, 0)
        d_bias += tl.sum(given, 0)
        weighted = given * w[None, :]
        level = tl.sum(weighted, 1) / D
        along = tl.sum(weighted * normal, 1) / D
        found = (weighted - level[:, None] - normal * along[:, None]) * inverse[:, None]
        tl.store(dx + place, found.to(dx.dtype.element_ty), here)
    own = tl.program_id(0) * D + column
    tl.store(d_weights + own, d_weight, column < D)
    tl.store(d_biases + own, d_bias, column < D)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        x = x.contiguous()
        rows, size = x.numel() // x.shape[-1], x.shape[-1]
        y = torch.empty_like(x, dtype=dtype)
        mean, scale = torch.empty(2, rows, dtype=torch.float32, device=x.device).unbind()
        ctx.tile = _tile(size)
        grid = (triton.cdiv(rows, ctx.tile["ROWS"]),)
        with device_of(x):
            _forward[grid](x, weight, bias, y, mean, scale, rows, eps, size, **ctx.tile)
        ctx.save_for_backward(x, weight, mean, scale)
        return y

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        x, weight, mean, scale = ctx.saved_tensors
        rows, size = x.numel() // x.shape[-1], x.shape[-1]
        programs = min(PROGRAMS, triton.cdiv(rows, ctx.tile["ROWS"]))
        dx = torch.empty_like(x)
        d_weights, d_biases = torch.empty(2, programs, size, dtype=torch.float32, device=x.device).unbind()
        given = (dy.contiguous(), x, weight, mean, scale, dx, d_weights, d_biases)
        with device_of(x):
            _backward[(programs,)](*given, rows, size, **ctx.tile)
        return dx, d_weights.sum(0).to(weight.dtype), d_biases.sum(0).to(weight.dtype), None, None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """As `torch.nn.functional.layer_norm` over the last dimension; the statistics in float32, the result as asked."""
    made: Tensor = _LayerNorm.apply(x, weight, bias, eps, dtype)
    return made


def _tile(size: int) -> dict[str, int]:
    """Rows and columns that a program holds at once."""
    columns = triton.next_power_of_2(size)
    return {"ROWS": max(1, 2048 // columns), "COLUMNS": columns}
