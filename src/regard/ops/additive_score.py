"""The additive score's inner sum, vᵀ tanh(q + k), over every query and slot.

The direct computation needs a tensor (B, H, T, S, A), which for a long memory is far larger than anything else in a
model. The chunked version computes it for some queries at a time, and recomputes it in the backward pass.

B rows, H heads, T queries, S memory slots, A hidden width of the score.
"""

from typing import Any

import torch
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once, in_reference_mode

CPU_CHUNK, GPU_CHUNK = 1 << 18, 1 << 24
"""Elements in a chunk: on a CPU, what fits into its cache; on a GPU, enough to keep it busy (64 MiB of float32)."""


def reference_additive_scores(query_BHTA: Tensor, keys_BHSA: Tensor, v_HA: Tensor) -> Tensor:
    """Compute vᵀ tanh(q + k) directly: the reference implementation."""
    hidden_BHTSA = torch.tanh(query_BHTA.unsqueeze(-2) + keys_BHSA.unsqueeze(-3))
    if v_HA.shape[0] == 1:
        return hidden_BHTSA @ v_HA[0]
    return (hidden_BHTSA @ v_HA[:, None, :, None]).squeeze(-1)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, v: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(query, keys, v)
        ctx.size = size
        return torch.cat([reference_additive_scores(chunk, keys, v) for chunk in torch.split(query, size, 2)], dim=2)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_scores: Tensor) -> Gradients:
        query, keys, v = ctx.saved_tensors
        d_query, d_keys, d_v = [], torch.zeros_like(keys), torch.zeros_like(v)
        for chunk, d_chunk in zip(torch.split(query, ctx.size, 2), torch.split(d_scores, ctx.size, 2), strict=True):
            hidden = torch.tanh(chunk.unsqueeze(-2) + keys.unsqueeze(-3))
            d_v += torch.einsum("bhtsa,bhts->ha", hidden, d_chunk)
            d_sum = (1 - hidden * hidden).mul_(v[:, None, None]).mul_(d_chunk.unsqueeze(-1))
            d_query.append(d_sum.sum(-2))
            d_keys += d_sum.sum(-3)
        return torch.cat(d_query, dim=2), d_keys, d_v, None


def additive_scores(query_BHTA: Tensor, keys_BHSA: Tensor, v_HA: Tensor, max_elements: int | None = None) -> Tensor:
    """vᵀ tanh(q + k) → (B, H, T, S), with at most `max_elements` hidden values in memory (or those of one query).

    In reference mode, all are computed at once.
    """
    rows, heads, queries, width = query_BHTA.shape
    per_query = rows * heads * keys_BHSA.shape[2] * width
    limit = max_elements or (GPU_CHUNK if query_BHTA.is_cuda else CPU_CHUNK)
    if queries == 1 or queries * per_query <= limit or in_reference_mode():
        return reference_additive_scores(query_BHTA, keys_BHSA, v_HA)
    size = max(1, limit // per_query)
    scores: Tensor = _Chunked.apply(query_BHTA, keys_BHSA, v_HA, size)  # type: ignore[no-untyped-call]
    return scores
