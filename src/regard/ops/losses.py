"""Losses over tokens: cross-entropy, the loss of two distributions, and any loss chunk by chunk, so that the logits of
all rows are never in memory at once. Each has a reference; on a GPU, Triton kernels compute the first two. On a CPU,
cross-entropy has an analytic gradient.

Consistency training (R-Drop, SimCut) compares two forward passes of one model. Knowledge distillation compares a
teacher, which comes first, with a student. N tokens, D width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.ops import triton
from regard.ops.reference_mode import Gradients, differentiable_once, in_reference_mode

IGNORE_INDEX = -100
"""The target that does not contribute to the loss, as in `torch.nn.functional.cross_entropy`."""

TermWeights = tuple[float, float, float, float]
"""The weights of CE(p), CE(q), KL(p ‖ q) and KL(q ‖ p)."""

MAX_LOGITS = {"cpu": 1 << 21, "cuda": 1 << 26}
"""The maximum number of logits in memory at once, by device type; on a CPU, they fit into its cache."""

Loss = Callable[..., Tensor]


def reference_cross_entropy(logits_NV: Tensor, tokens_N: Tensor, label_smoothing: float) -> Tensor:
    return nn.functional.cross_entropy(
        logits_NV, tokens_N, reduction="sum", label_smoothing=label_smoothing, ignore_index=IGNORE_INDEX
    )


def cross_entropy(logits_NV: Tensor, tokens_N: Tensor, label_smoothing: float) -> Tensor:
    """−Σ_n log p(y_n) with label smoothing, in float32."""
    if triton.is_usable(logits_NV):
        from regard.ops.triton import losses as kernels

        return kernels.cross_entropy(logits_NV, tokens_N, label_smoothing, IGNORE_INDEX).sum()
    if not logits_NV.is_cpu or in_reference_mode():
        return reference_cross_entropy(logits_NV.float(), tokens_N, label_smoothing)
    loss: Tensor = _CrossEntropy.apply(logits_NV.float(), tokens_N, label_smoothing)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    """Computes the gradient, softmax minus smoothed target, in the forward pass. Autograd would compute every
    exponential again in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, tokens_N: Tensor, label_smoothing: float) -> Tensor:
        uniform = label_smoothing / logits_NV.shape[-1]
        ignored_N = tokens_N == IGNORE_INDEX
        token_N1 = tokens_N.clamp_min(0).unsqueeze(-1)
        p_NV = logits_NV.softmax(-1)
        log_normalizer_N = logits_NV.amax(-1) - p_NV.amax(-1).log()  # the largest probability cannot underflow
        loss_N = log_normalizer_N - (1 - label_smoothing) * logits_NV.gather(-1, token_N1).squeeze(-1)
        if label_smoothing:
            loss_N -= uniform * logits_NV.sum(-1)
        if ctx.needs_input_grad[0]:
            p_NV.sub_(uniform).scatter_add_(-1, token_N1, p_NV.new_full(token_N1.shape, label_smoothing - 1))
            ctx.save_for_backward(p_NV.masked_fill_(ignored_N.unsqueeze(-1), 0.0))
        return loss_N.masked_fill_(ignored_N, 0.0).sum()

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, scale: Tensor) -> Gradients:
        (gradient_NV,) = ctx.saved_tensors
        return (gradient_NV if scale.item() == 1 else gradient_NV * scale), None, None


def reference_divergence(log_p_NV: Tensor, log_q_NV: Tensor, tokens_N: Tensor) -> Tensor:
    """KL(p ‖ q), summed over all tokens except `IGNORE_INDEX`."""
    rows_N = nn.functional.kl_div(log_q_NV, log_p_NV, reduction="none", log_target=True).sum(-1)
    return rows_N.masked_fill(tokens_N == IGNORE_INDEX, 0.0).sum()


def consistency_loss(
    first_NV: Tensor, second_NV: Tensor, tokens_N: Tensor, weights: TermWeights, label_smoothing: float
) -> Tensor:
    """Return the weighted sum of CE(p), CE(q), KL(p ‖ q) and KL(q ‖ p), with p and q given by their logits."""
    if triton.is_usable(second_NV):
        from regard.ops.triton import losses as kernels

        rows_N = kernels.consistency_loss(first_NV, second_NV, tokens_N, weights, label_smoothing, IGNORE_INDEX)
        return rows_N.sum()
    p_NV, q_NV = (logits_NV.float().log_softmax(-1) for logits_NV in (first_NV, second_NV))
    terms: list[Callable[[], Tensor]] = [
        lambda: reference_cross_entropy(p_NV, tokens_N, label_smoothing),
        lambda: reference_cross_entropy(q_NV, tokens_N, label_smoothing),
        lambda: reference_divergence(p_NV, q_NV, tokens_N),
        lambda: reference_divergence(q_NV, p_NV, tokens_N),
    ]
    return torch.stack([weight * term() for weight, term in zip(weights, terms, strict=True) if weight]).sum()


def rows_per_chunk(device: torch.device, vocabulary: int) -> int:
    """Return the number of rows whose logits may be in memory at once."""
    return max(1, MAX_LOGITS.get(device.type, 1 << 26) // vocabulary)


def chunked_loss(loss: Loss, inputs: Sequence[Tensor], weights: Sequence[Tensor], vocabulary: int) -> Tensor:
    """Σ loss(chunk of each input), where `loss` computes logits of the rows with an output layer that has `weights`.

    The gradient of a chunk is computed right after its loss, while its logits are in memory.
    """
    rows = rows_per_chunk(inputs[0].device, vocabulary)
    if len(inputs[0]) <= rows or in_reference_mode():
        return loss(*inputs)
    if not torch.is_grad_enabled():
        chunks = zip(*(torch.split(tensor, rows) for tensor in inputs), strict=True)
        return torch.stack([loss(*chunk) for chunk in chunks]).sum()
    total: Tensor = _ChunkedLoss.apply(loss, rows, len(inputs), *inputs, *weights)  # type: ignore[no-untyped-call]
    return total


class _ChunkedLoss(torch.autograd.Function):
    """Computes the gradient in the forward pass; the backward pass only scales it."""

    @staticmethod
    def forward(ctx: Any, loss: Loss, rows: int, count: int, *tensors: Tensor) -> Tensor:
        needed = [tensor.requires_grad for tensor in tensors[:count]]
        inputs, weights = [tensor.detach() for tensor in tensors[:count]], tensors[count:]
        input_grads = [torch.empty_like(x) if need else None for x, need in zip(inputs, needed, strict=True)]
        weight_grads = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
        total = inputs[0].new_zeros((), dtype=torch.float32)
        for start in range(0, len(inputs[0]), rows):
            chunk_rows = slice(start, start + rows)
            with torch.enable_grad():
                chunk = [x[chunk_rows].requires_grad_(need) for x, need in zip(inputs, needed, strict=True)]
                value = loss(*chunk)
                leaves = [x for x, need in zip(chunk, needed, strict=True) if need]
                grads = list(torch.autograd.grad(value, (*leaves, *weights), allow_unused=True, materialize_grads=True))
            total += value.detach()
            for input_grad in input_grads:
                if input_grad is not None:
                    input_grad[chunk_rows] = grads.pop(0)
            for weight_grad, grad in zip(weight_grads, grads, strict=True):
                weight_grad += grad
        ctx.save_for_backward(*input_grads, *weight_grads)
        return total

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, scale: Tensor) -> Gradients:
        return None, None, None, *(None if grad is None else _scale(grad, scale) for grad in ctx.saved_tensors)


def _scale(x: Tensor, scale: Tensor) -> Tensor:
    """Multiply in the wider of the two dtypes: 1 / tokens must not be rounded to half precision."""
    wide = torch.promote_types(x.dtype, scale.dtype)
    return (x.to(wide) * scale.to(wide)).to(x.dtype)
