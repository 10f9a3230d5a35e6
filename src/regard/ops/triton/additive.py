"""The additive score vᵀ tanh(q + k) in Triton. The hidden values (B, H, T, S, A) are never stored: the backward pass
recomputes them, once for the gradient of the queries and once for that of the keys. Both are bound by the rate at which
the GPU evaluates tanh.

B rows, T queries, S memory slots, H heads, A hidden width. In the kernels, `n` is a row and a head.
"""

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.ops.triton import device_of

APPROXIMATE = os.environ.get("TRITON_INTERPRET") != "1"
"""Whether half precision uses the tanh instruction of the GPU, which the interpreter does not have."""

MAX_TILE = 64
"""Queries, slots or hidden units of a program."""

MIN_TILES = 512
"""With fewer tiles of scores than this, the GPU is not busy, and operations of PyTorch are faster."""

OWN_TILE = 16
"""Queries or keys of a program in the backward pass."""


@triton.jit
def tanh(x, APPROXIMATE: tl.constexpr):
    """Return tanh in float32; with APPROXIMATE, in one instruction, with a relative error of 2⁻¹¹."""
    if APPROXIMATE:
        y = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        y = 2 * tl.sigmoid(2 * x) - 1
    return y


@triton.jit(do_not_specialize=["T"])
def _forward(
    query, keys, v, scores, T, H, A, APPROXIMATE: tl.constexpr, QUERIES: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    """Compute a tile of scores. Queries (n, A, T) and keys (n, A, S) are padded to a multiple of a tile."""
    n = tl.program_id(0).to(tl.int64)
    query_row, keys_row = tl.num_programs(2) * QUERIES, tl.num_programs(1) * SLOTS
    # Two axes each for queries and slots: a thread then owns several of both, and loads few values per tanh.
    t = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES // 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    s = tl.program_id(1) * SLOTS + tl.arange(0, SLOTS // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    query += n * A * query_row + t
    keys += n * A * keys_row + s
    v += (n % H) * A
    total = tl.zeros((QUERIES // 16, SLOTS // 8, 16, 8), tl.float32)
    for a in tl.range(0, A, loop_unroll_factor=4):
        q = tl.load(query + a * query_row).to(tl.float32)
        k = tl.load(keys + a * keys_row).to(tl.float32)
        total += tl.load(v + a).to(tl.float32) * tanh(q[:, None, :, None] + k[None, :, None, :], APPROXIMATE)
    t = t[:, None, :, None]
    tl.store(scores + (n * T + t) * keys_row + s[None, :, None, :], total, t < T)


@triton.jit(do_not_specialize=["X", "Y", "x_stride", "y_stride"])
def _backward(
    own, other, v, d_scores, d_own, d_v, X, Y, x_stride, y_stride, H, A,
    HAS_V: tl.constexpr, APPROXIMATE: tl.constexpr, OWN: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the gradient of `own` (n, X, A), summed over all of `other` (n, Y, A): queries and keys, or
    keys and queries. With HAS_V, also compute the gradient of v, for each tile of `own`.
    """
    n = tl.program_id(0).to(tl.int64)
    x = tl.program_id(1) * OWN + tl.arange(0, OWN)
    a = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    ok = (x < X)[:, None] & (a < A)[None, :]
    offset = (n * X + x)[:, None] * A + a[None, :]
    mine = tl.load(own + offset, ok, 0.0).to(tl.float32)
    other += n * Y * A + a
    d_scores += n * X * Y + x * x_stride
    # Σ d (1 − h²) = Σ d − Σ d h²: few operations beside each tanh.
    d_sum = tl.zeros((OWN,), tl.float32)
    d_squares = tl.zeros((OWN, WIDTH), tl.float32)
    d_hidden = tl.zeros((OWN, WIDTH), tl.float32)
    for y in tl.range(0, Y, loop_unroll_factor=4):
        d = tl.load(d_scores + y * y_stride, x < X, 0.0).to(tl.float32)
        hidden = tanh(mine + tl.load(other + y * A, a < A, 0.0).to(tl.float32)[None, :], APPROXIMATE)
        d_sum += d
        d_squares += d[:, None] * (hidden * hidden)
        if HAS_V:
            d_hidden += d[:, None] * hidden
    weights = tl.load(v + (n % H) * A + a, a < A, 0.0).to(tl.float32)
    tl.store(d_own + offset, (d_sum[:, None] - d_squares) * weights[None, :], ok)
    if HAS_V:
        tl.store(d_v + (n * tl.num_programs(1) + tl.program_id(1)) * A + a, tl.sum(d_hidden, 0), a < A)


def _tile(size: int) -> int:
    return int(min(MAX_TILE, max(16, triton.next_power_of_2(size))))


def _transpose(x_BHNA: Tensor, tile: int) -> Tensor:
    """(B, H, N, A) → (B, H, A, N), with N padded to a multiple of the tile."""
    return nn.functional.pad(x_BHNA.transpose(2, 3), (0, -x_BHNA.shape[2] % tile)).contiguous()


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, v: Tensor) -> Tensor:
        rows, heads, queries, width = query.shape
        slots = keys.shape[2]
        query, keys, v = query.contiguous(), keys.contiguous(), v.contiguous()
        ctx.save_for_backward(query, keys, v)
        query_tile, slot_tile = _tile(queries), _tile(slots)
        approximate = APPROXIMATE and query.dtype != torch.float32
        with device_of(query):
            tiles = triton.cdiv(slots, slot_tile), triton.cdiv(queries, query_tile)
            scores = query.new_empty(rows, heads, queries, tiles[0] * slot_tile)
            _forward[(rows * heads, *tiles)](
                _transpose(query, query_tile), _transpose(keys, slot_tile), v, scores, queries, heads, width,
                APPROXIMATE=approximate, QUERIES=query_tile, SLOTS=slot_tile,
                num_warps=max(1, query_tile * slot_tile // 1024),
            )  # fmt: skip
        return scores[..., :slots]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_scores: Tensor) -> Gradients:
        query, keys, v = ctx.saved_tensors
        d_scores = d_scores.contiguous()
        slots = d_scores.shape[-1]
        d_query, d_v = _gradient(query, keys, v, d_scores, (slots, 1), with_v=True)
        d_keys, _ = _gradient(keys, query, v, d_scores, (1, slots), with_v=False)
        return d_query, d_keys, d_v.sum((0, 2)).to(v.dtype)


def _gradient(
    own: Tensor, other: Tensor, v: Tensor, d_scores: Tensor, strides: tuple[int, int], *, with_v: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the queries or of the keys, and that of v, (B, H, tiles, A). The strides of the scores are
    those along `own` and along `other`.
    """
    rows, heads, size, width = own.shape
    tile, width_tile = min(OWN_TILE, _tile(size)), _tile(width)
    tiles = triton.cdiv(size, tile)
    d_own = torch.empty_like(own)
    d_v = torch.empty(rows, heads, tiles, width, dtype=torch.float32, device=own.device)
    with device_of(own):
        _backward[(rows * heads, tiles, triton.cdiv(width, width_tile))](
            own, other, v, d_scores, d_own, d_v, size, other.shape[2], *strides, heads, width,
            HAS_V=with_v, APPROXIMATE=APPROXIMATE and own.dtype != torch.float32, OWN=tile, WIDTH=width_tile,
            num_warps=max(1, tile * width_tile // (256 if own.dtype == torch.float32 else 512)),
        )  # fmt: skip
    return d_own, d_v


def has_enough_tiles(query_BHTA: Tensor, keys_BHSA: Tensor) -> bool:
    """Whether there are enough scores for the kernel to be faster than operations of PyTorch."""
    (rows, heads, queries, _), slots = query_BHTA.shape, keys_BHSA.shape[2]
    tiles = rows * heads * triton.cdiv(queries, MAX_TILE) * triton.cdiv(slots, MAX_TILE)
    return bool(min(queries, slots) >= MAX_TILE and tiles >= MIN_TILES)


def additive_scores(query_BHTA: Tensor, keys_BHSA: Tensor, v_HA: Tensor) -> Tensor:
    """Return vᵀ tanh(q + k), (B, H, T, S), in the dtype of the queries."""
    scores: Tensor = _Scores.apply(query_BHTA, keys_BHSA, v_HA)
    return scores
