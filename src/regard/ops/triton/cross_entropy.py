"""Triton kernels for cross-entropy with label smoothing, forward and backward, from logits of any precision.

N rows of V logits z. With target y, smoothing ε and L = log Σ_v exp z_v, the loss of a row is
(1 − ε) (L − z_y) + ε (L − mean_v z_v), and its gradient is softmax(z) − (1 − ε) [v = y] − ε / V. Each kernel reads a
row once, and the probabilities are never stored.
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
"""Replaces −∞, because −∞ − (−∞) is NaN."""


@triton.jit
def clamp_logits(z, mask):
    """Replace −∞ and logits outside the mask with the lowest number. NaN stays NaN."""
    z = tl.where(mask, z, LOWEST)
    return tl.where(z < LOWEST, LOWEST, z)


@triton.jit
def update_max(running_max, z):
    """Update a running maximum → (maximum, factor for the sum of exponentials so far, exponentials of z)."""
    new_max = tl.maximum(running_max, z, propagate_nan=tl.PropagateNan.ALL)
    return new_max, tl.exp(running_max - new_max), tl.exp(z - new_max)


@triton.jit
def smoothed_loss(log_sum, target_logit, mean, smoothing):
    """Return the loss of a row."""
    loss = (1 - smoothing) * (log_sum - target_logit)
    if smoothing > 0:
        loss += smoothing * (log_sum - mean)
    return loss


@triton.jit
def loss_gradient(p, v, target, smoothing, V):
    """Return the gradient of the loss with respect to the logits."""
    return p - smoothing / V - tl.where(v == target, 1 - smoothing, 0.0)


@triton.jit(do_not_specialize=["ignore_index"])
def _forward(
    logits, targets, losses, log_sums, smoothing, ignore_index, V: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    if target == ignore_index:
        tl.store(losses + row, 0.0)
        return
    running_max = tl.full([BLOCK], LOWEST, tl.float32)
    exp_sum = tl.zeros([BLOCK], tl.float32)
    logit_sum = tl.zeros([BLOCK], tl.float32)
    for first in range(0, V, BLOCK):
        v = first + tl.arange(0, BLOCK)
        z = tl.load(logits + row * V + v, v < V, 0.0).to(tl.float32)
        logit_sum += z
        z = clamp_logits(z, v < V)
        running_max, rescale, exp_z = update_max(running_max, z)
        exp_sum = exp_sum * rescale + exp_z
    row_max = tl.max(running_max, 0)
    log_sum = row_max + tl.log(tl.sum(exp_sum * tl.exp(running_max - row_max), 0))
    target_logit = tl.load(logits + row * V + target).to(tl.float32)
    tl.store(losses + row, smoothed_loss(log_sum, target_logit, tl.sum(logit_sum, 0) / V, smoothing))
    tl.store(log_sums + row, log_sum)


@triton.jit(do_not_specialize=["ignore_index"])
def _backward(
    logits, targets, log_sums, d_losses, d_logits, smoothing, ignore_index, V: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = tl.load(targets + row)
    offset = row * V + v
    if target == ignore_index:
        tl.store(d_logits + offset, tl.zeros([BLOCK], d_logits.dtype.element_ty), v < V)
        return
    z = tl.load(logits + offset, v < V, 0.0).to(tl.float32)
    gradient = loss_gradient(tl.exp(z - tl.load(log_sums + row)), v, target, smoothing, V)
    tl.store(d_logits + offset, (gradient * tl.load(d_losses + row)).to(d_logits.dtype.element_ty), v < V)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, smoothing: float, ignore_index: int) -> Tensor:
        logits_NV, targets_N = logits_NV.contiguous(), targets_N.contiguous()
        rows, size = logits_NV.shape
        losses_N, log_sums_N = torch.empty(2, rows, dtype=torch.float32, device=logits_NV.device).unbind()
        with device_of(logits_NV):
            _forward[(rows,)](logits_NV, targets_N, losses_N, log_sums_N, smoothing, ignore_index, size, BLOCK)
        ctx.save_for_backward(logits_NV, targets_N, log_sums_N)
        ctx.smoothing, ctx.ignore_index = smoothing, ignore_index
        return losses_N

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_losses_N: Tensor) -> Gradients:
        logits_NV, targets_N, log_sums_N = ctx.saved_tensors
        rows, size = logits_NV.shape
        d_logits_NV = torch.empty_like(logits_NV)
        tensors = (logits_NV, targets_N, log_sums_N, d_losses_N.contiguous(), d_logits_NV)
        with device_of(logits_NV):
            _backward[(rows, triton.cdiv(size, BLOCK))](*tensors, ctx.smoothing, ctx.ignore_index, size, BLOCK)
        return d_logits_NV, None, None, None


def cross_entropy(logits_NV: Tensor, targets_N: Tensor, smoothing: float, ignore_index: int) -> Tensor:
    """Return the loss of each row in float32, as `torch.nn.functional.cross_entropy(reduction="none")` does."""
    losses_N: Tensor = _CrossEntropy.apply(logits_NV, targets_N, smoothing, ignore_index)
    return losses_N
