"""Triton kernels for losses, forward and backward, from logits of any precision. Each kernel reads a row once, and the
probabilities are never stored.

N rows of V logits z. With target y, smoothing ε and L = log Σ_v exp z_v, the cross-entropy of a row is
(1 − ε) (L − z_y) + ε (L − mean_v z_v), and its gradient is softmax(z) − (1 − ε) [v = y] − ε / V.

The loss of two forward passes over a batch, with logits z and w, p = softmax(z) and q = softmax(w), is for each row
    a CE(z, y) + b CE(w, y) + c KL(p ‖ q) + d KL(q ‖ p).
As log p_v = z_v − L_z, KL(p ‖ q) = Σ_v p_v (z_v − w_v) − L_z + L_w, so one pass over the row computes the loss. With
r = log p − log q, its gradients are
    a CE'(z) + c p (r − KL(p ‖ q)) + d (p − q)    and    b CE'(w) + c (q − p) + d q (−r − KL(q ‖ p)).
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

PAIR_BLOCK, PAIR_WARPS = 2048, 8
"""Logits of each of two forward passes that a program holds at once, and its warps."""

TermWeights = tuple[float, float, float, float]
"""a, b, c and d: the weights of the terms of two forward passes."""

STATISTICS = 5
"""Numbers per row that the gradient is computed from: the loss, L_z, L_w, KL(p ‖ q) and KL(q ‖ p)."""

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
def _cross_entropy_forward(
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
def _cross_entropy_backward(
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
            _cross_entropy_forward[(rows,)](
                logits_NV, targets_N, losses_N, log_sums_N, smoothing, ignore_index, size, BLOCK
            )
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
            _cross_entropy_backward[(rows, triton.cdiv(size, BLOCK))](
                *tensors, ctx.smoothing, ctx.ignore_index, size, BLOCK
            )
        return d_logits_NV, None, None, None


def cross_entropy(logits_NV: Tensor, targets_N: Tensor, smoothing: float, ignore_index: int) -> Tensor:
    """Return the loss of each row in float32, as `torch.nn.functional.cross_entropy(reduction="none")` does."""
    losses_N: Tensor = _CrossEntropy.apply(logits_NV, targets_N, smoothing, ignore_index)
    return losses_N


@triton.jit(do_not_specialize=["ignore_index", "N"])
def _consistency_forward(
    first, second, targets, statistics, a, b, c, d, smoothing, ignore_index, N, V: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    if target == ignore_index:
        tl.store(statistics + row, 0.0)
        return
    max_z = tl.full([BLOCK], LOWEST, tl.float32)
    max_w = tl.full([BLOCK], LOWEST, tl.float32)
    exp_sum_z = tl.zeros([BLOCK], tl.float32)
    exp_sum_w = tl.zeros([BLOCK], tl.float32)
    difference_z = tl.zeros([BLOCK], tl.float32)
    difference_w = tl.zeros([BLOCK], tl.float32)
    logit_sum_z = tl.zeros([BLOCK], tl.float32)
    logit_sum_w = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        v = start + tl.arange(0, BLOCK)
        z = tl.load(first + row * V + v, v < V, 0.0).to(tl.float32)
        w = tl.load(second + row * V + v, v < V, 0.0).to(tl.float32)
        logit_sum_z += z
        logit_sum_w += w
        z = clamp_logits(z, v < V)
        w = clamp_logits(w, v < V)
        max_z, rescale_z, exp_z = update_max(max_z, z)
        max_w, rescale_w, exp_w = update_max(max_w, w)
        exp_sum_z = exp_sum_z * rescale_z + exp_z
        exp_sum_w = exp_sum_w * rescale_w + exp_w
        difference_z = difference_z * rescale_z + exp_z * (z - w)
        difference_w = difference_w * rescale_w + exp_w * (w - z)
    row_max_z = tl.max(max_z, 0)
    row_max_w = tl.max(max_w, 0)
    rescale_z = tl.exp(max_z - row_max_z)
    rescale_w = tl.exp(max_w - row_max_w)
    sum_z = tl.sum(exp_sum_z * rescale_z, 0)
    sum_w = tl.sum(exp_sum_w * rescale_w, 0)
    log_sum_z = row_max_z + tl.log(sum_z)
    log_sum_w = row_max_w + tl.log(sum_w)
    kl_pq = tl.sum(difference_z * rescale_z, 0) / sum_z - log_sum_z + log_sum_w
    kl_qp = tl.sum(difference_w * rescale_w, 0) / sum_w - log_sum_w + log_sum_z
    target_z = tl.load(first + row * V + target).to(tl.float32)
    target_w = tl.load(second + row * V + target).to(tl.float32)
    loss = c * kl_pq + d * kl_qp
    if a > 0:
        loss += a * smoothed_loss(log_sum_z, target_z, tl.sum(logit_sum_z, 0) / V, smoothing)
    if b > 0:
        loss += b * smoothed_loss(log_sum_w, target_w, tl.sum(logit_sum_w, 0) / V, smoothing)
    tl.store(statistics + row, loss)
    tl.store(statistics + N + row, log_sum_z)
    tl.store(statistics + 2 * N + row, log_sum_w)
    tl.store(statistics + 3 * N + row, kl_pq)
    tl.store(statistics + 4 * N + row, kl_qp)


@triton.jit(do_not_specialize=["ignore_index", "N"])
def _consistency_backward(
    first, second, targets, statistics, d_losses, d_first, d_second, a, b, c, d, smoothing, ignore_index, N,
    V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = tl.load(targets + row)
    offset = row * V + v
    if target == ignore_index:
        zeros = tl.zeros([BLOCK], d_first.dtype.element_ty)
        tl.store(d_first + offset, zeros, v < V)
        tl.store(d_second + offset, zeros, v < V)
        return
    d_loss = tl.load(d_losses + row)
    kl_pq = tl.load(statistics + 3 * N + row)
    kl_qp = tl.load(statistics + 4 * N + row)
    log_p = clamp_logits(tl.load(first + offset, v < V, 0.0).to(tl.float32), v < V) - tl.load(statistics + N + row)
    log_q = clamp_logits(tl.load(second + offset, v < V, 0.0).to(tl.float32), v < V) - tl.load(statistics + 2 * N + row)
    p = tl.exp(log_p)
    q = tl.exp(log_q)
    r = log_p - log_q
    d_z = a * loss_gradient(p, v, target, smoothing, V) + c * p * (r - kl_pq) + d * (p - q)
    d_w = b * loss_gradient(q, v, target, smoothing, V) + d * q * (-r - kl_qp) + c * (q - p)
    tl.store(d_first + offset, (d_z * d_loss).to(d_first.dtype.element_ty), v < V)
    tl.store(d_second + offset, (d_w * d_loss).to(d_second.dtype.element_ty), v < V)


class _ConsistencyLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        first_NV: Tensor,
        second_NV: Tensor,
        targets_N: Tensor,
        weights: TermWeights,
        smoothing: float,
        ignore_index: int,
    ) -> Tensor:
        first_NV, second_NV, targets_N = first_NV.contiguous(), second_NV.contiguous(), targets_N.contiguous()
        rows, size = first_NV.shape
        statistics_KN = torch.empty(STATISTICS, rows, dtype=torch.float32, device=first_NV.device)
        ctx.scalars = (*weights, smoothing, ignore_index, rows, size, PAIR_BLOCK)
        with device_of(first_NV):
            _consistency_forward[(rows,)](
                first_NV, second_NV, targets_N, statistics_KN, *ctx.scalars, num_warps=PAIR_WARPS
            )
        ctx.save_for_backward(first_NV, second_NV, targets_N, statistics_KN)
        return statistics_KN[0].clone()

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_losses_N: Tensor) -> Gradients:
        first_NV, second_NV, targets_N, statistics_KN = ctx.saved_tensors
        rows, size = first_NV.shape
        gradients = torch.empty_like(first_NV), torch.empty_like(second_NV)
        tensors = (first_NV, second_NV, targets_N, statistics_KN, d_losses_N.contiguous(), *gradients)
        with device_of(first_NV):
            _consistency_backward[(rows, triton.cdiv(size, PAIR_BLOCK))](*tensors, *ctx.scalars, num_warps=PAIR_WARPS)
        return *gradients, None, None, None, None


def consistency_loss(
    first_NV: Tensor, second_NV: Tensor, targets_N: Tensor, weights: TermWeights, smoothing: float, ignore_index: int
) -> Tensor:
    """Return the loss of each row in float32."""
    losses_N: Tensor = _ConsistencyLoss.apply(first_NV, second_NV, targets_N, weights, smoothing, ignore_index)
    return losses_N
