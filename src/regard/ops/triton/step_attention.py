"""A Triton kernel for one step of decoding: softmax attention of the K hypotheses of a sentence over its slots.

A program computes one head of one hypothesis. It reads only the slots of this hypothesis, and nothing is repeated for
the hypotheses. The slots are those of a memory, which may be masked, or those of a KV cache that the hypotheses share
(`attention/kv_cache.py`): hypothesis n reads slot j K + origin[n, j] for each previous step j. The kernel also writes
the slots of the current step to the cache. No other hypothesis reads them in this step.

N hypotheses of B sentences, H heads, S slots, C steps that a cache has space for, D width of keys, E width of values.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from regard.ops.triton import device_of

LOWEST = tl.constexpr(-1e30)
"""Replaces −∞, because −∞ − (−∞) is NaN."""

TILE = 1024
"""Elements of the keys that a warp holds at once."""

MAX_WARP_WIDTH = 128
"""The largest width of a head for which a program has one warp; otherwise, it has two."""


@triton.jit
def _attend(
    query, keys, values, bias, origin, step, new_keys, new_values, context,
    query_b, query_h, query_k, keys_b, keys_h, keys_s, values_b, values_h, values_s, bias_b, origin_n,
    new_keys_n, new_keys_h, new_values_n, new_values_h, scale, slots, hypotheses, heads,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_S: tl.constexpr,
    HAS_BIAS: tl.constexpr, IS_CACHE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    sentence, hypothesis = row // hypotheses, row % hypotheses
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    keys += sentence * keys_b + head * keys_h
    values += sentence * values_b + head * values_h
    q = tl.load(query + sentence * query_b + hypothesis * query_k + head * query_h + d, mask=d < D, other=0.0)
    q = q.to(tl.float32) * scale
    if IS_CACHE:
        count = tl.load(step).to(tl.int32)
        new_k = tl.load(new_keys + row * new_keys_n + head * new_keys_h + d, mask=d < D, other=0.0)
        new_v = tl.load(new_values + row * new_values_n + head * new_values_h + e, mask=e < E, other=0.0)
        new_slot = count * hypotheses + hypothesis
        tl.store(keys + new_slot * keys_s + d, new_k, mask=d < D)
        tl.store(values + new_slot * values_s + e, new_v, mask=e < E)
        running_max = tl.sum(new_k.to(tl.float32) * q, 0)
        exp_sum = 1.0
        total = new_v.to(tl.float32)
    else:
        count = slots
        running_max = LOWEST
        exp_sum = 0.0
        total = tl.zeros([BLOCK_E], tl.float32)
    for first in range(0, count, BLOCK_S):
        j = first + tl.arange(0, BLOCK_S)
        valid = j < count
        slot = j.to(tl.int64)
        if IS_CACHE:
            slot = slot * hypotheses + tl.load(origin + row * origin_n + j, mask=valid, other=0)
        k = tl.load(keys + slot[:, None] * keys_s + d[None, :], mask=valid[:, None] & (d < D)[None, :], other=0.0)
        v = tl.load(values + slot[:, None] * values_s + e[None, :], mask=valid[:, None] & (e < E)[None, :], other=0.0)
        score = tl.sum(k.to(tl.float32) * q[None, :], 1)
        if HAS_BIAS:
            score += tl.load(bias + sentence * bias_b + j, mask=valid, other=0.0).to(tl.float32)
        score = tl.where(valid, tl.where(score < LOWEST, LOWEST, score), LOWEST)
        new_max = tl.maximum(running_max, tl.max(score, 0))
        factor = tl.exp(running_max - new_max)
        p = tl.where(valid, tl.exp(score - new_max), 0.0)
        total = total * factor + tl.sum(p[:, None] * v.to(tl.float32), 0)
        exp_sum = exp_sum * factor + tl.sum(p, 0)
        running_max = new_max
    result = (total / exp_sum).to(context.dtype.element_ty)
    tl.store(context + (row * heads + head) * E + e, result, mask=e < E)


def attend_to_memory(
    query_BHKD: Tensor, keys_BHSD: Tensor, values_BHSE: Tensor, bias_BS: Tensor | None, scale: float
) -> Tensor:
    """Return Σ_j softmax_j(scale · qᵀ k_j + bias_j) v_j → (B, H, K, E). The last axis of each input is contiguous."""
    return _launch(query_BHKD, keys_BHSD, values_BHSE, scale, bias_BS=bias_BS)


def attend_to_cache(
    query_BHKD: Tensor,
    keys_BHSD: Tensor,
    values_BHSE: Tensor,
    origin_NC: Tensor,
    step: Tensor,
    new_keys_NHD: Tensor,
    new_values_NHE: Tensor,
    scale: float,
) -> Tensor:
    """Write the keys and values of the current step, (1,), to a cache. Return Σ_j softmax_j(scale · qᵀ k_j) v_j over
    the steps of each hypothesis up to the current one → (B, H, K, E).
    """
    return _launch(query_BHKD, keys_BHSD, values_BHSE, scale, cache=(origin_NC, step, new_keys_NHD, new_values_NHE))


def _launch(
    query_BHKD: Tensor,
    keys_BHSD: Tensor,
    values_BHSE: Tensor,
    scale: float,
    bias_BS: Tensor | None = None,
    cache: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    sentences, heads, hypotheses, width = query_BHKD.shape
    value_width = values_BHSE.shape[-1]
    context_BKHE = query_BHKD.new_empty(sentences, hypotheses, heads, value_width, dtype=values_BHSE.dtype)
    block_d, block_e = triton.next_power_of_2(width), triton.next_power_of_2(value_width)
    warps = 1 if max(block_d, block_e) <= MAX_WARP_WIDTH else 2
    origin, step, new_keys, new_values = cache or (None, None, None, None)
    cache_strides = [0] * 5 if cache is None else [cache[0].stride(0), *cache[2].stride()[:2], *cache[3].stride()[:2]]
    arguments: tuple[Any, ...] = (
        query_BHKD, keys_BHSD, values_BHSE, bias_BS, origin, step, new_keys, new_values, context_BKHE,
        *query_BHKD.stride()[:3], *keys_BHSD.stride()[:3], *values_BHSE.stride()[:3],
        0 if bias_BS is None else bias_BS.stride(0), *cache_strides,
        scale, keys_BHSD.shape[2], hypotheses, heads, width, value_width, block_d, block_e,
        max(1, warps * TILE // max(block_d, block_e)), bias_BS is not None, cache is not None,
    )  # fmt: skip
    with device_of(query_BHKD):
        _attend[sentences * hypotheses, heads](*arguments, num_warps=warps)
    return context_BKHE.transpose(1, 2)
