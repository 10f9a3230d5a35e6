"""The operations of attention: softmax attention with a dot-product score, and the additive score vᵀ tanh(q + k).

Softmax attention has a reference, PyTorch's fused kernel, which stores no weights, and a Triton kernel for training on
short sequences. The direct computation of the additive score needs a tensor (B, H, T, S, A), which for a long memory is
far larger than anything else in a model. On a GPU, a Triton kernel for long sequences never stores it. The chunked
version computes it for some queries at a time, and recomputes it in the backward pass.

B rows, T queries, S memory slots, D width, H heads, A hidden width of the additive score.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.ops import triton
from regard.ops.reference_mode import Gradients, differentiable_once, disable_autocast, in_reference_mode

MAX_FUSED_WIDTH = 256
"""The largest head width for which PyTorch's fused gradient is used on a GPU. A recurrent decoder has one wide head,
for which that gradient took two thirds of a step.
"""

MAX_STEP_QUERIES = 16
"""The largest number of queries of a sentence for which the kernel for one step of decoding is used."""

CPU_CHUNK, GPU_CHUNK = 1 << 18, 1 << 24
"""Elements in a chunk: on a CPU, what fits into its cache; on a GPU, enough to keep it busy (64 MiB of float32)."""

CPU_MIN = 1 << 15
"""The number of hidden values of an additive score from which its analytic gradient is faster on a CPU."""


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


class CachedSteps(NamedTuple):
    """What a kernel reads from a KV cache for hypothesis n, one of the K of its sentence: slot j K + origin[n, j] for
    each previous step j. It also writes the keys and values of the current step to the cache, and reads them.
    """

    origin_NC: Tensor
    step: Tensor
    """The current step, (1,)."""
    keys_NHD: Tensor
    values_NHD: Tensor


def step_kernel_unsupported_reason(query_BHTD: Tensor) -> str | None:
    """Return why the kernel for a step of decoding (`ops/triton/step_attention.py`) cannot be used; None if it can."""
    if torch.is_grad_enabled():
        return "the kernel does not compute gradients"
    if query_BHTD.shape[-2] > MAX_STEP_QUERIES:
        return "there are too many queries"
    return triton.unsupported_reason(query_BHTD)


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
    mask: ScoreBias | CachedSteps | None,
    *,
    scale: float,
    dropout: float,
) -> Tensor:
    """Σ_j softmax_j(scale · qᵀ k_j) v_j → (B, H, T, D), with the fused kernel unless the kernel for short sequences or
    two matrix products are faster, or reference mode is on. A step of decoding has a kernel of its own.
    """
    if isinstance(mask, CachedSteps):
        from regard.ops.triton.step_attention import attend_to_cache

        return attend_to_cache(query_BHTD, keys_BHSD, values_BHSD, *mask, scale)
    if _short_unsupported_reason(query_BHTD, keys_BHSD, values_BHSD, mask) is None:
        from regard.ops.triton.attention import short_attention

        return short_attention(query_BHTD, keys_BHSD, values_BHSD, mask, scale=scale, dropout=dropout)
    bias, nonempty = (None, None) if mask is None else mask
    shares_bias = bias is None or bias.shape[1:3] == (1, 1)
    if shares_bias and nonempty is None and not dropout and step_kernel_unsupported_reason(query_BHTD) is None:
        from regard.ops.triton.step_attention import attend_to_memory

        return attend_to_memory(query_BHTD, keys_BHSD, values_BHSD, None if bias is None else bias[:, 0, 0], scale)
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


def _short_unsupported_reason(query: Tensor, keys: Tensor, values: Tensor, mask: ScoreBias | None) -> str | None:
    """Return why the kernel for training on short sequences cannot be used, or None if it can."""
    if not torch.is_grad_enabled():
        return "the kernel is used only in training"
    reason = triton.unsupported_reason(query)
    if reason is not None:
        return reason
    if query.dtype == torch.float32 or {keys.dtype, values.dtype} != {query.dtype}:
        return "the kernel is faster only in half precision"
    if mask is not None and (mask.bias.shape[1] != 1 or mask.bias.requires_grad):
        return "the mask differs between heads, or needs a gradient"
    from regard.ops.triton import attention as kernels

    return kernels.unsupported_reason(query, keys, values)


def reference_additive_scores(query_BHTA: Tensor, keys_BHSA: Tensor, v_HA: Tensor) -> Tensor:
    """Compute vᵀ tanh(q + k) directly: the reference implementation."""
    return _weigh(torch.tanh(query_BHTA.unsqueeze(-2) + keys_BHSA.unsqueeze(-3)), v_HA)


def _weigh(hidden_BHTSA: Tensor, v_HA: Tensor) -> Tensor:
    """vᵀ h, for each head → (B, H, T, S)."""
    if v_HA.shape[0] == 1:
        return hidden_BHTSA @ v_HA[0]
    return (hidden_BHTSA @ v_HA[:, None, :, None]).squeeze(-1)


class _Chunked(torch.autograd.Function):
    """tanh(x) = 2 σ(2x) − 1, and PyTorch's σ is several times faster on a CPU. With g = σ(2q + 2k),

    e = 2 vᵀ g − Σ_a v_a,    ∂e/∂q_a = ∂e/∂k_a = 4 v_a g_a (1 − g_a).
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, v: Tensor, size: int) -> Tensor:
        doubled_query, doubled_keys, weights_HA1 = (2 * _widen(tensor) for tensor in (query, keys, v.unsqueeze(-1)))
        scores = []
        with disable_autocast(query.device):
            for chunk in torch.split(doubled_query, size, 2):
                g = _sigmoid_sum(chunk, doubled_keys)
                scores.append((g.flatten(2, 3) @ weights_HA1).view(g.shape[:-1]))
        ctx.save_for_backward(query, keys, v)
        ctx.size = size
        return torch.cat(scores, dim=2).sub_(_widen(v).sum(-1).view(-1, 1, 1)).to(query.dtype)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_scores: Tensor) -> Gradients:
        query, keys, v = ctx.saved_tensors
        doubled_query, doubled_keys, d_scores = 2 * _widen(query), 2 * _widen(keys), _widen(d_scores)
        d_query, d_keys, d_v = [], torch.zeros_like(doubled_keys), d_scores.new_zeros(v.shape)
        for chunk, d_chunk in zip(
            torch.split(doubled_query, ctx.size, 2), torch.split(d_scores, ctx.size, 2), strict=True
        ):
            g = _sigmoid_sum(chunk, doubled_keys)
            d_v += (d_chunk.flatten(2).unsqueeze(2) @ g.flatten(2, 3)).squeeze(2).sum(0)
            d_g = g.addcmul_(g, g, value=-1).mul_(d_chunk.unsqueeze(-1))
            d_query.append(d_g.sum(-2))
            d_keys += d_g.sum(-3)
        factor = 4 * v.unsqueeze(1)
        d_v = 2 * d_v - d_scores.sum((0, 2, 3)).unsqueeze(-1)
        return (torch.cat(d_query, dim=2) * factor).to(query), (d_keys * factor).to(keys), d_v.to(v), None


class _OneChunk(torch.autograd.Function):
    """The same without chunks: the hidden values g stay in memory for the backward pass."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, v: Tensor) -> Tensor:
        wide_v = _widen(v)
        with disable_autocast(query.device):
            g = torch.add(2 * _widen(query).unsqueeze(-2), _widen(keys).unsqueeze(-3), alpha=2).sigmoid_()
            scores = _weigh(g, 2 * wide_v)
        ctx.save_for_backward(g, v)
        ctx.dtypes = query.dtype, keys.dtype
        return scores.sub_(wide_v.sum(-1).view(-1, 1, 1)).to(query.dtype)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_scores: Tensor) -> Gradients:
        g, v = ctx.saved_tensors
        query_dtype, keys_dtype = ctx.dtypes
        d_scores = _widen(d_scores)
        d_v = 2 * torch.stack([d.flatten() @ g_head.flatten(0, -2) for d, g_head in _iterate_heads(d_scores, g)])
        d_hidden = torch.addcmul(g, g, g, value=-1).mul_(d_scores.unsqueeze(-1)).mul_(4 * v[:, None, None])
        d_keys = d_hidden.squeeze(2) if d_hidden.shape[2] == 1 else d_hidden.sum(2)
        d_v -= d_scores.sum((0, 2, 3)).unsqueeze(-1)
        return d_hidden.sum(-2).to(query_dtype), d_keys.to(keys_dtype), d_v.to(v.dtype)


def _iterate_heads(*parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the parts of each head, which are on axis 1."""
    return zip(*(part.unbind(1) for part in parts), strict=True)


def _widen(x: Tensor) -> Tensor:
    """Convert half precision to float32."""
    return x if x.dtype == torch.float64 else x.float()


def _sigmoid_sum(query_BHTA: Tensor, keys_BHSA: Tensor) -> Tensor:
    """σ(q + k) → (B, H, T, S, A)."""
    return (query_BHTA.unsqueeze(-2) + keys_BHSA.unsqueeze(-3)).sigmoid_()


def additive_scores(query_BHTA: Tensor, keys_BHSA: Tensor, v_HA: Tensor, max_elements: int | None = None) -> Tensor:
    """vᵀ tanh(q + k) → (B, H, T, S), with at most `max_elements` hidden values in memory (or those of one query).

    In reference mode, all are computed at once.
    """
    if max_elements is None and triton.is_usable(query_BHTA):
        from regard.ops.triton import additive as kernels

        if kernels.has_enough_tiles(query_BHTA, keys_BHSA):
            return kernels.additive_scores(query_BHTA, keys_BHSA, v_HA)
    rows, heads, queries, width = query_BHTA.shape
    per_query = rows * heads * keys_BHSA.shape[2] * width
    limit = max_elements or (GPU_CHUNK if query_BHTA.is_cuda else CPU_CHUNK)
    one_chunk = queries == 1 or queries * per_query <= limit
    if in_reference_mode() or (one_chunk and (not query_BHTA.is_cpu or queries * per_query < CPU_MIN)):
        return reference_additive_scores(query_BHTA, keys_BHSA, v_HA)
    if one_chunk:
        one: Tensor = _OneChunk.apply(query_BHTA, keys_BHSA, v_HA)  # type: ignore[no-untyped-call]
        return one
    size = max(1, limit // per_query)
    scores: Tensor = _Chunked.apply(query_BHTA, keys_BHSA, v_HA, size)  # type: ignore[no-untyped-call]
    return scores
