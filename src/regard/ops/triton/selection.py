"""Triton kernels that a search uses to select next tokens: log-softmax in float32, and the largest values of each row.

N rows, V vocabulary, C values to select.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.triton import device_of

LOWEST = tl.constexpr(-3e38)
"""Replaces −∞ and NaN, so that −∞ marks what has been selected."""

BLOCK, BLOCK_WARPS = 8192, 16
"""Logits that a program of the log-softmax holds at once, and its warps."""

LANES, LANES_PER_WARP = 2048, 256
"""Lanes of a program that selects the largest values."""


@triton.jit
def _log_softmax(logits, log_p, logits_n, V: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_n
    log_p += row * V
    running_max = tl.full([BLOCK], -1e30, tl.float32)
    exp_sum = tl.zeros([BLOCK], tl.float32)
    for first in range(0, V, BLOCK):
        v = first + tl.arange(0, BLOCK)
        z = tl.load(logits + v, mask=v < V, other=float("-inf")).to(tl.float32)
        new_max = tl.maximum(running_max, z, propagate_nan=tl.PropagateNan.ALL)
        exp_sum = exp_sum * tl.exp(running_max - new_max) + tl.exp(z - new_max)
        running_max = new_max
    row_max = tl.max(running_max, 0)
    log_sum = row_max + tl.log(tl.sum(exp_sum * tl.exp(running_max - row_max), 0))
    for first in range(0, V, BLOCK):
        v = first + tl.arange(0, BLOCK)
        z = tl.load(logits + v, mask=v < V, other=0.0).to(tl.float32)
        tl.store(log_p + v, z - log_sum, mask=v < V)


def log_softmax(logits_NV: Tensor) -> Tensor:
    """Return the log-softmax of each row in float32. The last axis of the logits must be contiguous."""
    log_p_NV = torch.empty(logits_NV.shape, dtype=torch.float32, device=logits_NV.device)
    rows, vocabulary = logits_NV.shape
    with device_of(logits_NV):
        _log_softmax[(rows,)](logits_NV, log_p_NV, logits_NV.stride(0), vocabulary, BLOCK, num_warps=BLOCK_WARPS)
    return log_p_NV


@triton.jit
def _top(
    values, indices, values_n, V: tl.constexpr, C: tl.constexpr,
    LANES: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Value v belongs to lane v mod LANES. The largest remaining value of the row is the largest of its lane."""
    row = tl.program_id(0).to(tl.int64)
    values += row * values_n
    lanes = tl.arange(0, LANES)
    maxima = tl.full([LANES], float("-inf"), tl.float32)
    for first in range(0, V, LANES):
        x = tl.load(values + first + lanes, mask=first + lanes < V, other=float("-inf"))
        maxima = tl.maximum(maxima, tl.where(first + lanes < V, tl.where(x > LOWEST, x, LOWEST), x))
    columns = tl.arange(0, BLOCK_C)
    selected = tl.full([BLOCK_C], -1, tl.int32)
    for c in range(C):
        lane = tl.argmax(maxima, 0)
        v = lane + tl.arange(0, BLOCK_L) * LANES
        x = tl.load(values + v, mask=v < V, other=float("-inf"))
        is_selected = tl.max((v[:, None] == selected[None, :]).to(tl.int32), 1) > 0
        x = tl.where((v < V) & ~is_selected, tl.where(x > LOWEST, x, LOWEST), float("-inf"))
        best = lane + tl.argmax(x, 0) * LANES
        rest = tl.max(tl.where(v == best, float("-inf"), x), 0)
        selected = tl.where(columns == c, best, selected)
        maxima = tl.where(lanes == lane, rest, maxima)
    tl.store(indices + row * C + columns, selected.to(tl.int64), mask=columns < C)


def top_indices(values_NV: Tensor, count: int) -> Tensor:
    """Return the indices of the largest values of each row, best first, (N, C). NaN counts as −∞. The last axis of the
    values must be contiguous, and a row must have at least C values.
    """
    rows, vocabulary = values_NV.shape
    indices_NC = torch.empty(rows, count, dtype=torch.long, device=values_NV.device)
    lanes = min(LANES, triton.next_power_of_2(vocabulary))
    block_l, block_c = (triton.next_power_of_2(size) for size in (triton.cdiv(vocabulary, lanes), count))
    with device_of(values_NV):
        _top[(rows,)](
            values_NV,
            indices_NC,
            values_NV.stride(0),
            vocabulary,
            count,
            lanes,
            block_l,
            block_c,
            num_warps=triton.cdiv(lanes, LANES_PER_WARP),
        )
    return indices_NC
