"""All steps of a GRU that resets before the product with R, in one Triton kernel for each of forward and backward; see
`triton_launch` for the method.

    r = σ(a_r + R_r m),  z = σ(a_z + R_z m),  q = r ⊙ m,  n = tanh(a_n + R_n q),  h' = n + z ⊙ (h − n)

m is h with its dropout mask applied. T steps, N cells in parallel, B rows, H units, G = 3 H. A step synchronizes twice,
because n needs all of q.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.recurrent.cells import apply_mask
from regard.recurrent.fast.analytic import allocate_states, weight_gradient
from regard.recurrent.fast.triton_launch import (
    UNSPECIALIZED,
    contiguous_or,
    launch,
    locate_program,
    multiply,
    tanh,
    wait_for_group,
)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _forward(
    a, s, q, h, R, mask, counters, group_0, T, N, B, H, programs,
    HAS_MASK: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    member, group, n, row, row_ok = locate_program(group_0, programs, B, ROWS)
    G = 3 * H
    column = tl.arange(0, 2 * UNITS) // UNITS
    for t in range(T):
        before = (t * N + n).to(tl.int64) * B
        for block in range(member, tl.cdiv(H, UNITS), programs):
            unit = block * UNITS + tl.arange(0, UNITS)
            column_unit = block * UNITS + tl.arange(0, 2 * UNITS) % UNITS
            gate_row = column * H + column_unit
            present = column_unit < H
            ok = row_ok[:, None] & (unit < H)[None, :]
            offset_G = row[:, None] * G + unit[None, :]
            offset_H = row[:, None] * H + unit[None, :]
            offset_a = row[:, None] * G + gate_row[None, :]
            input_gates = tl.load(a + before * G + offset_a, row_ok[:, None] & present[None, :], 0.0)
            masked = tl.load(h + before * H + offset_H, ok, 0.0).to(tl.float32)
            if HAS_MASK:
                masked = masked * tl.load(mask + n * B * H + offset_H, ok, 0.0)
            total = multiply(
                input_gates.to(tl.float32), h + before * H, H, R + n * G * H, gate_row * H, present, H, row, row_ok,
                mask + n * B * H, H, HAS_MASK, BLOCK_K, PRECISION,
            )  # fmt: skip
            apart = tl.permute(tl.reshape(tl.sigmoid(total), (ROWS, 2, UNITS)), (0, 2, 1))
            r, z = tl.split(apart)
            tl.store(s + before * G + offset_G, r, ok)
            tl.store(s + before * G + H + offset_G, z, ok)
            tl.store(q + before * H + offset_H, r * masked, ok)
        wait_for_group(counters + group, (2 * t + 1) * programs)
        for block in range(member, tl.cdiv(H, UNITS), programs):
            unit = block * UNITS + tl.arange(0, UNITS)
            unit_ok = unit < H
            ok = row_ok[:, None] & unit_ok[None, :]
            offset_G = row[:, None] * G + unit[None, :]
            offset_H = row[:, None] * H + unit[None, :]
            h_before = tl.load(h + before * H + offset_H, ok, 0.0).to(tl.float32)
            z = tl.load(s + before * G + H + offset_G, ok, 0.0).to(tl.float32)
            input_gates = tl.load(a + before * G + 2 * H + offset_G, ok, 0.0).to(tl.float32)
            total = multiply(
                input_gates, q + before * H, H, R + n * G * H, (2 * H + unit) * H, unit_ok, H, row, row_ok, mask, H,
                False, BLOCK_K, PRECISION,
            )  # fmt: skip
            candidate = tanh(total)
            tl.store(s + before * G + 2 * H + offset_G, candidate, ok)
            tl.store(h + (before + N * B) * H + offset_H, candidate + z * (h_before - candidate), ok)
        wait_for_group(counters + group, (2 * t + 2) * programs)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _backward(
    s, h, d_h, d_s, carry, R_T, mask, counters, group_0, T, N, B, H, programs,
    HAS_MASK: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    member, group, n, row, row_ok = locate_program(group_0, programs, B, ROWS)
    G = 3 * H
    for back in range(T):
        now = ((T - 1 - back) * N + n).to(tl.int64) * B
        after = now + N * B
        for block in range(member, tl.cdiv(H, UNITS), programs):
            unit = block * UNITS + tl.arange(0, UNITS)
            unit_ok = unit < H
            ok = row_ok[:, None] & unit_ok[None, :]
            offset_G = row[:, None] * G + unit[None, :]
            offset_H = row[:, None] * H + unit[None, :]
            d_after = tl.zeros((ROWS, UNITS), tl.float32)
            d_after = multiply(
                d_after, d_s + after * G, G, R_T + n * G * H, unit * G, unit_ok, 2 * H, row, row_ok, mask, H,
                False, BLOCK_K, PRECISION,
            )  # fmt: skip
            if HAS_MASK:
                d_after = d_after * tl.load(mask + n * B * H + offset_H, ok, 0.0)
            d_after += tl.load(carry + n * B * H + offset_H, ok, 0.0)
            d_after += tl.load(d_h + now * H + offset_H, ok, 0.0).to(tl.float32)
            z = tl.load(s + now * G + H + offset_G, ok, 0.0).to(tl.float32)
            candidate = tl.load(s + now * G + 2 * H + offset_G, ok, 0.0).to(tl.float32)
            h_before = tl.load(h + now * H + offset_H, ok, 0.0).to(tl.float32)
            tl.store(d_s + now * G + 2 * H + offset_G, d_after * (1 - z) * (1 - candidate * candidate), ok)
            tl.store(d_s + now * G + H + offset_G, d_after * (h_before - candidate) * z * (1 - z), ok)
            tl.store(carry + n * B * H + offset_H, d_after * z, ok)
        wait_for_group(counters + group, (2 * back + 1) * programs)
        for block in range(member, tl.cdiv(H, UNITS), programs):
            unit = block * UNITS + tl.arange(0, UNITS)
            unit_ok = unit < H
            ok = row_ok[:, None] & unit_ok[None, :]
            offset_G = row[:, None] * G + unit[None, :]
            offset_H = row[:, None] * H + unit[None, :]
            d_q = tl.zeros((ROWS, UNITS), tl.float32)
            d_q = multiply(
                d_q, d_s + now * G + 2 * H, G, R_T + n * G * H + 2 * H, unit * G, unit_ok, H, row, row_ok, mask, H,
                False, BLOCK_K, PRECISION,
            )  # fmt: skip
            r = tl.load(s + now * G + offset_G, ok, 0.0).to(tl.float32)
            masked = tl.load(h + now * H + offset_H, ok, 0.0).to(tl.float32)
            d_masked = d_q * r
            if HAS_MASK:
                factor = tl.load(mask + n * B * H + offset_H, ok, 0.0)
                masked = masked * factor
                d_masked = d_masked * factor
            tl.store(d_s + now * G + offset_G, d_q * masked * r * (1 - r), ok)
            carried = tl.load(carry + n * B * H + offset_H, ok, 0.0)
            tl.store(carry + n * B * H + offset_H, carried + d_masked, ok)
        wait_for_group(counters + group, (2 * back + 2) * programs)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, h_0: Tensor, R: Tensor, mask: Tensor | None) -> Tensor:
        steps, cells, rows, size = a.shape[0], *h_0.shape
        a, R = a.contiguous(), R.contiguous()
        s, q = torch.empty_like(a), a.new_empty(steps, *h_0.shape)
        h = allocate_states(a, h_0)
        tensors = (a, s, q, h, R, contiguous_or(mask, a.new_empty(1)))
        launch(_forward, tensors, (steps, cells, rows, size), HAS_MASK=mask is not None)
        ctx.save_for_backward(R, mask, s, q, h)
        return h[1:]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_states: Tensor) -> Gradients:
        R, mask, s, q, h = ctx.saved_tensors
        steps, cells, rows, size = q.shape
        d_s = s.new_empty(steps + 1, *s.shape[1:])
        d_s[-1] = 0
        carry = torch.zeros_like(h[0], dtype=torch.float32)
        R_T = R.transpose(1, 2).contiguous()
        tensors = (s, h, d_states.contiguous(), d_s, carry, R_T, contiguous_or(mask, s.new_empty(1)))
        launch(_backward, tensors, (steps, cells, rows, size), HAS_MASK=mask is not None)
        d_s = d_s[:-1]
        d_rz, d_n = d_s[..., : 2 * size], d_s[..., 2 * size :]
        d_h0 = carry.to(h.dtype) + apply_mask(torch.bmm(d_rz[0], R[:, : 2 * size]), mask)
        d_R = torch.cat([weight_gradient(d_rz, apply_mask(h[:-1], mask)), weight_gradient(d_n, q)], dim=1)
        return d_s, d_h0, d_R, None


def gru_scan(a_TNBG: Tensor, h_NBH: Tensor, R_NGH: Tensor, mask_NBH: Tensor | None) -> Tensor:
    """Return the states after each step, (T, N, B, H), from the projected input and the initial states."""
    states: Tensor = _Scan.apply(a_TNBG, h_NBH, R_NGH, mask_NBH)
    return states
