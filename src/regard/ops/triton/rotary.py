"""A Triton kernel for rotary positions (Su et al. 2021): it rotates all pairs of dimensions of all heads in one pass.
The gradient is rotated by the opposite angles.

B rows, T positions, H heads, D width of a head, E = H D.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.ops.triton import device_of

MAX_WIDTH = 4096
"""The largest width of all heads together: a program holds all heads of a position."""

TILE = 4096
"""Elements that a program holds at once."""


@triton.jit(do_not_specialize=["N", "T", "start"])
def _rotate(
    x, output, N, T, start, row_stride, step_stride, direction, log_base, D: tl.constexpr, E: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, LOADS_START: tl.constexpr,
):  # fmt: skip
    if LOADS_START:
        start = tl.load(start).to(tl.int32)
    positions = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (positions < N) & (columns < E)
    rows = (positions // T).to(tl.int64)
    steps = positions % T
    values = tl.load(x + rows * row_stride + steps * step_stride + columns, inside, 0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(values, [ROWS, BLOCK // 2, 2]))
    pairs = tl.arange(0, BLOCK // 2)[None, :] % (D // 2)
    angles = (start + steps).to(tl.float32) * tl.exp(pairs.to(tl.float32) * (-2 * log_base / D))
    sine = tl.sin(angles) * direction
    cosine = tl.cos(angles)
    rotated = tl.reshape(tl.join(even * cosine - odd * sine, even * sine + odd * cosine), [ROWS, BLOCK])
    tl.store(output + positions.to(tl.int64) * E + columns, rotated.to(output.dtype.element_ty), inside)


def _launch(x_BTE: Tensor, heads: int, start: int | Tensor, direction: float) -> Tensor:
    x_BTE = x_BTE if x_BTE.stride(-1) == 1 else x_BTE.contiguous()
    rows, steps, width = x_BTE.shape
    output_BTE = torch.empty(x_BTE.shape, dtype=x_BTE.dtype, device=x_BTE.device)
    block = max(16, triton.next_power_of_2(width))
    tile_rows = max(1, TILE // block)
    with device_of(x_BTE):
        _rotate[(triton.cdiv(rows * steps, tile_rows),)](
            x_BTE, output_BTE, rows * steps, steps, start, x_BTE.stride(0), x_BTE.stride(1), direction,
            math.log(10000.0), width // heads, width, block, tile_rows, isinstance(start, Tensor),
        )  # fmt: skip
    return output_BTE


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTE: Tensor, heads: int, start: int | Tensor) -> Tensor:
        ctx.heads, ctx.start = heads, start
        return _launch(x_BTE, heads, start, 1.0)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_output_BTE: Tensor) -> Gradients:
        return _launch(d_output_BTE, ctx.heads, ctx.start, -1.0), None, None


def rotate_heads(x_BTE: Tensor, heads: int, start: int | Tensor) -> Tensor:
    """Rotate each pair of dimensions of each head by its position. The first one is `start`, a number or (1,)."""
    output_BTE: Tensor = _Rotation.apply(x_BTE, heads, start)
    return output_BTE
