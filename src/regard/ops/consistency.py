"""The loss of two distributions over the same tokens: their cross-entropies and both divergences between them.

Consistency training (R-Drop, SimCut) compares two forward passes of one model. Knowledge distillation compares a
teacher, which comes first, with a student. N tokens, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.ops import triton
from regard.ops.cross_entropy import IGNORE_INDEX, reference_cross_entropy

TermWeights = tuple[float, float, float, float]
"""The weights of CE(p), CE(q), KL(p ‖ q) and KL(q ‖ p)."""


def reference_divergence(log_p_NV: Tensor, log_q_NV: Tensor, tokens_N: Tensor) -> Tensor:
    """KL(p ‖ q), summed over all tokens except `IGNORE_INDEX`."""
    rows_N = nn.functional.kl_div(log_q_NV, log_p_NV, reduction="none", log_target=True).sum(-1)
    return rows_N.masked_fill(tokens_N == IGNORE_INDEX, 0.0).sum()


def consistency_loss(
    first_NV: Tensor, second_NV: Tensor, tokens_N: Tensor, weights: TermWeights, label_smoothing: float
) -> Tensor:
    """Return the weighted sum of CE(p), CE(q), KL(p ‖ q) and KL(q ‖ p), with p and q given by their logits."""
    if triton.is_usable(second_NV):
        from regard.ops.triton import consistency as kernel

        rows_N = kernel.consistency_loss(first_NV, second_NV, tokens_N, weights, label_smoothing, IGNORE_INDEX)
        return rows_N.sum()
    p_NV, q_NV = (logits_NV.float().log_softmax(-1) for logits_NV in (first_NV, second_NV))
    terms: list[Callable[[], Tensor]] = [
        lambda: reference_cross_entropy(p_NV, tokens_N, label_smoothing),
        lambda: reference_cross_entropy(q_NV, tokens_N, label_smoothing),
        lambda: reference_divergence(p_NV, q_NV, tokens_N),
        lambda: reference_divergence(q_NV, p_NV, tokens_N),
    ]
    return torch.stack([weight * term() for weight, term in zip(weights, terms, strict=True) if weight]).sum()
