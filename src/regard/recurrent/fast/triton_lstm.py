"""All steps of any LSTM variant in one Triton kernel for each of forward and backward; see `triton_launch` for the
method.

T steps, N cells in parallel, B rows, H units, G width of all gates: the learned gates i, f, o, then z; P width of the
learned gates. Buffers of T + 1 steps hold the initial state at index 0 (forward), or zeros at index T (backward).
"""

from functools import partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.recurrent.cells import apply_mask
from regard.recurrent.fast.analytic import allocate_states, weight_gradient
from regard.recurrent.fast.analytic_lstm import LSTMWeights
from regard.recurrent.fast.triton_launch import (
    CHUNK,
    MAX_PROGRAMS,
    ROWS,
    SLICES_PER_UNIT,
    UNSPECIALIZED,
    contiguous_or,
    count_chunks,
    exchange_sums,
    launch,
    load_matrix,
    locate_program,
    locate_rows,
    multiply,
    split_gates,
    tanh,
    wait_for_group,
)
from regard.recurrent.settings import LSTMVariant

EPSILON = tl.constexpr(1e-5)
"""As in `torch.nn.functional.layer_norm`."""


class NormWeights(NamedTuple):
    """The weights of layer normalization: the gains of R y, and the gain and bias of c."""

    gain_NG: Tensor
    cell_gain_NH: Tensor
    cell_bias_NH: Tensor


@triton.jit
def _load_gates(pointer, H, ok, INPUT: tl.constexpr, FORGET: tl.constexpr, OUTPUT: tl.constexpr):
    """Return the tiles of the gates i, f, o, z, each H after the last, in float32; for an absent gate, that of z."""
    z = tl.load(pointer + (INPUT + FORGET + OUTPUT) * H, ok, 0.0).to(tl.float32)
    i, f, o = z, z, z
    if INPUT:
        i = tl.load(pointer, ok, 0.0).to(tl.float32)
    if FORGET:
        f = tl.load(pointer + INPUT * H, ok, 0.0).to(tl.float32)
    if OUTPUT:
        o = tl.load(pointer + (INPUT + FORGET) * H, ok, 0.0).to(tl.float32)
    return i, f, o, z


@triton.jit
def _store_gates(pointer, H, ok, i, f, o, z, INPUT: tl.constexpr, FORGET: tl.constexpr, OUTPUT: tl.constexpr):
    if INPUT:
        tl.store(pointer, i, ok)
    if FORGET:
        tl.store(pointer + INPUT * H, f, ok)
    if OUTPUT:
        tl.store(pointer + (INPUT + FORGET) * H, o, ok)
    tl.store(pointer + (INPUT + FORGET + OUTPUT) * H, z, ok)


@triton.jit
def _gate_rows(column, unit, H, INPUT: tl.constexpr, FORGET: tl.constexpr, OUTPUT: tl.constexpr):
    """Return, for each column of the four concatenated gates (i, f, o, z), its row in R, and whether the variant has
    the gate.
    """
    first_o = (INPUT + FORGET) * H
    row = tl.where(column == 1, INPUT * H, tl.where(column == 2, first_o, (INPUT + FORGET + OUTPUT) * H))
    row = tl.where(column == 0, 0, row)
    present = ((column == 0) & (INPUT == 1)) | ((column == 1) & (FORGET == 1)) | ((column == 2) & (OUTPUT == 1))
    return row + unit, (present | (column == 3)) & (unit < H)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _forward(
    a, s, y, c, R, Q, p, mask, valid, gain, cell_gain, cell_bias, product, normalized, scales, sums,
    counters, cell_0, T, N, B, H, programs, row_groups,
    INPUT: tl.constexpr, FORGET: tl.constexpr, OUTPUT: tl.constexpr, COUPLED: tl.constexpr,
    Z_TANH: tl.constexpr, C_TANH: tl.constexpr, PEEP: tl.constexpr, REC: tl.constexpr,
    HAS_MASK: tl.constexpr, RAGGED: tl.constexpr, NORM: tl.constexpr,
    CHUNKS: tl.constexpr, GATE_CHUNKS: tl.constexpr, SLICES: tl.constexpr, GROUP: tl.constexpr,
    RESIDENT: tl.constexpr, UNITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    group, first_block, n, unit = locate_program(cell_0, programs, row_groups, UNITS)
    unit_ok = unit < H
    gates: tl.constexpr = INPUT + FORGET + OUTPUT
    P = gates * H
    G = P + H
    column = tl.arange(0, 4 * UNITS) // UNITS
    column_unit = tl.program_id(0) % programs * UNITS + tl.arange(0, 4 * UNITS) % UNITS
    gate_row, present = _gate_rows(column, column_unit, H, INPUT, FORGET, OUTPUT)
    ones = tl.full((4 * UNITS,), 1, tl.int32)
    columns, lengths = R + (n * G + gate_row) * H, tl.where(present, H, 0)
    tiles = load_matrix(columns, ones, lengths, CHUNKS, SLICES, RESIDENT)
    gate_columns, gate_lengths = Q + (n * P + gate_row) * P, tl.where(present & (column < 3), P, 0)
    gate_tiles = load_matrix(gate_columns, ones, gate_lengths, GATE_CHUNKS, SLICES, RESIDENT and REC)
    p_i = p + n * P + unit
    waited = 0
    for t in range(T):
        before = (t * N + n).to(tl.int64) * B
        after = before + N * B
        for block in range(first_block, tl.cdiv(B, ROWS), row_groups):
            row, row_ok, ok = locate_rows(block, B, unit_ok)
            offset_G = row[:, None] * G + unit[None, :]
            offset_H = row[:, None] * H + unit[None, :]
            c_before = tl.load(c + before * H + offset_H, ok, 0.0).to(tl.float32)
            offset_a = row[:, None] * G + gate_row[None, :]
            total = tl.load(a + before * G + offset_a, row_ok[:, None] & present[None, :], 0.0).to(tl.float32)
            state_total = multiply(
                y + before * H, block * ROWS, B, H, H, mask + n * B * H, tiles, columns, ones, lengths,
                HAS_MASK, CHUNKS, SLICES, GROUP, RESIDENT, PRECISION,
            )  # fmt: skip
            if NORM:
                waited += programs
                mean, square = exchange_sums(
                    sums + before * 4 * programs, counters + group, waited, row, row_ok, programs,
                    state_total, state_total * state_total,
                )  # fmt: skip
                scale = tl.rsqrt(square / G - mean * mean / G / G + EPSILON)
                state_total = (state_total - mean / G) * scale
                tl.store(product + before * G + offset_a, state_total, row_ok[:, None] & present[None, :])
                tl.store(scales + (before + row[:, None]) * 2, scale, row_ok[:, None])
                state_total = state_total * tl.load(gain + n * G + gate_row, present, 0.0)[None, :]
            total += state_total
            if REC:
                total += multiply(
                    s + before * G, block * ROWS, B, G, P, mask, gate_tiles, gate_columns, ones, gate_lengths,
                    False, GATE_CHUNKS, SLICES, GROUP, RESIDENT, PRECISION,
                )  # fmt: skip
            i, f, o, z = split_gates(total, UNITS)
            if PEEP:
                if INPUT:
                    i += tl.load(p_i, unit_ok, 0.0)[None, :] * c_before
                if FORGET:
                    f += tl.load(p_i + INPUT * H, unit_ok, 0.0)[None, :] * c_before
            i, f = tl.sigmoid(i), tl.sigmoid(f)
            if Z_TANH:
                z = tanh(z)
            cell = c_before
            if COUPLED:
                cell = c_before * (1 - i)
            elif FORGET:
                cell = c_before * f
            if INPUT:
                cell += z * i
            else:
                cell += z
            output = cell
            if NORM:
                waited += programs
                mean, square = exchange_sums(
                    sums + (before * 2 + B) * 2 * programs, counters + group, waited, row, row_ok, programs,
                    tl.where(ok, cell, 0.0), tl.where(ok, cell * cell, 0.0),
                )  # fmt: skip
                scale = tl.rsqrt(square / H - mean * mean / H / H + EPSILON)
                output = (cell - mean / H) * scale
                tl.store(normalized + before * H + offset_H, output, ok)
                tl.store(scales + (before + row[:, None]) * 2 + 1, scale, row_ok[:, None])
                output = output * tl.load(cell_gain + n * H + unit, unit_ok, 0.0)[None, :]
                output += tl.load(cell_bias + n * H + unit, unit_ok, 0.0)[None, :]
            if C_TANH:
                output = tanh(output)
            if OUTPUT:
                if PEEP:
                    o += tl.load(p_i + (INPUT + FORGET) * H, unit_ok, 0.0)[None, :] * cell
                o = tl.sigmoid(o)
                output = output * o
            if RAGGED:
                keep = tl.load(valid + t * B + row, row_ok, 0.0)[:, None]
                output, cell = output * keep, cell * keep
            tl.store(y + after * H + offset_H, output, ok)
            tl.store(c + after * H + offset_H, cell, ok)
            _store_gates(s + after * G + offset_G, H, ok, i, f, o, z, INPUT, FORGET, OUTPUT)
        waited += programs
        wait_for_group(counters + group, waited)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _backward(
    s, c, d_y, d_c, d_g, d_s, d_cell, R, Q, p, mask, gain, cell_gain, cell_bias, product, normalized, scales, sums,
    d_product, d_normalized, counters, cell_0, T, N, B, H, programs, row_groups,
    INPUT: tl.constexpr, FORGET: tl.constexpr, OUTPUT: tl.constexpr, COUPLED: tl.constexpr,
    Z_TANH: tl.constexpr, C_TANH: tl.constexpr, PEEP: tl.constexpr, REC: tl.constexpr, HAS_MASK: tl.constexpr,
    HAS_C: tl.constexpr, HAS_G: tl.constexpr, NORM: tl.constexpr,
    CHUNKS: tl.constexpr, SLICES: tl.constexpr, GROUP: tl.constexpr, RESIDENT: tl.constexpr,
    UNITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    group, first_block, n, unit = locate_program(cell_0, programs, row_groups, UNITS)
    unit_ok = unit < H
    gates: tl.constexpr = INPUT + FORGET + OUTPUT
    P = gates * H
    G = P + H
    if REC:
        # The columns of Q for each gate, then those of R.
        column = tl.arange(0, 4 * UNITS) // UNITS
        column_unit = tl.program_id(0) % programs * UNITS + tl.arange(0, 4 * UNITS) % UNITS
        gate_row, present = _gate_rows(column, column_unit, H, INPUT, FORGET, OUTPUT)
        columns = tl.where(column < 3, Q + n * P * P + gate_row, R + n * G * H + column_unit)
        strides, lengths = tl.where(column < 3, P, H), tl.where(present, tl.where(column < 3, P, G), 0)
    else:
        columns = R + n * G * H + unit
        strides, lengths = tl.full((UNITS,), 0, tl.int32) + H, tl.where(unit_ok, G, 0)
    tiles = load_matrix(columns, strides, lengths, CHUNKS, SLICES, RESIDENT)
    p_i = p + n * P + unit
    waited = 0
    for back in range(T):
        t = T - 1 - back
        now = (t * N + n).to(tl.int64) * B
        after = now + N * B
        for block in range(first_block, tl.cdiv(B, ROWS), row_groups):
            row, row_ok, ok = locate_rows(block, B, unit_ok)
            offset_G = row[:, None] * G + unit[None, :]
            offset_H = row[:, None] * H + unit[None, :]
            # The gates of step t are in s[t + 1]; the cell states before and after it are in c[t] and c[t + 1].
            i, f, o, z = _load_gates(s + after * G + offset_G, H, ok, INPUT, FORGET, OUTPUT)
            c_before = tl.load(c + now * H + offset_H, ok, 0.0).to(tl.float32)
            cell = tl.load(c + after * H + offset_H, ok, 0.0).to(tl.float32)
            d_now = tl.load(d_cell + n * B * H + offset_H, ok, 0.0)
            if HAS_C:
                d_now += tl.load(d_c + now * H + offset_H, ok, 0.0).to(tl.float32)
            d_output = tl.load(d_y + now * H + offset_H, ok, 0.0).to(tl.float32)
            d_x = multiply(
                d_product + after * G, block * ROWS, B, G, G, mask, tiles, columns, strides, lengths,
                False, CHUNKS, SLICES, GROUP, RESIDENT, PRECISION,
            )  # fmt: skip
            if REC:
                d_i, d_f, d_o, d_x = split_gates(d_x, UNITS)
            else:
                d_i, d_f, d_o = tl.zeros_like(d_x), tl.zeros_like(d_x), tl.zeros_like(d_x)
            if HAS_MASK:
                d_x = d_x * tl.load(mask + n * B * H + offset_H, ok, 0.0)
            d_output += d_x
            if HAS_G:
                d_gates = d_g + now * P + row[:, None] * P + unit[None, :]
                if INPUT:
                    d_i += tl.load(d_gates, ok, 0.0).to(tl.float32)
                if FORGET:
                    d_f += tl.load(d_gates + INPUT * H, ok, 0.0).to(tl.float32)
                if OUTPUT:
                    d_o += tl.load(d_gates + (INPUT + FORGET) * H, ok, 0.0).to(tl.float32)
            activated = cell
            if NORM:
                hat = tl.load(normalized + now * H + offset_H, ok, 0.0).to(tl.float32)
                c_gain = tl.load(cell_gain + n * H + unit, unit_ok, 0.0).to(tl.float32)[None, :]
                activated = hat * c_gain + tl.load(cell_bias + n * H + unit, unit_ok, 0.0)[None, :]
            if C_TANH:
                activated = tanh(activated)
            if OUTPUT:
                d_o = (d_o + d_output * activated) * o * (1 - o)
                d_output = d_output * o
                if PEEP:
                    d_now += d_o * tl.load(p_i + (INPUT + FORGET) * H, unit_ok, 0.0)[None, :]
            if C_TANH:
                d_output = d_output * (1 - activated * activated)
            if NORM:
                tl.store(d_normalized + now * H + offset_H, d_output, ok)
                d_output = d_output * c_gain
                waited += programs
                first, second = exchange_sums(
                    sums + (now * 2 + B) * 2 * programs, counters + group, waited, row, row_ok, programs,
                    d_output, d_output * hat,
                )  # fmt: skip
                scale = tl.load(scales + (now + row[:, None]) * 2 + 1, row_ok[:, None], 0.0)
                d_output = (d_output - first / H - hat * (second / H)) * scale
            d_now += d_output
            d_before, d_z = d_now, d_now
            if FORGET:
                d_f = (d_f + d_now * c_before) * f * (1 - f)
                d_before = d_now * f
                if PEEP:
                    d_before += d_f * tl.load(p_i + INPUT * H, unit_ok, 0.0)[None, :]
            if INPUT:
                d_z = d_now * i
                d_i += d_now * z
                if COUPLED:
                    d_i -= d_now * c_before
                    d_before -= d_now * i
                d_i = d_i * i * (1 - i)
                if PEEP:
                    d_before += d_i * tl.load(p_i, unit_ok, 0.0)[None, :]
            if Z_TANH:
                d_z = d_z * (1 - z * z)
            _store_gates(d_s + now * G + offset_G, H, ok, d_i, d_f, d_o, d_z, INPUT, FORGET, OUTPUT)
            tl.store(d_cell + n * B * H + offset_H, d_before, ok)
            if NORM:
                hat_i, hat_f, hat_o, hat_z = _load_gates(product + now * G + offset_G, H, ok, INPUT, FORGET, OUTPUT)
                gain_i, gain_f, gain_o, gain_z = _load_gates(
                    gain + n * G + unit[None, :], H, unit_ok[None, :], INPUT, FORGET, OUTPUT
                )
                d_z = d_z * gain_z
                first, second = d_z, d_z * hat_z
                if INPUT:
                    d_i = d_i * gain_i
                    first, second = first + d_i, second + d_i * hat_i
                if FORGET:
                    d_f = d_f * gain_f
                    first, second = first + d_f, second + d_f * hat_f
                if OUTPUT:
                    d_o = d_o * gain_o
                    first, second = first + d_o, second + d_o * hat_o
                waited += programs
                first, second = exchange_sums(
                    sums + now * 4 * programs, counters + group, waited, row, row_ok, programs,
                    tl.where(ok, first, 0.0), tl.where(ok, second, 0.0),
                )  # fmt: skip
                scale = tl.load(scales + (now + row[:, None]) * 2, row_ok[:, None], 0.0)
                first, second = first / G, second / G
                d_i, d_f = (d_i - first - hat_i * second) * scale, (d_f - first - hat_f * second) * scale
                d_o, d_z = (d_o - first - hat_o * second) * scale, (d_z - first - hat_z * second) * scale
                _store_gates(d_product + now * G + offset_G, H, ok, d_i, d_f, d_o, d_z, INPUT, FORGET, OUTPUT)
        waited += programs
        wait_for_group(counters + group, waited)


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


def _normalization_buffers(a: Tensor, size: int) -> tuple[Tensor, ...]:
    """Return buffers for the normalized R y and c, for their scales, and for the sums that programs exchange."""
    steps, cells, rows, _ = a.shape
    floats = partial(torch.empty, dtype=torch.float32, device=a.device)
    sums = floats(steps, cells, 2, rows, MAX_PROGRAMS.value, 2)
    return torch.empty_like(a), a.new_empty(steps, cells, rows, size), floats(steps, cells, rows, 2), sums


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
        gain: Tensor | None,
        cell_gain: Tensor | None,
        cell_bias: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps, cells, rows, width = a.shape
        size = y_0.shape[-1]
        a, R = a.contiguous(), R.contiguous()
        y, c = allocate_states(a, y_0), allocate_states(a, c_0)
        s = a.new_empty(steps + 1, cells, rows, width)
        if g_0 is not None:
            s[0, ..., : width - size] = g_0
        chunks = count_chunks(size)
        gate_chunks = count_chunks(width - size) if variant.gate_recurrence else 0
        unused = a.new_empty(1)
        optional = (contiguous_or(tensor, unused) for tensor in (Q, p, mask, valid))
        buffers = _normalization_buffers(a, size) if gain is not None else (unused,) * 4
        launch(
            _forward,
            (a, s, y, c, R, *optional, *(contiguous_or(x, unused) for x in (gain, cell_gain, cell_bias)), *buffers),
            (steps, cells, rows, size),
            weights=4 * CHUNK.value * (chunks + gate_chunks),
            slices=1,
            **_constants(variant),
            CHUNKS=chunks,
            GATE_CHUNKS=gate_chunks,
            HAS_MASK=mask is not None,
            RAGGED=valid is not None,
            NORM=gain is not None,
        )
        ctx.variant = variant
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(g_0, R, p, Q, mask, s, y, c, gain, cell_gain, cell_bias, *buffers)
        return y[1:], c[1:], s[1:, ..., : width - size]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_y: Tensor | None, d_c: Tensor | None, d_g: Tensor | None) -> Gradients:
        g_0, R, p, Q, mask, s, y, c, gain, cell_gain, cell_bias, product, normalized, scales, sums = ctx.saved_tensors
        variant: LSTMVariant = ctx.variant
        steps, cells, rows, size = y[1:].shape
        gates = slice(0, s.shape[-1] - size)
        slices = 1 if variant.gate_recurrence else SLICES_PER_UNIT
        chunks = count_chunks(s.shape[-1], slices)
        d_s, d_cell = torch.empty_like(s), torch.zeros_like(c[0], dtype=torch.float32)
        # Without layer normalization, the gradient of R y is that of the gates.
        d_product = d_s if gain is None else torch.empty_like(s)
        d_normalized = torch.empty_like(normalized)
        d_product[-1] = 0
        unused = s.new_empty(1)
        d_y = torch.zeros_like(y[1:]) if d_y is None else d_y.contiguous()
        optional = (contiguous_or(tensor, unused) for tensor in (Q, p, mask, gain, cell_gain, cell_bias))
        gradients = (d_y, contiguous_or(d_c, unused), contiguous_or(d_g, unused), d_s, d_cell)
        buffers = (product, normalized, scales, sums, d_product, d_normalized)
        launch(
            _backward,
            (s, c, *gradients, R, *optional, *buffers),
            (steps, cells, rows, size),
            weights=(4 if variant.gate_recurrence else 1) * CHUNK.value * chunks,
            slices=slices,
            **_constants(variant),
            CHUNKS=chunks,
            HAS_MASK=mask is not None,
            HAS_C=d_c is not None,
            HAS_G=d_g is not None,
            NORM=gain is not None,
        )
        d_s, d_product = d_s[:-1], d_product[:-1]
        d_y0 = apply_mask(torch.bmm(d_product[0], R), mask)
        d_R = weight_gradient(d_product, apply_mask(y[:-1], mask))
        d_p = d_Q = d_g0 = d_gain = d_cell_gain = d_cell_bias = None
        if p is not None:
            early = [
                d_s[..., first : first + size] * c[:-1] for first in range(0, len(variant.early_gates) * size, size)
            ]
            late = [d_s[..., gates][..., -size:] * c[1:]] if variant.output_gate else []
            d_p = torch.stack([part.sum((0, 2)) for part in early + late], dim=1)
        if g_0 is not None:
            d_Q = weight_gradient(d_s[..., gates], s[:-1, ..., gates])
            d_g0 = torch.bmm(d_s[0, ..., gates], Q)
        if gain is not None:
            d_gain, d_cell_bias = (d_s * product).sum((0, 2)), d_normalized.sum((0, 2))
            d_cell_gain = (d_normalized * normalized).sum((0, 2))
        d_c0 = d_cell.to(c.dtype)
        return None, d_s, d_y0, d_c0, d_g0, d_R, d_p, d_Q, None, None, d_gain, d_cell_gain, d_cell_bias


def lstm_scan(
    variant: LSTMVariant,
    a_TNBG: Tensor,
    state: tuple[Tensor, ...],
    weights: LSTMWeights,
    mask_NBH: Tensor | None = None,
    valid_TB1: Tensor | None = None,
    norm: NormWeights | None = None,
) -> tuple[Tensor, ...]:
    """The same as `analytic_lstm.lstm_scan`, in one Triton kernel; optionally with layer normalization."""
    y, c, *g = state
    norms = norm or (None, None, None)
    states = _Scan.apply(variant, a_TNBG, y, c, g[0] if g else None, *weights, mask_NBH, valid_TB1, *norms)
    return tuple(states[: len(state)])
