"""Triton kernels for residual connections, forward and backward: LN(x + dropout(u)) of post-norm layers, LN(x) and
x + dropout(u) of pre-norm layers.

One kernel reads the residual input x and the update u once, and writes the normalized sum. The backward pass recomputes
the sum and the mask of the dropout, so that neither is stored. N rows of width D. With s = x + m ⊙ u,
ŝ = (s − mean s) / √(var s + ε), y = w ⊙ ŝ + b and g = w ⊙ dy, the gradients are

    ds = (g − mean(g) − ŝ mean(g ⊙ ŝ)) / √(var s + ε),   dx = ds,   du = m ⊙ ds,   dw = Σ_n dy ⊙ ŝ,   db = Σ_n dy.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.ops.triton import device_of
from regard.ops.triton.partial_sums import sum_rows

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
def normalize(residual, update, factors, rows, columns, inside, eps, D: tl.constexpr, HAS_UPDATE: tl.constexpr):
    """Return ŝ and 1 / √(var s + ε)."""
    offsets = rows.to(tl.int64) * D + columns
    total = tl.load(residual + offsets, inside, 0.0).to(tl.float32)
    if HAS_UPDATE:
        total += tl.load(update + offsets, inside, 0.0).to(tl.float32) * factors
    centered = tl.where(inside, total - tl.sum(total, 1)[:, None] / D, 0.0)
    scale = tl.rsqrt(tl.sum(centered * centered, 1)[:, None] / D + eps)
    return centered * scale, scale


@triton.jit(do_not_specialize=["N", "dropped"])
def _add_norm_forward(
    residual, update, weight, bias, seeds, output, N, dropped, factor, eps, D: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, HAS_UPDATE: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows < N) & (columns < D)
    factors = tl.full([ROWS, BLOCK], 1.0, tl.float32)
    if HAS_DROPOUT:
        factors = dropout_factors(tl.load(seeds), rows, dropped, factor, ROWS, BLOCK)
    normalized, _ = normalize(residual, update, factors, rows, columns, inside, eps, D, HAS_UPDATE)
    w = tl.load(weight + columns, columns < D, 0.0).to(tl.float32)
    b = tl.load(bias + columns, columns < D, 0.0).to(tl.float32)
    y = (normalized * w + b).to(output.dtype.element_ty)
    tl.store(output + rows.to(tl.int64) * D + columns, y, inside)


@triton.jit(do_not_specialize=["N", "dropped"])
def _add_norm_backward(
    residual, update, weight, seeds, d_output, d_residual, d_update, partial, N, dropped, factor, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, HAS_UPDATE: tl.constexpr, HAS_DROPOUT: tl.constexpr,
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
        normalized, scale = normalize(residual, update, factors, rows, columns, inside, eps, D, HAS_UPDATE)
        offsets = rows.to(tl.int64) * D + columns
        dy = tl.load(d_output + offsets, inside, 0.0).to(tl.float32)
        d_weight += dy * normalized
        d_bias += dy
        g = dy * w
        mean = tl.sum(g, 1)[:, None] / D
        projection = tl.sum(g * normalized, 1)[:, None] / D
        d_total = (g - mean - normalized * projection) * scale
        tl.store(d_residual + offsets, d_total.to(d_residual.dtype.element_ty), inside)
        if HAS_UPDATE:
            tl.store(d_update + offsets, (d_total * factors).to(d_update.dtype.element_ty), inside)
    column = tl.arange(0, BLOCK)
    tl.store(partial + tl.program_id(0) * 2 * D + column, tl.sum(d_weight, 0), column < D)
    tl.store(partial + tl.program_id(0) * 2 * D + D + column, tl.sum(d_bias, 0), column < D)


@triton.jit(do_not_specialize=["N", "dropped"])
def _add_dropout(
    residual, update, seeds, output, N, dropped, factor, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Store x + m ⊙ u, or m ⊙ u."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows < N) & (columns < D)
    offsets = rows.to(tl.int64) * D + columns
    factors = dropout_factors(tl.load(seeds), rows, dropped, factor, ROWS, BLOCK)
    total = tl.load(update + offsets, inside, 0.0).to(tl.float32) * factors
    if HAS_RESIDUAL:
        total += tl.load(residual + offsets, inside, 0.0).to(tl.float32)
    tl.store(output + offsets, total.to(output.dtype.element_ty), inside)


class _Tiles(NamedTuple):
    """The rows of a tensor, and the tiles that programs process."""

    rows: int
    width: int
    block: int

    @classmethod
    def of(cls, x: Tensor) -> "_Tiles":
        return cls(x.numel() // x.shape[-1], x.shape[-1], max(16, triton.next_power_of_2(x.shape[-1])))

    @property
    def programs(self) -> int:
        return -(-self.rows // self.constants["ROWS"])

    @property
    def constants(self) -> dict[str, int]:
        return {"D": self.width, "BLOCK": self.block, "ROWS": max(1, TILE // self.block)}


def _round_dropout(dropout: float) -> tuple[int, float]:
    """Return how many of 65,536 levels are dropped, and the factor of the others."""
    dropped = round(dropout * LEVELS.value)
    return dropped, LEVELS.value / (LEVELS.value - dropped)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, residual: Tensor, update: Tensor | None, weight: Tensor, bias: Tensor, seed: Tensor | None,
        dropout: float, eps: float, dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        residual, update = residual.contiguous(), None if update is None else update.contiguous()
        output = torch.empty(residual.shape, dtype=dtype, device=residual.device)
        ctx.tiles = tiles = _Tiles.of(residual)
        ctx.scalars = tiles.rows, *_round_dropout(dropout), eps
        ctx.constants = {**tiles.constants, "HAS_UPDATE": update is not None, "HAS_DROPOUT": dropout > 0}
        ctx.save_for_backward(residual, update, weight, seed)
        with device_of(residual):
            _add_norm_forward[(tiles.programs,)](
                residual, update, weight, bias, seed, output, *ctx.scalars, **ctx.constants
            )
        return output

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_output: Tensor) -> Gradients:
        residual, update, weight, _ = ctx.saved_tensors
        programs = min(PROGRAMS, ctx.tiles.programs)
        d_residual, d_update = torch.empty_like(residual), None if update is None else torch.empty_like(update)
        partial_PE = torch.empty(programs, 2 * ctx.tiles.width, dtype=torch.float32, device=residual.device)
        with device_of(residual):
            _add_norm_backward[(programs,)](
                *ctx.saved_tensors, d_output.contiguous(), d_residual, d_update, partial_PE, *ctx.scalars,
                **ctx.constants,
            )  # fmt: skip
        d_weight, d_bias = sum_rows(partial_PE, weight.dtype).chunk(2)
        return d_residual, d_update, d_weight, d_bias, None, None, None, None


class _AddDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, update: Tensor, seed: Tensor, dropout: float) -> Tensor:
        ctx.dropout, ctx.dtype = dropout, update.dtype
        ctx.save_for_backward(seed)
        return _launch_add_dropout(residual.contiguous(), update.contiguous(), seed, dropout, residual.dtype)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_output: Tensor) -> Gradients:
        (seed,) = ctx.saved_tensors
        d_update = _launch_add_dropout(None, d_output.contiguous(), seed, ctx.dropout, ctx.dtype)
        return d_output, d_update, None, None


def _launch_add_dropout(
    residual: Tensor | None, update: Tensor, seed: Tensor, dropout: float, dtype: torch.dtype
) -> Tensor:
    output, tiles = torch.empty(update.shape, dtype=dtype, device=update.device), _Tiles.of(update)
    with device_of(update):
        _add_dropout[(tiles.programs,)](
            residual, update, seed, output, tiles.rows, *_round_dropout(dropout), **tiles.constants,
            HAS_RESIDUAL=residual is not None,
        )  # fmt: skip
    return output


def add_norm(
    residual: Tensor,
    update: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    *,
    dropout: float,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    """LN(residual + dropout(update)), or LN(residual), in this dtype."""
    output: Tensor = _AddNorm.apply(residual, update, weight, bias, _draw_seed(residual, dropout), dropout, eps, dtype)
    return output


def add_dropout(residual: Tensor, update: Tensor, *, dropout: float) -> Tensor:
    """Return residual + dropout(update), in the dtype of the residual."""
    output: Tensor = _AddDropout.apply(residual, update, _draw_seed(residual, dropout), dropout)
    return output


def _draw_seed(x: Tensor, dropout: float) -> Tensor | None:
    """Draw a seed from the random number generator of the device; None without dropout."""
    return torch.randint(2**31, (1,), device=x.device) if dropout else None
