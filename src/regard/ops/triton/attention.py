"""Triton kernels for softmax attention over short sequences, forward and backward.

PyTorch's fused kernels process a sequence in tiles of 64 or 128 queries and slots, which are mostly empty in a batch of
sentences. Here, one program computes all queries of a row and head. The weights fit into its registers, so the backward
pass recomputes them from queries and keys, and needs neither atomic operations nor a second kernel.

B rows, H heads, T queries, S memory slots, D width of keys, E width of values. With the scores e_j = f qᵀ k_j + bias_j,
the weights a = softmax(e), the mask m of the dropout, and the context c = Σ_j m_j a_j v_j, the gradients are

    da_j = m_j dcᵀ v_j,    de_j = a_j (da_j − Σ_i a_i da_i),
    dq = f Σ_j de_j k_j,    dk_j = f de_j q,    dv_j = m_j a_j dc.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.packing import allocate_gradients, allocate_heads
from regard.ops.reference_mode import Gradients, differentiable_once
from regard.ops.triton import device_of

MAX_LENGTH = 64
"""The largest number of queries and of slots: their weights are held in registers. Longer sequences fill the tiles of
PyTorch's kernels.
"""

MAX_WIDTH = 128
"""The largest width of a head."""

NUM_WARPS = {16: 1, 32: 2, 64: 4}
"""Warps of a program, by the number of queries or slots that it holds."""

_SIZES = ["T", "S", "bias_b", "bias_t", "nonempty_b", "nonempty_t"]
"""Arguments that differ between batches. Triton must not compile the kernels again for their values."""


@triton.jit
def load_rows(start, row_stride, rows, width, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Load the rows of a matrix, and zeros beyond it."""
    row = tl.arange(0, BLOCK)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    return tl.load(start + row * row_stride + column, (row < rows) & (column < width), 0.0)


@triton.jit
def store_rows(start, row_stride, rows, width, x, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.arange(0, BLOCK)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    tl.store(start + row * row_stride + column, x.to(start.dtype.element_ty), (row < rows) & (column < width))


@triton.jit
def weights_of(
    q, k, bias, bias_b, bias_t, nonempty, nonempty_b, nonempty_t, seeds, dropout, scale, row, head, T, S,
    H: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr, HAS_BIAS: tl.constexpr,
    BIAS_PER_QUERY: tl.constexpr, HAS_NONEMPTY: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    """Return the weights of all queries, and the factors by which dropout and empty queries scale them."""
    t = tl.arange(0, BLOCK)[:, None]
    s = tl.arange(0, BLOCK)[None, :]
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if HAS_BIAS:
        if BIAS_PER_QUERY:
            scores += tl.load(bias + row * bias_b + t * bias_t + s, (t < T) & (s < S), 0.0).to(tl.float32)
        else:
            scores += tl.load(bias + row * bias_b + s, s < S, 0.0).to(tl.float32)
    scores = tl.where(s < S, scores, float("-inf"))
    exponentials = tl.exp(scores - tl.max(scores, 1)[:, None])
    weights = exponentials / tl.sum(exponentials, 1)[:, None]
    factors = tl.full([BLOCK, BLOCK], 1.0, tl.float32)
    if HAS_NONEMPTY:
        factors *= tl.load(nonempty + row * nonempty_b + t * nonempty_t, t < T, 0).to(tl.float32)
    if HAS_DROPOUT:
        random = tl.rand(tl.load(seeds) + row * H + head, t * BLOCK + s)
        factors = tl.where(random < dropout, 0.0, factors / (1 - dropout))
    return weights, factors


@triton.jit(do_not_specialize=_SIZES)
def _attention_forward(
    query, keys, values, bias, nonempty, seeds, context, scale, dropout, T, S, q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h,
    v_s, c_b, c_h, c_t, bias_b, bias_t, nonempty_b, nonempty_t,
    H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr, HAS_BIAS: tl.constexpr, BIAS_PER_QUERY: tl.constexpr, HAS_NONEMPTY: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) // H).to(tl.int64)
    head = tl.program_id(0) % H
    q = load_rows(query + row * q_b + head * q_h, q_t, T, D, BLOCK, WIDTH)
    k = load_rows(keys + row * k_b + head * k_h, k_s, S, D, BLOCK, WIDTH)
    v = load_rows(values + row * v_b + head * v_h, v_s, S, E, BLOCK, WIDTH)
    weights, factors = weights_of(
        q, k, bias, bias_b, bias_t, nonempty, nonempty_b, nonempty_t, seeds, dropout, scale, row, head, T, S,
        H, BLOCK, PRECISION, HAS_BIAS, BIAS_PER_QUERY, HAS_NONEMPTY, HAS_DROPOUT,
    )  # fmt: skip
    c = tl.dot((weights * factors).to(v.dtype), v, input_precision=PRECISION)
    store_rows(context + row * c_b + head * c_h, c_t, T, E, c, BLOCK, WIDTH)


@triton.jit(do_not_specialize=_SIZES)
def _attention_backward(
    query, keys, values, bias, nonempty, seeds, d_context, d_query, d_keys, d_values, scale, dropout, T, S,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, c_b, c_h, c_t, dq_b, dq_h, dq_t, dk_b, dk_h, dk_s, dv_b, dv_h, dv_s,
    bias_b, bias_t, nonempty_b, nonempty_t,
    H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr, HAS_BIAS: tl.constexpr, BIAS_PER_QUERY: tl.constexpr, HAS_NONEMPTY: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) // H).to(tl.int64)
    head = tl.program_id(0) % H
    q = load_rows(query + row * q_b + head * q_h, q_t, T, D, BLOCK, WIDTH)
    k = load_rows(keys + row * k_b + head * k_h, k_s, S, D, BLOCK, WIDTH)
    weights, factors = weights_of(
        q, k, bias, bias_b, bias_t, nonempty, nonempty_b, nonempty_t, seeds, dropout, scale, row, head, T, S,
        H, BLOCK, PRECISION, HAS_BIAS, BIAS_PER_QUERY, HAS_NONEMPTY, HAS_DROPOUT,
    )  # fmt: skip
    dc = load_rows(d_context + row * c_b + head * c_h, c_t, T, E, BLOCK, WIDTH)
    dv = tl.dot(tl.trans((weights * factors).to(dc.dtype)), dc, input_precision=PRECISION)
    store_rows(d_values + row * dv_b + head * dv_h, dv_s, S, E, dv, BLOCK, WIDTH)
    v = load_rows(values + row * v_b + head * v_h, v_s, S, E, BLOCK, WIDTH)
    d_weights = tl.dot(dc, tl.trans(v), input_precision=PRECISION) * factors
    d_scores = weights * (d_weights - tl.sum(weights * d_weights, 1)[:, None]) * scale
    d_scores = d_scores.to(q.dtype)
    dq = tl.dot(d_scores, k, input_precision=PRECISION)
    store_rows(d_query + row * dq_b + head * dq_h, dq_t, T, D, dq, BLOCK, WIDTH)
    dk = tl.dot(tl.trans(d_scores), q, input_precision=PRECISION)
    store_rows(d_keys + row * dk_b + head * dk_h, dk_s, S, D, dk, BLOCK, WIDTH)


def unsupported_reason(query_BHTD: Tensor, keys_BHSD: Tensor, values_BHSD: Tensor) -> str | None:
    """Return why the kernels cannot be used for these shapes, or None if they can."""
    longest = max(query_BHTD.shape[2], keys_BHSD.shape[2])
    if longest > MAX_LENGTH:
        return f"a sequence has {longest} positions, and the kernel supports {MAX_LENGTH}"
    widest = max(query_BHTD.shape[3], values_BHSD.shape[3])
    return f"a head is {widest} wide, and the kernel supports {MAX_WIDTH}" if widest > MAX_WIDTH else None


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, nonempty: Tensor | None,
        seed: Tensor | None, scale: float, dropout: float,
    ) -> Tensor:  # fmt: skip
        inputs = tuple(x if x.stride(-1) == 1 else x.contiguous() for x in (query, keys, values))
        masks = None if bias is None else bias.contiguous(), nonempty, seed
        ctx.save_for_backward(*inputs, *masks)
        ctx.scale, ctx.dropout = scale, dropout
        context = allocate_heads(query, values.shape[3])
        _launch(_attention_forward, inputs, masks, (context,), scale, dropout)
        return context

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_context: Tensor) -> Gradients:
        inputs, masks = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        d_context = d_context if d_context.stride(-1) == 1 else d_context.contiguous()
        gradients = allocate_gradients(*inputs)
        _launch(_attention_backward, inputs, masks, (d_context, *gradients), ctx.scale, ctx.dropout)
        return *gradients, None, None, None, None, None


def _launch(
    kernel: Any,
    inputs: tuple[Tensor, ...],
    masks: tuple[Tensor | None, ...],
    others: tuple[Tensor, ...],
    scale: float,
    dropout: float,
) -> None:
    """Run a kernel on queries, keys and values, a bias, nonempty queries and a seed, and its other tensors."""
    (rows, heads, queries, width), (slots, value_width) = inputs[0].shape, inputs[2].shape[2:]
    bias, nonempty, _ = masks
    block = max(16, triton.next_power_of_2(max(queries, slots)))
    strides = [stride for tensor in (*inputs, *others) for stride in tensor.stride()[:3]]
    with device_of(inputs[0]):
        kernel[(rows * heads,)](
            *inputs, *masks, *others, scale, dropout, queries, slots, *strides,
            *_mask_strides(bias), *_mask_strides(nonempty), H=heads, D=width, E=value_width, BLOCK=block,
            WIDTH=max(16, triton.next_power_of_2(max(width, value_width))),
            PRECISION="ieee" if inputs[0].dtype == torch.float32 else "tf32",
            HAS_BIAS=bias is not None, BIAS_PER_QUERY=bias is not None and bias.shape[2] > 1,
            HAS_NONEMPTY=nonempty is not None, HAS_DROPOUT=dropout > 0, num_warps=NUM_WARPS[block],
        )  # fmt: skip


def _mask_strides(mask: Tensor | None) -> tuple[int, int]:
    """Return the strides of rows and of queries of a mask (B, 1, T, …), 0 if they share it."""
    if mask is None:
        return 0, 0
    return mask.stride(0) if mask.shape[0] > 1 else 0, mask.stride(2) if mask.shape[2] > 1 else 0


def short_attention(
    query_BHTD: Tensor,
    keys_BHSD: Tensor,
    values_BHSD: Tensor,
    mask: tuple[Tensor, Tensor | None] | None,
    *,
    scale: float,
    dropout: float,
) -> Tensor:
    """Σ_j softmax_j(scale · qᵀ k_j + bias_j) v_j → (B, H, T, D); 0 for queries without visible slots."""
    bias, nonempty = (None, None) if mask is None else mask
    seed = torch.randint(2**31, (1,), device=query_BHTD.device) if dropout else None
    context_BHTD: Tensor = _ShortAttention.apply(
        query_BHTD, keys_BHSD, values_BHSD, bias, nonempty, seed, scale, dropout
    )
    return context_BHTD
