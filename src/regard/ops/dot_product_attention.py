"""Softmax attention with a dot-product score: the reference, and PyTorch's fused kernel, which stores no weights.

B rows, T queries, S memory slots, D width, H heads.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.ops.reference_mode import in_reference_mode

MAX_FUSED_WIDTH = 256
"""The largest head width for which PyTorch's fused gradient is used on a GPU. A recurrent decoder has one wide head,
for which that gradient took two thirds of a step.
"""


class ScoreBias(NamedTuple):
    """A mask as the fused kernel uses it: a bias that is added to the scores, and which queries have a visible slot."""

    bias: Tensor
    nonempty: Tensor | None

    @classmethod
    def from_mask(cls, allowed: Tensor, dtype: torch.dtype) -> "ScoreBias":
        # A softmax over no slots is NaN. A query without visible slots attends to all of them; its output is set to 0.
        nonempty = allowed.any(-1, keepdim=True)
        bias = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
        return cls(bias.masked_fill_(~allowed & nonempty, -torch.inf), nonempty)


def reference_dot_product_attention(
    query_BHTD: Tensor, keys_BHSD: Tensor, values_BHSD: Tensor, bias: Tensor | None, dropout: float
) -> Tensor:
    """Σ_j softmax_j(qᵀ k_j + bias_j) v_j → (B, H, T, D)."""
    scores_BHTS = torch.matmul(query_BHTD, keys_BHSD.transpose(-1, -2))
    scores_BHTS = scores_BHTS if bias is None else scores_BHTS + bias
    weights_BHTS = nn.functional.dropout(scores_BHTS.softmax(-1), dropout)
    return torch.matmul(weights_BHTS.to(values_BHSD.dtype), values_BHSD)


def dot_product_weights(query_BHTD: Tensor, keys_BHSD: Tensor, mask: ScoreBias | None, *, scale: float) -> Tensor:
    """softmax_j(scale · qᵀ k_j) → (B, H, T, S): the weights that the fused kernel uses but does not return."""
    query_BHTD = query_BHTD * scale
    if query_BHTD.is_cpu and query_BHTD.shape[-2] == 1:
        # On a CPU, a sum is faster than many products of one row.
        scores_BHTS = (query_BHTD * keys_BHSD).sum(-1).unsqueeze(-2)
    else:
        scores_BHTS = torch.matmul(query_BHTD, keys_BHSD.transpose(-1, -2))
    if mask is None:
        return scores_BHTS.softmax(-1)
    weights_BHTS = (scores_BHTS + mask.bias).softmax(-1)
    return weights_BHTS if mask.nonempty is None else weights_BHTS.masked_fill_(~mask.nonempty, 0.0)


def dot_product_attention(
    query_BHTD: Tensor,
    keys_BHSD: Tensor,
    values_BHSD: Tensor,
    mask: ScoreBias | None,
    *,
    scale: float,
    dropout: float,
) -> Tensor:
    """Σ_j softmax_j(scale · qᵀ k_j) v_j → (B, H, T, D), with the fused kernel unless two matrix products are faster, or
    reference mode is on.
    """
    bias, nonempty = (None, None) if mask is None else mask
    attend: Callable[..., Tensor] = partial(nn.functional.scaled_dot_product_attention, dropout_p=dropout, scale=scale)
    wide_heads = query_BHTD.is_cuda and max(query_BHTD.shape[-1], values_BHSD.shape[-1]) > MAX_FUSED_WIDTH
    if wide_heads or in_reference_mode():
        context_BHTD = reference_dot_product_attention(query_BHTD * scale, keys_BHSD, values_BHSD, bias, dropout)
    elif query_BHTD.is_cpu and query_BHTD.dtype == torch.bfloat16 and torch.is_grad_enabled():
        # On a CPU, the gradient of the fused kernel is ten times slower in bfloat16.
        wide = (tensor.float() for tensor in (query_BHTD, keys_BHSD, values_BHSD))
        with torch.autocast("cpu", enabled=False):
            context_BHTD = attend(*wide, None if bias is None else bias.float()).to(torch.bfloat16)
    else:
        context_BHTD = attend(query_BHTD, keys_BHSD, values_BHSD, bias)
    return context_BHTD if nonempty is None else torch.where(nonempty, context_BHTD, 0.0)
