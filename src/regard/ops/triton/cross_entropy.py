"""Cross-entropy with smoothed labels, from logits of any precision, in one kernel each way.

N rows of V logits z. With y the row's token, ε the smoothing and L = log Σ_v exp z_v, a row's loss is
(1 − ε) (L − z_y) + ε (L − mean_v z_v), and its gradient softmax(z) − (1 − ε) [v = y] − ε / V. A row is read once for
the loss and once for the gradient, and no probability is ever written down.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.ops.triton import device_of

BLOCK = 4096
"""Logits that a program holds at once."""

LOWEST = tl.constexpr(-1e30)
"""In place of −∞, of which differences are not numbers."""


@triton.jit
def finite(z, within):
    """The logits, the lowest number for those that are impossible or not within; what is no number stays none."""
    z = tl.where(within, z, LOWEST)
    return tl.where(z < LOWEST, LOWEST, z)


@triton.jit
def climb(highest, z):
    """The highest so far with new logits, what that leaves of a sum of exponentials, and what they add to it."""
    higher = tl.maximum(highest, z, propagate_nan=tl.PropagateNan.ALL)
    return higher, tl.exp(highest - higher), tl.exp(z - higher)


@triton.jit
def smoothed(log_total, chosen, mean, smoothing):
    """The loss of a row."""
    loss = (1 - smoothing) * (log_total - chosen)
    if smoothing > 0:
        loss += smoothing * (log_total - mean)
    return loss


@triton.jit
def slope(p, v, token, smoothing, V):
    """The loss's gradient by the logits."""
    return p - smoothing / V - tl.where(v == token, 1 - smoothing, 0.0)


@triton.jit(do_not_specialize=["passed_over"])
def _forward(
    logits, tokens, losses, totals, smoothing, passed_over, V: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(tokens + row)
    if token == passed_over:
        tl.store(losses + row, 0.0)
        return
    highest = tl.full([BLOCK], LOWEST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    plain = tl.zeros([BLOCK], tl.float32)
    for first in range(0, V, BLOCK):
        v = first + tl.arange(0, BLOCK)
        z = tl.load(logits + row * V + v, v < V, 0.0).to(tl.float32)
        plain += z
        z = finite(z, v < V)
        highest, rest, weight = climb(highest, z)
        total = total * rest + weight
    most = tl.max(highest, 0)
    log_total = most + tl.log(tl.sum(total * tl.exp(highest - most), 0))
    chosen = tl.load(logits + row * V + token).to(tl.float32)
    tl.store(losses + row, smoothed(log_total, chosen, tl.sum(plain, 0) / V, smoothing))
    tl.store(totals + row, log_total)


@triton.jit(do_not_specialize=["passed_over"])
def _backward(
    logits, tokens, totals, scales, d_logits, smoothing, passed_over, V: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens + row)
    place = row * V + v
    if token == passed_over:
        tl.store(d_logits + place, tl.zeros([BLOCK], d_logits.dtype.element_ty), v < V)
        return
    z = tl.load(logits + place, v < V, 0.0).to(tl.float32)
    found = slope(tl.exp(z - tl.load(totals + row)), v, token, smoothing, V)
    tl.store(d_logits + place, (found * tl.load(scales + row)).to(d_logits.dtype.element_ty), v < V)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, tokens_N: Tensor, smoothing: float, passed_over: int) -> Tensor:
        logits_NV, tokens_N = logits_NV.contiguous(), tokens_N.contiguous()
        rows, size = logits_NV.shape
        losses_N, totals_N = torch.empty(2, rows, dtype=torch.float32, device=logits_NV.device).unbind()
        with device_of(logits_NV):
            _forward[(rows,)](logits_NV, tokens_N, losses_N, totals_N, smoothing, passed_over, size, BLOCK)
        ctx.save_for_backward(logits_NV, tokens_N, totals_N)
        ctx.smoothing, ctx.passed_over = smoothing, passed_over
        return losses_N

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, scales_N: Tensor) -> Gradients:
        logits_NV, tokens_N, totals_N = ctx.saved_tensors
        rows, size = logits_NV.shape
        found_NV = torch.empty_like(logits_NV)
        given = (logits_NV, tokens_N, totals_N, scales_N.contiguous(), found_NV)
        with device_of(logits_NV):
            _backward[(rows, triton.cdiv(size, BLOCK))](*given, ctx.smoothing, ctx.passed_over, size, BLOCK)
        return found_NV, None, None, None


def cross_entropy(logits_NV: Tensor, tokens_N: Tensor, smoothing: float, passed_over: int) -> Tensor:
    """The loss of each row, in float32, as `torch.nn.functional.cross_entropy` with `reduction="none"` has it."""
    losses_N: Tensor = _CrossEntropy.apply(logits_NV, tokens_N, smoothing, passed_over)
    return losses_N
