"""What two passes over a batch cost together, from their logits, in one kernel each way.

N rows of V logits z and w, p = softmax(z), q = softmax(w), y the row's token. A row's loss is
    a CE(z, y) + b CE(w, y) + c KL(p ‖ q) + d KL(q ‖ p)
with the smoothed cross-entropy of `cross_entropy`. As log p_v = z_v − L_z, KL(p ‖ q) = Σ_v p_v (z_v − w_v) − L_z + L_w,
so that a row is read once for the loss. With r = log p − log q its gradient is
    a CE'(z) + c p (r − KL(p ‖ q)) + d (p − q)    and    b CE'(w) + c (q − p) + d q (−r − KL(q ‖ p)).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.ops.triton import device_of
from regard.ops.triton.cross_entropy import LOWEST, climb, finite, slope, smoothed

BLOCK = 2048
"""Logits of each pass that a program holds at once."""

WARPS = 8

Shares = tuple[float, float, float, float]
"""a, b, c and d."""

KEPT = 5
"""Numbers of a row that its gradient is made of: the loss, L_z, L_w and both divergences."""


@triton.jit(do_not_specialize=["passed_over", "N"])
def _forward(
    left, right, tokens, kept, a, b, c, d, smoothing, passed_over, N, V: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(tokens + row)
    if token == passed_over:
        tl.store(kept + row, 0.0)
        return
    highest_z = tl.full([BLOCK], LOWEST, tl.float32)
    highest_w = tl.full([BLOCK], LOWEST, tl.float32)
    total_z = tl.zeros([BLOCK], tl.float32)
    total_w = tl.zeros([BLOCK], tl.float32)
    apart_z = tl.zeros([BLOCK], tl.float32)
    apart_w = tl.zeros([BLOCK], tl.float32)
    plain_z = tl.zeros([BLOCK], tl.float32)
    plain_w = tl.zeros([BLOCK], tl.float32)
    for first in range(0, V, BLOCK):
        v = first + tl.arange(0, BLOCK)
        z = tl.load(left + row * V + v, v < V, 0.0).to(tl.float32)
        w = tl.load(right + row * V + v, v < V, 0.0).to(tl.float32)
        plain_z += z
        plain_w += w
        z = finite(z, v < V)
        w = finite(w, v < V)
        highest_z, rest_z, weight_z = climb(highest_z, z)
        highest_w, rest_w, weight_w = climb(highest_w, w)
        total_z = total_z * rest_z + weight_z
        total_w = total_w * rest_w + weight_w
        apart_z = apart_z * rest_z + weight_z * (z - w)
        apart_w = apart_w * rest_w + weight_w * (w - z)
    most_z = tl.max(highest_z, 0)
    most_w = tl.max(highest_w, 0)
    rest_z = tl.exp(highest_z - most_z)
    rest_w = tl.exp(highest_w - most_w)
    sum_z = tl.sum(total_z * rest_z, 0)
    sum_w = tl.sum(total_w * rest_w, 0)
    log_z = most_z + tl.log(sum_z)
    log_w = most_w + tl.log(sum_w)
    there = tl.sum(apart_z * rest_z, 0) / sum_z - log_z + log_w
    back = tl.sum(apart_w * rest_w, 0) / sum_w - log_w + log_z
    chosen_z = tl.load(left + row * V + token).to(tl.float32)
    chosen_w = tl.load(right + row * V + token).to(tl.float32)
    loss = c * there + d * back
    if a > 0:
        loss += a * smoothed(log_z, chosen_z, tl.sum(plain_z, 0) / V, smoothing)
    if b > 0:
        loss += b * smoothed(log_w, chosen_w, tl.sum(plain_w, 0) / V, smoothing)
    tl.store(kept + row, loss)
    tl.store(kept + N + row, log_z)
    tl.store(kept + 2 * N + row, log_w)
    tl.store(kept + 3 * N + row, there)
    tl.store(kept + 4 * N + row, back)


@triton.jit(do_not_specialize=["passed_over", "N"])
def _backward(
    left, right, tokens, kept, scales, d_left, d_right, a, b, c, d, smoothing, passed_over, N,
    V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens + row)
    place = row * V + v
    if token == passed_over:
        nothing = tl.zeros([BLOCK], d_left.dtype.element_ty)
        tl.store(d_left + place, nothing, v < V)
        tl.store(d_right + place, nothing, v < V)
        return
    scale = tl.load(scales + row)
    there = tl.load(kept + 3 * N + row)
    back = tl.load(kept + 4 * N + row)
    log_p = finite(tl.load(left + place, v < V, 0.0).to(tl.float32), v < V) - tl.load(kept + N + row)
    log_q = finite(tl.load(right + place, v < V, 0.0).to(tl.float32), v < V) - tl.load(kept + 2 * N + row)
    p = tl.exp(log_p)
    q = tl.exp(log_q)
    r = log_p - log_q
    found_z = a * slope(p, v, token, smoothing, V) + c * p * (r - there) + d * (p - q)
    found_w = b * slope(q, v, token, smoothing, V) + d * q * (-r - back) + c * (q - p)
    tl.store(d_left + place, (found_z * scale).to(d_left.dtype.element_ty), v < V)
    tl.store(d_right + place, (found_w * scale).to(d_right.dtype.element_ty), v < V)


class _ConsistencyLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        left_NV: Tensor,
        right_NV: Tensor,
        tokens_N: Tensor,
        shares: Shares,
        smoothing: float,
        passed_over: int,
    ) -> Tensor:
        left_NV, right_NV, tokens_N = left_NV.contiguous(), right_NV.contiguous(), tokens_N.contiguous()
        rows, size = left_NV.shape
        kept_KN = torch.empty(KEPT, rows, dtype=torch.float32, device=left_NV.device)
        ctx.given = (*shares, smoothing, passed_over, rows, size, BLOCK)
        with device_of(left_NV):
            _forward[(rows,)](left_NV, right_NV, tokens_N, kept_KN, *ctx.given, num_warps=WARPS)
        ctx.save_for_backward(left_NV, right_NV, tokens_N, kept_KN)
        return kept_KN[0].clone()

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, scales_N: Tensor) -> Gradients:
        left_NV, right_NV, tokens_N, kept_KN = ctx.saved_tensors
        rows, size = left_NV.shape
        found = torch.empty_like(left_NV), torch.empty_like(right_NV)
        given = (left_NV, right_NV, tokens_N, kept_KN, scales_N.contiguous(), *found)
        with device_of(left_NV):
            _backward[(rows, triton.cdiv(size, BLOCK))](*given, *ctx.given, num_warps=WARPS)
        return *found, None, None, None, None


def consistency_loss(
    left_NV: Tensor, right_NV: Tensor, tokens_N: Tensor, shares: Shares, smoothing: float, passed_over: int
) -> Tensor:
    """The loss of each row, in float32."""
    losses_N: Tensor = _ConsistencyLoss.apply(left_NV, right_NV, tokens_N, shares, smoothing, passed_over)
    return losses_N
