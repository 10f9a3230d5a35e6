"""All steps of an LSTM of any form in one Triton kernel, forward and back; see `fused` for how.

T steps, N cells side by side, B rows, H units, G width of all gates: the learned ones i, f, o, and then z. Buffers of
T + 1 steps hold the state before the first step in front (forward) or what comes after the last behind (back).
"""

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.recurrent.cells import masked
from regard.recurrent.fast import analytic_lstm
from regard.recurrent.fast.analytic import outer
from regard.recurrent.fast.triton_launch import VARYING, launch, multiply, or_unused, place, tanh, wait
from regard.recurrent.settings import LSTMVariant


@triton.jit
def _gate_rows(column, unit, H, INPUT: tl.constexpr, FORGET: tl.constexpr, OUTPUT: tl.constexpr):
    """Of four gates' columns side by side (i, f, o, z): each one's row in R, and whether the gate is there."""
    first_o = (INPUT + FORGET) * H
    row = tl.where(column == 1, INPUT * H, tl.where(column == 2, first_o, (INPUT + FORGET + OUTPUT) * H))
    row = tl.where(column == 0, 0, row)
    there = ((column == 0) & (INPUT == 1)) | ((column == 1) & (FORGET == 1)) | ((column == 2) & (OUTPUT == 1))
    return row + unit, there | (column == 3)


@triton.jit
def _split_gates(total, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """(rows, 4 units) → the four gates, (rows, units) each."""
    apart = tl.permute(tl.reshape(total, (ROWS, 4, UNITS)), (0, 2, 1))
    even, odd = tl.split(tl.reshape(apart, (ROWS, UNITS, 2, 2)))
    i, o = tl.split(even)
    f, z = tl.split(odd)
    return i, f, o, z


@triton.jit(do_not_specialize=VARYING)
def _forward(
    a, s, y, c, R, Q, p, keep, runs, counters, group_0, T, N, B, H, programs,
    INPUT: tl.constexpr, FORGET: tl.constexpr, OUTPUT: tl.constexpr, COUPLED: tl.constexpr,
    Z_TANH: tl.constexpr, C_TANH: tl.constexpr, PEEP: tl.constexpr, REC: tl.constexpr,
    KEEP: tl.constexpr, ENDS: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    member, group, n, row, row_ok = place(group_0, programs, B, ROWS)
    P = (INPUT + FORGET + OUTPUT) * H
    G = P + H
    column = tl.arange(0, 4 * UNITS) // UNITS
    for t in range(T):
        before = (t * N + n).to(tl.int64) * B
        after = before + N * B
        for block in range(member, tl.cdiv(H, UNITS), programs):
            unit = block * UNITS + tl.arange(0, UNITS)
            spread = block * UNITS + tl.arange(0, 4 * UNITS) % UNITS
            at, there = _gate_rows(column, spread, H, INPUT, FORGET, OUTPUT)
            there = there & (spread < H)
            ok = row_ok[:, None] & (unit < H)[None, :]
            at_G = row[:, None] * G + unit[None, :]
            at_H = row[:, None] * H + unit[None, :]
            c_before = tl.load(c + before * H + at_H, ok, 0.0).to(tl.float32)
            given = tl.load(a + before * G + row[:, None] * G + at[None, :], row_ok[:, None] & there[None, :], 0.0)
            total = given.to(tl.float32)
            total = multiply(
                total, y + before * H, H, R + n * G * H, at * H, there, H, row, row_ok, keep + n * B * H, H,
                KEEP, BLOCK_K, PRECISION,
            )  # fmt: skip
            if REC:
                total = multiply(
                    total, s + before * G, G, Q + n * P * P, at * P, there & (column < 3), P, row, row_ok, keep, H,
                    False, BLOCK_K, PRECISION,
                )  # fmt: skip
            i, f, o, z = _split_gates(total, ROWS, UNITS)
            if INPUT:
                if PEEP:
                    i += tl.load(p + (n * (INPUT + FORGET + OUTPUT)) * H + unit, unit < H, 0.0)[None, :] * c_before
                i = tl.sigmoid(i)
                tl.store(s + after * G + at_G, i, ok)
            if FORGET:
                if PEEP:
                    at_p = (n * (INPUT + FORGET + OUTPUT) + INPUT) * H
                    f += tl.load(p + at_p + unit, unit < H, 0.0)[None, :] * c_before
                f = tl.sigmoid(f)
                tl.store(s + after * G + INPUT * H + at_G, f, ok)
            if Z_TANH:
                z = tanh(z)
            tl.store(s + after * G + P + at_G, z, ok)
            kept = c_before
            if COUPLED:
                kept = c_before * (1 - i)
            elif FORGET:
                kept = c_before * f
            admitted = z
            if INPUT:
                admitted = z * i
            cell = kept + admitted
            if ENDS:
                cell_kept = cell * tl.load(runs + t * B + row, row_ok, 0.0)[:, None]
                tl.store(c + after * H + at_H, cell_kept, ok)
            else:
                tl.store(c + after * H + at_H, cell, ok)
            shown = cell
            if C_TANH:
                shown = tanh(cell)
            if OUTPUT:
                if PEEP:
                    at_p = (n * (INPUT + FORGET + OUTPUT) + INPUT + FORGET) * H
                    o += tl.load(p + at_p + unit, unit < H, 0.0)[None, :] * cell
                o = tl.sigmoid(o)
                tl.store(s + after * G + (INPUT + FORGET) * H + at_G, o, ok)
                shown = shown * o
            if ENDS:
                shown = shown * tl.load(runs + t * B + row, row_ok, 0.0)[:, None]
            tl.store(y + after * H + at_H, shown, ok)
        wait(counters + group, (t + 1) * programs)


@triton.jit(do_not_specialize=VARYING)
def _backward(
    s, c, d_y, d_c, d_g, d_s, d_cell, R_T, Q_T, p, keep, counters, group_0, T, N, B, H, programs,
    INPUT: tl.constexpr, FORGET: tl.constexpr, OUTPUT: tl.constexpr, COUPLED: tl.constexpr,
    Z_TANH: tl.constexpr, C_TANH: tl.constexpr, PEEP: tl.constexpr, REC: tl.constexpr, KEEP: tl.constexpr,
    HAS_C: tl.constexpr, HAS_G: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    member, group, n, row, row_ok = place(group_0, programs, B, ROWS)
    P = (INPUT + FORGET + OUTPUT) * H
    G = P + H
    column = tl.arange(0, 4 * UNITS) // UNITS
    for back in range(T):
        t = T - 1 - back
        now = (t * N + n).to(tl.int64) * B
        after = now + N * B
        for block in range(member, tl.cdiv(H, UNITS), programs):
            unit = block * UNITS + tl.arange(0, UNITS)
            unit_ok = unit < H
            ok = row_ok[:, None] & unit_ok[None, :]
            at_G = row[:, None] * G + unit[None, :]
            at_H = row[:, None] * H + unit[None, :]
            d_output = tl.zeros((ROWS, UNITS), tl.float32)
            d_output = multiply(
                d_output, d_s + after * G, G, R_T + n * G * H, unit * G, unit_ok, G, row, row_ok, keep, H,
                False, BLOCK_K, PRECISION,
            )  # fmt: skip
            if KEEP:
                d_output = d_output * tl.load(keep + n * B * H + at_H, ok, 0.0)
            d_output += tl.load(d_y + now * H + at_H, ok, 0.0).to(tl.float32)
            d_now = tl.load(d_cell + n * B * H + at_H, ok, 0.0)
            if HAS_C:
                d_now += tl.load(d_c + now * H + at_H, ok, 0.0).to(tl.float32)
            # The gates of this step are in s[t + 1], and the cells before and after it in c[t] and c[t + 1].
            c_before = tl.load(c + now * H + at_H, ok, 0.0).to(tl.float32)
            cell = tl.load(c + after * H + at_H, ok, 0.0).to(tl.float32)
            z = tl.load(s + after * G + P + at_G, ok, 0.0).to(tl.float32)
            d_i = tl.zeros((ROWS, UNITS), tl.float32)
            d_f = tl.zeros((ROWS, UNITS), tl.float32)
            d_o = tl.zeros((ROWS, UNITS), tl.float32)
            if REC:
                spread = block * UNITS + tl.arange(0, 4 * UNITS) % UNITS
                at, there = _gate_rows(column, spread, H, INPUT, FORGET, OUTPUT)
                there = there & (spread < H) & (column < 3)
                d_gates = tl.zeros((ROWS, 4 * UNITS), tl.float32)
                if HAS_G:
                    at_P = row[:, None] * P + at[None, :]
                    d_gates = tl.load(d_g + now * P + at_P, row_ok[:, None] & there[None, :], 0.0).to(tl.float32)
                d_gates = multiply(
                    d_gates, d_s + after * G, G, Q_T + n * P * P, at * P, there, P, row, row_ok, keep, H,
                    False, BLOCK_K, PRECISION,
                )  # fmt: skip
                d_i, d_f, d_o, _ = _split_gates(d_gates, ROWS, UNITS)
            shown = cell
            slope = tl.full((ROWS, UNITS), 1.0, tl.float32)
            if C_TANH:
                shown = tanh(cell)
                slope = 1 - shown * shown
            if OUTPUT:
                o = tl.load(s + after * G + (INPUT + FORGET) * H + at_G, ok, 0.0).to(tl.float32)
                d_o = (d_o + d_output * shown) * o * (1 - o)
                tl.store(d_s + now * G + (INPUT + FORGET) * H + at_G, d_o, ok)
                slope = slope * o
                if PEEP:
                    at_p = (n * (INPUT + FORGET + OUTPUT) + INPUT + FORGET) * H
                    d_now += d_o * tl.load(p + at_p + unit, unit_ok, 0.0)[None, :]
            d_now += d_output * slope
            d_before = d_now
            d_z = d_now
            if INPUT:
                i = tl.load(s + after * G + at_G, ok, 0.0).to(tl.float32)
                d_z = d_now * i
                if COUPLED:
                    d_i = (d_i + d_now * (z - c_before)) * i * (1 - i)
                    d_before = d_now * (1 - i)
                else:
                    d_i = (d_i + d_now * z) * i * (1 - i)
                tl.store(d_s + now * G + at_G, d_i, ok)
            if FORGET:
                f = tl.load(s + after * G + INPUT * H + at_G, ok, 0.0).to(tl.float32)
                d_f = (d_f + d_now * c_before) * f * (1 - f)
                d_before = d_now * f
                tl.store(d_s + now * G + INPUT * H + at_G, d_f, ok)
            if PEEP:
                at_p = n * (INPUT + FORGET + OUTPUT) * H
                if INPUT:
                    d_before += d_i * tl.load(p + at_p + unit, unit_ok, 0.0)[None, :]
                if FORGET:
                    d_before += d_f * tl.load(p + at_p + INPUT * H + unit, unit_ok, 0.0)[None, :]
            if Z_TANH:
                d_z = d_z * (1 - z * z)
            tl.store(d_s + now * G + P + at_G, d_z, ok)
            tl.store(d_cell + n * B * H + at_H, d_before, ok)
        wait(counters + group, (back + 1) * programs)


def _constants(form: LSTMVariant) -> dict[str, Any]:
    """A form as the kernels are told of it."""
    return {
        "INPUT": int(form.input_gate),
        "FORGET": int("forget" in form.gates),
        "OUTPUT": int(form.output_gate),
        "COUPLED": form.coupled,
        "Z_TANH": form.input_activation == "tanh",
        "C_TANH": form.output_activation == "tanh",
        "PEEP": form.peepholes,
        "REC": form.gate_recurrence,
    }


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        form: LSTMVariant,
        a: Tensor,
        y_0: Tensor,
        c_0: Tensor,
        g_0: Tensor | None,
        R: Tensor,
        p: Tensor | None,
        Q: Tensor | None,
        keep: Tensor | None,
        runs: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps, cells, rows, width = a.shape
        size = y_0.shape[-1]
        a, R = a.contiguous(), R.contiguous()
        s = a.new_empty(steps + 1, cells, rows, width)
        y, c = (a.new_empty(steps + 1, *first.shape) for first in (y_0, c_0))
        y[0], c[0] = y_0, c_0
        if g_0 is not None:
            s[0, ..., : width - size] = g_0
        unused = a.new_empty(1)
        given = (or_unused(Q, unused), or_unused(p, unused), or_unused(keep, unused), or_unused(runs, unused))
        flags = {"KEEP": keep is not None, "ENDS": runs is not None}
        launch(_forward, (a, s, y, c, R, *given), (steps, cells, rows, size), **_constants(form), **flags)
        ctx.form = form
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(g_0, R, p, Q, keep, s, y, c)
        return y[1:], c[1:], s[1:, ..., : width - size]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_y: Tensor | None, d_c: Tensor | None, d_g: Tensor | None) -> Gradients:
        g_0, R, p, Q, keep, s, y, c = ctx.saved_tensors
        form: LSTMVariant = ctx.form
        steps, cells, rows, size = y[1:].shape
        gates = slice(0, s.shape[-1] - size)
        d_s = torch.empty_like(s)
        d_s[-1] = 0
        d_cell = torch.zeros_like(c[0], dtype=torch.float32)
        unused = s.new_empty(1)
        d_y = torch.zeros_like(y[1:]) if d_y is None else d_y.contiguous()
        R_T = R.transpose(1, 2).contiguous()
        Q_T = unused if Q is None else Q.transpose(1, 2).contiguous()
        parts = (s, c, d_y, or_unused(d_c, unused), or_unused(d_g, unused), d_s, d_cell, R_T, Q_T, or_unused(p, unused))
        launch(
            _backward,
            (*parts, or_unused(keep, unused)),
            (steps, cells, rows, size),
            **_constants(form),
            KEEP=keep is not None,
            HAS_C=d_c is not None,
            HAS_G=d_g is not None,
        )
        d_s = d_s[:-1]
        d_start = masked(torch.bmm(d_s[0], R), keep)
        d_p = d_Q = d_g0 = None
        if p is not None:
            early = [d_s[..., first : first + size] * c[:-1] for first in range(0, len(form.early) * size, size)]
            late = [d_s[..., gates][..., -size:] * c[1:]] if form.output_gate else []
            d_p = torch.stack([part.sum((0, 2)) for part in early + late], dim=1)
        if g_0 is not None:
            d_Q = outer(d_s[..., gates], s[:-1, ..., gates])
            d_g0 = torch.bmm(d_s[0, ..., gates], Q)
        return None, d_s, d_start, d_cell.to(c.dtype), d_g0, outer(d_s, masked(y[:-1], keep)), d_p, d_Q, None, None


lstm_scan = partial(analytic_lstm.lstm_scan, scan=_Scan)
"""The same as `analytic_lstm.lstm_scan`, in one kernel."""
