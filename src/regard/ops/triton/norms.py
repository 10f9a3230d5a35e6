"""Triton kernels for the residual connection of post-norm layers: LN(x + dropout(u)), forward and backward.

One kernel reads the residual input x and the update u once, and writes the normalized sum. The backward pass recomputes
the sum and the mask of the dropout, so that neither is stored. N rows of width D. With s = x + m ⊙ u,
ŝ = (s − mean s) / √(var s + ε), y = w ⊙ ŝ + b and g = w ⊙ dy, the gradients are

    ds = (g − mean(g) − ŝ mean(g ⊙ ŝ)) / √(var s + ε),   dx = ds,   du = m ⊙ ds,   dw = Σ_n dy ⊙ ŝ,   db = Σ_n dy.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.ops.triton import device_of
from regard.ops.triton.partial_sums import sum_rows

MAX_WIDTH = 4096
"""The largest width: a program holds whole rows."""

TILE = 4096
"""Elements that a program holds at once."""

PROGRAMS = 528
"""Programs of the backward pass, each of which adds up the gradients of w and b over its rows: four for each of the
multiprocessors of an H100 or H200.
"""

LEVELS: tl.constexpr = tl.constexpr(65536)
"""The probability of dropout is rounded to a multiple of 1 / 65536."""


@triton.jit
def dropout_factors(seed, rows, dropped, factor, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Return 0 for elements that are dropped, and `factor` for the others. One call of Philox serves four elements."""
    offsets = rows * (BLOCK // 4) + tl.arange(0, BLOCK // 4)[None, :]
    a, b, c, d = tl.randint4x(seed, offsets, 7)
    bits = tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), [ROWS, BLOCK])
    return tl.where((bits & (LEVELS - 1)) >= dropped, factor, 0.0)


@triton.jit
def normalize(residual, update, factors, rows, columns, inside, eps, D: tl.constexpr):
    """Return ŝ and 1 / √(var s + ε)."""
    offsets = rows.to(tl.int64) * D + columns
    x = tl.load(residual + offsets, inside, 0.0).to(tl.float32)
    u = tl.load(update + offsets, inside, 0.0).to(tl.float32)
    total = x + u * factors
    centered = tl.where(inside, total - tl.sum(total, 1)[:, None] / D, 0.0)
    scale = tl.rsqrt(tl.sum(centered * centered, 1)[:, None] / D + eps)
    return centered * scale, scale


@triton.jit(do_not_specialize=["N", "dropped"])
def _add_norm_forward(
    residual, update, weight, bias, seeds, output, N, dropped, factor, eps, D: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows < N) & (columns < D)
    factors = tl.full([ROWS, BLOCK], 1.0, tl.float32)
    if HAS_DROPOUT:
        factors = dropout_factors(tl.load(seeds), rows, dropped, factor, ROWS, BLOCK)
    normalized, _ = normalize(residual, update, factors, rows, columns, inside, eps, D)
    w = tl.load(weight + columns, columns < D, 0.0).to(tl.float32)
    b = tl.load(bias + columns, columns < D, 0.0).to(tl.float32)
    y = (normalized * w + b).to(output.dtype.element_ty)
    tl.store(output + rows.to(tl.int64) * D + columns, y, inside)


@triton.jit(do_not_specialize=["N", "dropped"])
def _add_norm_backward(
    residual, update, weight, seeds, d_output, d_residual, d_update, partial, N, dropped, factor, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)[None, :]
    w = tl.load(weight + columns, columns < D, 0.0).to(tl.float32)
    d_weight = tl.zeros([ROWS, BLOCK], tl.float32)
    d_bias = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS):
        rows = start + tl.arange(0, ROWS)[:, None]
        inside = (rows < N) & (columns < D)
        factors = tl.full([ROWS, BLOCK], 1.0, tl.float32)
        if HAS_DROPOUT:
            factors = dropout_factors(tl.load(seeds), rows, dropped, factor, ROWS, BLOCK)
        normalized, scale = normalize(residual, update, factors, rows, columns, inside, eps, D)
        offsets = rows.to(tl.int64) * D + columns
        dy = tl.load(d_output + offsets, inside, 0.0).to(tl.float32)
        d_weight += dy * normalized
        d_bias += dy
        g = dy * w
        mean = tl.sum(g, 1)[:, None] / D
        projection = tl.sum(g * normalized, 1)[:, None] / D
        d_total = (g - mean - normalized * projection) * scale
        tl.store(d_residual + offsets, d_total.to(d_residual.dtype.element_ty), inside)
        tl.store(d_update + offsets, (d_total * factors).to(d_update.dtype.element_ty), inside)
    column = tl.arange(0, BLOCK)
    tl.store(partial + tl.program_id(0) * 2 * D + column, tl.sum(d_weight, 0), column < D)
    tl.store(partial + tl.program_id(0) * 2 * D + D + column, tl.sum(d_bias, 0), column < D)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, residual: Tensor, update: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None, dropout: float,
        eps: float, dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        residual, update = residual.contiguous(), update.contiguous()
        rows, width = residual.numel() // residual.shape[-1], residual.shape[-1]
        output = torch.empty(residual.shape, dtype=dtype, device=residual.device)
        block = max(16, triton.next_power_of_2(width))
        dropped = round(dropout * LEVELS.value)
        ctx.scalars = rows, dropped, LEVELS.value / (LEVELS.value - dropped), eps
        ctx.constants = {"D": width, "BLOCK": block, "ROWS": max(1, TILE // block), "HAS_DROPOUT": dropout > 0}
        ctx.save_for_backward(residual, update, weight, seed)
        with device_of(residual):
            _add_norm_forward[(triton.cdiv(rows, ctx.constants["ROWS"]),)](
                residual, update, weight, bias, seed, output, *ctx.scalars, **ctx.constants
            )
        return output

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_output: Tensor) -> Gradients:
        residual, update, weight, _ = ctx.saved_tensors
        rows, width = ctx.scalars[0], ctx.constants["D"]
        programs = min(PROGRAMS, triton.cdiv(rows, ctx.constants["ROWS"]))
        d_residual, d_update = torch.empty_like(residual), torch.empty_like(update)
        partial_PE = torch.empty(programs, 2 * width, dtype=torch.float32, device=residual.device)
        with device_of(residual):
            _add_norm_backward[(programs,)](
                *ctx.saved_tensors, d_output.contiguous(), d_residual, d_update, partial_PE, *ctx.scalars,
                **ctx.constants,
            )  # fmt: skip
        d_weight, d_bias = sum_rows(partial_PE, weight.dtype).chunk(2)
        return d_residual, d_update, d_weight, d_bias, None, None, None, None


def add_norm(
    residual: Tensor, update: Tensor, weight: Tensor, bias: Tensor, *, dropout: float, eps: float, dtype: torch.dtype
) -> Tensor:
    """LN(residual + dropout(update)), in this dtype."""
    seed = torch.randint(2**31, (1,), device=residual.device) if dropout else None
    output: Tensor = _AddNorm.apply(residual, update, weight, bias, seed, dropout, eps, dtype)
    return output
