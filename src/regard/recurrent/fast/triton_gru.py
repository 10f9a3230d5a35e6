"""All steps of a GRU that resets before the product with R in one Triton kernel, forward and back; see `fused` for how.

    r = σ(a_r + R_r m),  z = σ(a_z + R_z m),  q = r ⊙ m,  n = tanh(a_n + R_n q),  h' = n + z ⊙ (h − n)

m is what R sees of h. T steps, N cells side by side, B rows, H units, G = 3 H. A step waits twice: n needs all of q.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.recurrent.cells import masked
from regard.recurrent.fast.analytic import outer
from regard.recurrent.fast.triton_launch import VARYING, launch, multiply, or_unused, place, tanh, wait


@triton.jit(do_not_specialize=VARYING)
def _forward(
    a, s, q, h, R, keep, counters, group_0, T, N, B, H, programs,
    KEEP: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    member, group, n, row, row_ok = place(group_0, programs, B, ROWS)
    G = 3 * H
    column = tl.arange(0, 2 * UNITS) // UNITS
    for t in range(T):
        before = (t * N + n).to(tl.int64) * B
        for block in range(member, tl.cdiv(H, UNITS), programs):
            unit = block * UNITS + tl.arange(0, UNITS)
            spread = block * UNITS + tl.arange(0, 2 * UNITS) % UNITS
            at = column * H + spread
            there = spread < H
            ok = row_ok[:, None] & (unit < H)[None, :]
            at_G = row[:, None] * G + unit[None, :]
            at_H = row[:, None] * H + unit[None, :]
            given = tl.load(a + before * G + row[:, None] * G + at[None, :], row_ok[:, None] & there[None, :], 0.0)
            seen = tl.load(h + before * H + at_H, ok, 0.0).to(tl.float32)
            if KEEP:
                seen = seen * tl.load(keep + n * B * H + at_H, ok, 0.0)
            total = multiply(
                given.to(tl.float32), h + before * H, H, R + n * G * H, at * H, there, H, row, row_ok,
                keep + n * B * H, H, KEEP, BLOCK_K, PRECISION,
            )  # fmt: skip
            apart = tl.permute(tl.reshape(tl.sigmoid(total), (ROWS, 2, UNITS)), (0, 2, 1))
            r, z = tl.split(apart)
            tl.store(s + before * G + at_G, r, ok)
            tl.store(s + before * G + H + at_G, z, ok)
            tl.store(q + before * H + at_H, r * seen, ok)
        wait(counters + group, (2 * t + 1) * programs)
        for block in range(member, tl.cdiv(H, UNITS), programs):
            unit = block * UNITS + tl.arange(0, UNITS)
            unit_ok = unit < H
            ok = row_ok[:, None] & unit_ok[None, :]
            at_G = row[:, None] * G + unit[None, :]
            at_H = row[:, None] * H + unit[None, :]
            h_before = tl.load(h + before * H + at_H, ok, 0.0).to(tl.float32)
            z = tl.load(s + before * G + H + at_G, ok, 0.0).to(tl.float32)
            given = tl.load(a + before * G + 2 * H + at_G, ok, 0.0).to(tl.float32)
            total = multiply(
                given, q + before * H, H, R + n * G * H, (2 * H + unit) * H, unit_ok, H, row, row_ok, keep, H,
                False, BLOCK_K, PRECISION,
            )  # fmt: skip
            candidate = tanh(total)
            tl.store(s + before * G + 2 * H + at_G, candidate, ok)
            tl.store(h + (before + N * B) * H + at_H, candidate + z * (h_before - candidate), ok)
        wait(counters + group, (2 * t + 2) * programs)


@triton.jit(do_not_specialize=VARYING)
def _backward(
    s, h, d_h, d_s, carry, R_T, keep, counters, group_0, T, N, B, H, programs,
    KEEP: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    member, group, n, row, row_ok = place(group_0, programs, B, ROWS)
    G = 3 * H
    for back in range(T):
        now = ((T - 1 - back) * N + n).to(tl.int64) * B
        after = now + N * B
        for block in range(member, tl.cdiv(H, UNITS), programs):
            unit = block * UNITS + tl.arange(0, UNITS)
            unit_ok = unit < H
            ok = row_ok[:, None] & unit_ok[None, :]
            at_G = row[:, None] * G + unit[None, :]
            at_H = row[:, None] * H + unit[None, :]
            d_after = tl.zeros((ROWS, UNITS), tl.float32)
            d_after = multiply(
                d_after, d_s + after * G, G, R_T + n * G * H, unit * G, unit_ok, 2 * H, row, row_ok, keep, H,
                False, BLOCK_K, PRECISION,
            )  # fmt: skip
            if KEEP:
                d_after = d_after * tl.load(keep + n * B * H + at_H, ok, 0.0)
            d_after += tl.load(carry + n * B * H + at_H, ok, 0.0)
            d_after += tl.load(d_h + now * H + at_H, ok, 0.0).to(tl.float32)
            z = tl.load(s + now * G + H + at_G, ok, 0.0).to(tl.float32)
            candidate = tl.load(s + now * G + 2 * H + at_G, ok, 0.0).to(tl.float32)
            h_before = tl.load(h + now * H + at_H, ok, 0.0).to(tl.float32)
            tl.store(d_s + now * G + 2 * H + at_G, d_after * (1 - z) * (1 - candidate * candidate), ok)
            tl.store(d_s + now * G + H + at_G, d_after * (h_before - candidate) * z * (1 - z), ok)
            tl.store(carry + n * B * H + at_H, d_after * z, ok)
        wait(counters + group, (2 * back + 1) * programs)
        for block in range(member, tl.cdiv(H, UNITS), programs):
            unit = block * UNITS + tl.arange(0, UNITS)
            unit_ok = unit < H
            ok = row_ok[:, None] & unit_ok[None, :]
            at_G = row[:, None] * G + unit[None, :]
            at_H = row[:, None] * H + unit[None, :]
            d_q = tl.zeros((ROWS, UNITS), tl.float32)
            d_q = multiply(
                d_q, d_s + now * G + 2 * H, G, R_T + n * G * H + 2 * H, unit * G, unit_ok, H, row, row_ok, keep, H,
                False, BLOCK_K, PRECISION,
            )  # fmt: skip
            r = tl.load(s + now * G + at_G, ok, 0.0).to(tl.float32)
            seen = tl.load(h + now * H + at_H, ok, 0.0).to(tl.float32)
            d_seen = d_q * r
            if KEEP:
                kept = tl.load(keep + n * B * H + at_H, ok, 0.0)
                seen = seen * kept
                d_seen = d_seen * kept
            tl.store(d_s + now * G + at_G, d_q * seen * r * (1 - r), ok)
            carried = tl.load(carry + n * B * H + at_H, ok, 0.0)
            tl.store(carry + n * B * H + at_H, carried + d_seen, ok)
        wait(counters + group, (2 * back + 2) * programs)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, start: Tensor, R: Tensor, keep: Tensor | None) -> Tensor:
        steps, cells, rows, size = a.shape[0], *start.shape
        a, R = a.contiguous(), R.contiguous()
        s, q = torch.empty_like(a), a.new_empty(steps, *start.shape)
        h = a.new_empty(steps + 1, *start.shape)
        h[0] = start
        tensors = (a, s, q, h, R, or_unused(keep, a.new_empty(1)))
        launch(_forward, tensors, (steps, cells, rows, size), KEEP=keep is not None)
        ctx.save_for_backward(R, keep, s, q, h)
        return h[1:]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_states: Tensor) -> Gradients:
        R, keep, s, q, h = ctx.saved_tensors
        steps, cells, rows, size = q.shape
        d_s = s.new_empty(steps + 1, *s.shape[1:])
        d_s[-1] = 0
        carry = torch.zeros_like(h[0], dtype=torch.float32)
        R_T = R.transpose(1, 2).contiguous()
        tensors = (s, h, d_states.contiguous(), d_s, carry, R_T, or_unused(keep, s.new_empty(1)))
        launch(_backward, tensors, (steps, cells, rows, size), KEEP=keep is not None)
        d_s = d_s[:-1]
        d_rz, d_n = d_s[..., : 2 * size], d_s[..., 2 * size :]
        d_start = carry.to(h.dtype) + masked(torch.bmm(d_rz[0], R[:, : 2 * size]), keep)
        d_R = torch.cat([outer(d_rz, masked(h[:-1], keep)), outer(d_n, q)], dim=1)
        return d_s, d_start, d_R, None


def gru_scan(a_TNBG: Tensor, h_NBH: Tensor, R_NGH: Tensor, keep_NBH: Tensor | None) -> Tensor:
    """The states after each step (T, N, B, H), from the input's gates and the states before the first."""
    states: Tensor = _Scan.apply(a_TNBG, h_NBH, R_NGH, keep_NBH)
    return states
