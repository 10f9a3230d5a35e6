"""All steps of any LSTM variant in one Triton kernel for each of forward and backward; see `triton_launch` for the
method.

T steps, N cells in parallel, B rows, H units, G width of all gates: the learned gates i, f, o, then z. Buffers of T + 1
steps hold the initial state at index 0 (forward), or zeros at index T (backward).
"""

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.recurrent.cells import apply_mask
from regard.recurrent.fast import analytic_lstm
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
from regard.recurrent.settings import LSTMVariant


@triton.jit
def _gate_rows(column, unit, H, INPUT: tl.constexpr, FORGET: tl.constexpr, OUTPUT: tl.constexpr):
    """Return, for each column of the four concatenated gates (i, f, o, z), its row in R, and whether the variant has
    the gate.
    """
    first_o = (INPUT + FORGET) * H
    row = tl.where(column == 1, INPUT * H, tl.where(column == 2, first_o, (INPUT + FORGET + OUTPUT) * H))
    row = tl.where(column == 0, 0, row)
    present = ((column == 0) & (INPUT == 1)) | ((column == 1) & (FORGET == 1)) | ((column == 2) & (OUTPUT == 1))
    return row + unit, present | (column == 3)


@triton.jit
def _split_gates(total, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """(rows, 4 units) → the four gates, (rows, units) each."""
    apart = tl.permute(tl.reshape(total, (ROWS, 4, UNITS)), (0, 2, 1))
    even, odd = tl.split(tl.reshape(apart, (ROWS, UNITS, 2, 2)))
    i, o = tl.split(even)
    f, z = tl.split(odd)
    return i, f, o, z


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _forward(
    a, s, y, c, R, Q, p, mask, valid, counters, group_0, T, N, B, H, programs,
    INPUT: tl.constexpr, FORGET: tl.constexpr, OUTPUT: tl.constexpr, COUPLED: tl.constexpr,
    Z_TANH: tl.constexpr, C_TANH: tl.constexpr, PEEP: tl.constexpr, REC: tl.constexpr,
    HAS_MASK: tl.constexpr, RAGGED: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    member, group, n, row, row_ok = locate_program(group_0, programs, B, ROWS)
    P = (INPUT + FORGET + OUTPUT) * H
    G = P + H
    column = tl.arange(0, 4 * UNITS) // UNITS
    for t in range(T):
        before = (t * N + n).to(tl.int64) * B
        after = before + N * B
        for block in range(member, tl.cdiv(H, UNITS), programs):
            unit = block * UNITS + tl.arange(0, UNITS)
            column_unit = block * UNITS + tl.arange(0, 4 * UNITS) % UNITS
            gate_row, present = _gate_rows(column, column_unit, H, INPUT, FORGET, OUTPUT)
            present = present & (column_unit < H)
            ok = row_ok[:, None] & (unit < H)[None, :]
            offset_G = row[:, None] * G + unit[None, :]
            offset_H = row[:, None] * H + unit[None, :]
            c_before = tl.load(c + before * H + offset_H, ok, 0.0).to(tl.float32)
            offset_a = row[:, None] * G + gate_row[None, :]
            total = tl.load(a + before * G + offset_a, row_ok[:, None] & present[None, :], 0.0).to(tl.float32)
            total = multiply(
                total, y + before * H, H, R + n * G * H, gate_row * H, present, H, row, row_ok, mask + n * B * H, H,
                HAS_MASK, BLOCK_K, PRECISION,
            )  # fmt: skip
            if REC:
                total = multiply(
                    total, s + before * G, G, Q + n * P * P, gate_row * P, present & (column < 3), P, row, row_ok,
                    mask, H, False, BLOCK_K, PRECISION,
                )  # fmt: skip
            i, f, o, z = _split_gates(total, ROWS, UNITS)
            if INPUT:
                if PEEP:
                    i += tl.load(p + (n * (INPUT + FORGET + OUTPUT)) * H + unit, unit < H, 0.0)[None, :] * c_before
                i = tl.sigmoid(i)
                tl.store(s + after * G + offset_G, i, ok)
            if FORGET:
                if PEEP:
                    offset_p = (n * (INPUT + FORGET + OUTPUT) + INPUT) * H
                    f += tl.load(p + offset_p + unit, unit < H, 0.0)[None, :] * c_before
                f = tl.sigmoid(f)
                tl.store(s + after * G + INPUT * H + offset_G, f, ok)
            if Z_TANH:
                z = tanh(z)
            tl.store(s + after * G + P + offset_G, z, ok)
            retained = c_before
            if COUPLED:
                retained = c_before * (1 - i)
            elif FORGET:
                retained = c_before * f
            update = z
            if INPUT:
                update = z * i
            cell = retained + update
            if RAGGED:
                valid_cell = cell * tl.load(valid + t * B + row, row_ok, 0.0)[:, None]
                tl.store(c + after * H + offset_H, valid_cell, ok)
            else:
                tl.store(c + after * H + offset_H, cell, ok)
            activated = cell
            if C_TANH:
                activated = tanh(cell)
            if OUTPUT:
                if PEEP:
                    offset_p = (n * (INPUT + FORGET + OUTPUT) + INPUT + FORGET) * H
                    o += tl.load(p + offset_p + unit, unit < H, 0.0)[None, :] * cell
                o = tl.sigmoid(o)
                tl.store(s + after * G + (INPUT + FORGET) * H + offset_G, o, ok)
                activated = activated * o
            if RAGGED:
                activated = activated * tl.load(valid + t * B + row, row_ok, 0.0)[:, None]
            tl.store(y + after * H + offset_H, activated, ok)
        wait_for_group(counters + group, (t + 1) * programs)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _backward(
    s, c, d_y, d_c, d_g, d_s, d_cell, R_T, Q_T, p, mask, counters, group_0, T, N, B, H, programs,
    INPUT: tl.constexpr, FORGET: tl.constexpr, OUTPUT: tl.constexpr, COUPLED: tl.constexpr,
    Z_TANH: tl.constexpr, C_TANH: tl.constexpr, PEEP: tl.constexpr, REC: tl.constexpr, HAS_MASK: tl.constexpr,
    HAS_C: tl.constexpr, HAS_G: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    member, group, n, row, row_ok = locate_program(group_0, programs, B, ROWS)
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
            offset_G = row[:, None] * G + unit[None, :]
            offset_H = row[:, None] * H + unit[None, :]
            d_output = tl.zeros((ROWS, UNITS), tl.float32)
            d_output = multiply(
                d_output, d_s + after * G, G, R_T + n * G * H, unit * G, unit_ok, G, row, row_ok, mask, H,
                False, BLOCK_K, PRECISION,
            )  # fmt: skip
            if HAS_MASK:
                d_output = d_output * tl.load(mask + n * B * H + offset_H, ok, 0.0)
            d_output += tl.load(d_y + now * H + offset_H, ok, 0.0).to(tl.float32)
            d_now = tl.load(d_cell + n * B * H + offset_H, ok, 0.0)
            if HAS_C:
                d_now += tl.load(d_c + now * H + offset_H, ok, 0.0).to(tl.float32)
            # The gates of step t are in s[t + 1]; the cell states before and after it are in c[t] and c[t + 1].
            c_before = tl.load(c + now * H + offset_H, ok, 0.0).to(tl.float32)
            cell = tl.load(c + after * H + offset_H, ok, 0.0).to(tl.float32)
            z = tl.load(s + after * G + P + offset_G, ok, 0.0).to(tl.float32)
            d_i = tl.zeros((ROWS, UNITS), tl.float32)
            d_f = tl.zeros((ROWS, UNITS), tl.float32)
            d_o = tl.zeros((ROWS, UNITS), tl.float32)
            if REC:
                column_unit = block * UNITS + tl.arange(0, 4 * UNITS) % UNITS
                gate_row, present = _gate_rows(column, column_unit, H, INPUT, FORGET, OUTPUT)
                present = present & (column_unit < H) & (column < 3)
                d_gates = tl.zeros((ROWS, 4 * UNITS), tl.float32)
                if HAS_G:
                    offset_P = row[:, None] * P + gate_row[None, :]
                    d_gates = tl.load(d_g + now * P + offset_P, row_ok[:, None] & present[None, :], 0.0).to(tl.float32)
                d_gates = multiply(
                    d_gates, d_s + after * G, G, Q_T + n * P * P, gate_row * P, present, P, row, row_ok, mask, H,
                    False, BLOCK_K, PRECISION,
                )  # fmt: skip
                d_i, d_f, d_o, _ = _split_gates(d_gates, ROWS, UNITS)
            activated = cell
            derivative = tl.full((ROWS, UNITS), 1.0, tl.float32)
            if C_TANH:
                activated = tanh(cell)
                derivative = 1 - activated * activated
            if OUTPUT:
                o = tl.load(s + after * G + (INPUT + FORGET) * H + offset_G, ok, 0.0).to(tl.float32)
                d_o = (d_o + d_output * activated) * o * (1 - o)
                tl.store(d_s + now * G + (INPUT + FORGET) * H + offset_G, d_o, ok)
                derivative = derivative * o
                if PEEP:
                    offset_p = (n * (INPUT + FORGET + OUTPUT) + INPUT + FORGET) * H
                    d_now += d_o * tl.load(p + offset_p + unit, unit_ok, 0.0)[None, :]
            d_now += d_output * derivative
            d_before = d_now
            d_z = d_now
            if INPUT:
                i = tl.load(s + after * G + offset_G, ok, 0.0).to(tl.float32)
                d_z = d_now * i
                if COUPLED:
                    d_i = (d_i + d_now * (z - c_before)) * i * (1 - i)
                    d_before = d_now * (1 - i)
                else:
                    d_i = (d_i + d_now * z) * i * (1 - i)
                tl.store(d_s + now * G + offset_G, d_i, ok)
            if FORGET:
                f = tl.load(s + after * G + INPUT * H + offset_G, ok, 0.0).to(tl.float32)
                d_f = (d_f + d_now * c_before) * f * (1 - f)
                d_before = d_now * f
                tl.store(d_s + now * G + INPUT * H + offset_G, d_f, ok)
            if PEEP:
                offset_p = n * (INPUT + FORGET + OUTPUT) * H
                if INPUT:
                    d_before += d_i * tl.load(p + offset_p + unit, unit_ok, 0.0)[None, :]
                if FORGET:
                    d_before += d_f * tl.load(p + offset_p + INPUT * H + unit, unit_ok, 0.0)[None, :]
            if Z_TANH:
                d_z = d_z * (1 - z * z)
            tl.store(d_s + now * G + P + offset_G, d_z, ok)
            tl.store(d_cell + n * B * H + offset_H, d_before, ok)
        wait_for_group(counters + group, (back + 1) * programs)


def _constants(variant: LSTMVariant) -> dict[str, Any]:
    """Return the compile-time constants of the kernels for a variant."""
    return {
        "INPUT": int(variant.input_gate),
        "FORGET": int("forget" in variant.gates),
        "OUTPUT": int(variant.output_gate),
        "COUPLED": variant.coupled,
        "Z_TANH": variant.input_activation == "tanh",
        "C_TANH": variant.output_activation == "tanh",
        "PEEP": variant.peepholes,
        "REC": variant.gate_recurrence,
    }


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        variant: LSTMVariant,
        a: Tensor,
        y_0: Tensor,
        c_0: Tensor,
        g_0: Tensor | None,
        R: Tensor,
        p: Tensor | None,
        Q: Tensor | None,
        mask: Tensor | None,
        valid: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps, cells, rows, width = a.shape
        size = y_0.shape[-1]
        a, R = a.contiguous(), R.contiguous()
        s = a.new_empty(steps + 1, cells, rows, width)
        y, c = allocate_states(a, y_0), allocate_states(a, c_0)
        if g_0 is not None:
            s[0, ..., : width - size] = g_0
        unused = a.new_empty(1)
        optional = (contiguous_or(tensor, unused) for tensor in (Q, p, mask, valid))
        flags = {"HAS_MASK": mask is not None, "RAGGED": valid is not None}
        launch(_forward, (a, s, y, c, R, *optional), (steps, cells, rows, size), **_constants(variant), **flags)
        ctx.variant = variant
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(g_0, R, p, Q, mask, s, y, c)
        return y[1:], c[1:], s[1:, ..., : width - size]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_y: Tensor | None, d_c: Tensor | None, d_g: Tensor | None) -> Gradients:
        g_0, R, p, Q, mask, s, y, c = ctx.saved_tensors
        variant: LSTMVariant = ctx.variant
        steps, cells, rows, size = y[1:].shape
        gates = slice(0, s.shape[-1] - size)
        d_s = torch.empty_like(s)
        d_s[-1] = 0
        d_cell = torch.zeros_like(c[0], dtype=torch.float32)
        unused = s.new_empty(1)
        d_y = torch.zeros_like(y[1:]) if d_y is None else d_y.contiguous()
        R_T = R.transpose(1, 2).contiguous()
        Q_T = unused if Q is None else Q.transpose(1, 2).contiguous()
        d_c_or_unused, d_g_or_unused = contiguous_or(d_c, unused), contiguous_or(d_g, unused)
        weights = (R_T, Q_T, contiguous_or(p, unused), contiguous_or(mask, unused))
        launch(
            _backward,
            (s, c, d_y, d_c_or_unused, d_g_or_unused, d_s, d_cell, *weights),
            (steps, cells, rows, size),
            **_constants(variant),
            HAS_MASK=mask is not None,
            HAS_C=d_c is not None,
            HAS_G=d_g is not None,
        )
        d_s = d_s[:-1]
        d_y0 = apply_mask(torch.bmm(d_s[0], R), mask)
        d_p = d_Q = d_g0 = None
        if p is not None:
            early = [
                d_s[..., first : first + size] * c[:-1] for first in range(0, len(variant.early_gates) * size, size)
            ]
            late = [d_s[..., gates][..., -size:] * c[1:]] if variant.output_gate else []
            d_p = torch.stack([part.sum((0, 2)) for part in early + late], dim=1)
        if g_0 is not None:
            d_Q = weight_gradient(d_s[..., gates], s[:-1, ..., gates])
            d_g0 = torch.bmm(d_s[0, ..., gates], Q)
        return (
            None,
            d_s,
            d_y0,
            d_cell.to(c.dtype),
            d_g0,
            weight_gradient(d_s, apply_mask(y[:-1], mask)),
            d_p,
            d_Q,
            None,
            None,
        )


lstm_scan = partial(analytic_lstm.lstm_scan, scan=_Scan)
"""The same as `analytic_lstm.lstm_scan`, in one Triton kernel."""
