"""All steps of a GRU in one Triton kernel for each of forward and backward; see `triton_launch` for the method.

Reset after the product with R, where u = R m + b:

    r = σ(a_r + u_r),  z = σ(a_z + u_z),  n = tanh(a_n + r ⊙ u_n),  h' = n + z ⊙ (h − n)

Reset before the product with R:

    r = σ(a_r + R_r m),  z = σ(a_z + R_z m),  q = r ⊙ m,  n = tanh(a_n + R_n q),  h' = n + z ⊙ (h − n)

m is h with its dropout mask applied. T steps, N cells in parallel, B rows, H units, G = 3 H. If the GRU resets before
the product, a step synchronizes twice, because n needs all of q.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.recurrent.cells import apply_mask
from regard.recurrent.fast.analytic import allocate_states, flatten_steps, weight_gradient
from regard.recurrent.fast.triton_launch import (
    CHUNK,
    ROWS,
    SLICES_PER_UNIT,
    UNSPECIALIZED,
    contiguous_or,
    count_chunks,
    launch,
    load_matrix,
    locate_program,
    locate_rows,
    multiply,
    split_gates,
    tanh,
    wait_for_group,
)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _forward_after(
    a, s, n_states, h, R, b, mask, counters, cell_0, T, N, B, H, programs, row_groups, HAS_MASK: tl.constexpr,
    CHUNKS: tl.constexpr, SLICES: tl.constexpr, GROUP: tl.constexpr, RESIDENT: tl.constexpr,
    UNITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write r, z and u_n to s, and n to `n_states`."""
    group, first_block, cell, unit = locate_program(cell_0, programs, row_groups, UNITS)
    unit_ok = unit < H
    G = 3 * H
    gate = tl.arange(0, 4 * UNITS) // UNITS
    gate_unit = tl.program_id(0) % programs * UNITS + tl.arange(0, 4 * UNITS) % UNITS
    gate_row, present = gate * H + gate_unit, (gate < 3) & (gate_unit < H)
    columns, ones = R + (cell * G + gate_row) * H, tl.full((4 * UNITS,), 1, tl.int32)
    lengths = tl.where(present, H, 0)
    tiles = load_matrix(columns, ones, lengths, CHUNKS, SLICES, RESIDENT)
    bias = tl.load(b + cell * G + gate_row, present, 0.0).to(tl.float32)
    for t in range(T):
        before = (t * N + cell).to(tl.int64) * B
        for block in range(first_block, tl.cdiv(B, ROWS), row_groups):
            row, _, ok = locate_rows(block, B, unit_ok)
            offset_G = row[:, None] * G + unit[None, :]
            offset_H = row[:, None] * H + unit[None, :]
            h_before = tl.load(h + before * H + offset_H, ok, 0.0).to(tl.float32)
            a_r = tl.load(a + before * G + offset_G, ok, 0.0).to(tl.float32)
            a_z = tl.load(a + before * G + H + offset_G, ok, 0.0).to(tl.float32)
            a_n = tl.load(a + before * G + 2 * H + offset_G, ok, 0.0).to(tl.float32)
            u = bias[None, :] + multiply(
                h + before * H, block * ROWS, B, H, H, mask + cell * B * H, tiles, columns, ones, lengths,
                HAS_MASK, CHUNKS, SLICES, GROUP, RESIDENT, PRECISION,
            )  # fmt: skip
            u_r, u_z, u_n, _ = split_gates(u, UNITS)
            r, z = tl.sigmoid(a_r + u_r), tl.sigmoid(a_z + u_z)
            candidate = tanh(a_n + r * u_n)
            tl.store(h + (before + N * B) * H + offset_H, candidate + z * (h_before - candidate), ok)
            tl.store(s + before * G + offset_G, r, ok)
            tl.store(s + before * G + H + offset_G, z, ok)
            tl.store(s + before * G + 2 * H + offset_G, u_n, ok)
            tl.store(n_states + before * H + offset_H, candidate, ok)
        wait_for_group(counters + group, (t + 1) * programs)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _backward_after(
    s, n_states, h, d_h, d_u, d_n, carry, R, mask, counters, cell_0, T, N, B, H, programs, row_groups,
    HAS_MASK: tl.constexpr, CHUNKS: tl.constexpr, SLICES: tl.constexpr, GROUP: tl.constexpr, RESIDENT: tl.constexpr,
    UNITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    group, first_block, cell, unit = locate_program(cell_0, programs, row_groups, UNITS)
    unit_ok = unit < H
    G = 3 * H
    columns, strides, lengths = R + cell * G * H + unit, tl.zeros_like(unit) + H, tl.where(unit_ok, G, 0)
    tiles = load_matrix(columns, strides, lengths, CHUNKS, SLICES, RESIDENT)
    for back in range(T):
        now = ((T - 1 - back) * N + cell).to(tl.int64) * B
        after = now + N * B
        for block in range(first_block, tl.cdiv(B, ROWS), row_groups):
            row, _, ok = locate_rows(block, B, unit_ok)
            offset_G = row[:, None] * G + unit[None, :]
            offset_H = row[:, None] * H + unit[None, :]
            r = tl.load(s + now * G + offset_G, ok, 0.0).to(tl.float32)
            z = tl.load(s + now * G + H + offset_G, ok, 0.0).to(tl.float32)
            u_n = tl.load(s + now * G + 2 * H + offset_G, ok, 0.0).to(tl.float32)
            candidate = tl.load(n_states + now * H + offset_H, ok, 0.0).to(tl.float32)
            h_before = tl.load(h + now * H + offset_H, ok, 0.0).to(tl.float32)
            d_after = tl.load(carry + cell * B * H + offset_H, ok, 0.0)
            d_after += tl.load(d_h + now * H + offset_H, ok, 0.0).to(tl.float32)
            d_x = multiply(
                d_u + after * G, block * ROWS, B, G, G, mask, tiles, columns, strides, lengths,
                False, CHUNKS, SLICES, GROUP, RESIDENT, PRECISION,
            )  # fmt: skip
            if HAS_MASK:
                d_x = d_x * tl.load(mask + cell * B * H + offset_H, ok, 0.0)
            d_after += d_x
            d_candidate = d_after * (1 - z) * (1 - candidate * candidate)
            tl.store(d_u + now * G + offset_G, d_candidate * u_n * r * (1 - r), ok)
            tl.store(d_u + now * G + H + offset_G, d_after * (h_before - candidate) * z * (1 - z), ok)
            tl.store(d_u + now * G + 2 * H + offset_G, d_candidate * r, ok)
            tl.store(d_n + now * H + offset_H, d_candidate, ok)
            tl.store(carry + cell * B * H + offset_H, d_after * z, ok)
        wait_for_group(counters + group, (back + 1) * programs)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _forward_before(
    a, s, q, h, R, mask, counters, cell_0, T, N, B, H, programs, row_groups, HAS_MASK: tl.constexpr,
    CHUNKS: tl.constexpr, SLICES: tl.constexpr, GROUP: tl.constexpr, RESIDENT: tl.constexpr,
    UNITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write r, z and n to s."""
    group, first_block, cell, unit = locate_program(cell_0, programs, row_groups, UNITS)
    unit_ok = unit < H
    G = 3 * H
    gate = tl.arange(0, 2 * UNITS) // UNITS
    gate_unit = tl.program_id(0) % programs * UNITS + tl.arange(0, 2 * UNITS) % UNITS
    columns, ones = R + (cell * G + gate * H + gate_unit) * H, tl.full((2 * UNITS,), 1, tl.int32)
    lengths = tl.where(gate_unit < H, H, 0)
    tiles = load_matrix(columns, ones, lengths, CHUNKS, SLICES, RESIDENT)
    n_columns, n_ones = R + (cell * G + 2 * H + unit) * H, tl.full((UNITS,), 1, tl.int32)
    n_lengths = tl.where(unit_ok, H, 0)
    n_tiles = load_matrix(n_columns, n_ones, n_lengths, CHUNKS, SLICES, RESIDENT)
    for t in range(T):
        before = (t * N + cell).to(tl.int64) * B
        for block in range(first_block, tl.cdiv(B, ROWS), row_groups):
            row, _, ok = locate_rows(block, B, unit_ok)
            offset_G = row[:, None] * G + unit[None, :]
            offset_H = row[:, None] * H + unit[None, :]
            a_r = tl.load(a + before * G + offset_G, ok, 0.0).to(tl.float32)
            a_z = tl.load(a + before * G + H + offset_G, ok, 0.0).to(tl.float32)
            masked = tl.load(h + before * H + offset_H, ok, 0.0).to(tl.float32)
            if HAS_MASK:
                masked = masked * tl.load(mask + cell * B * H + offset_H, ok, 0.0)
            total = multiply(
                h + before * H, block * ROWS, B, H, H, mask + cell * B * H, tiles, columns, ones, lengths,
                HAS_MASK, CHUNKS, SLICES, GROUP, RESIDENT, PRECISION,
            )  # fmt: skip
            r, z = tl.split(tl.permute(tl.reshape(total, (ROWS, 2, UNITS)), (0, 2, 1)))
            r, z = tl.sigmoid(a_r + r), tl.sigmoid(a_z + z)
            tl.store(q + before * H + offset_H, r * masked, ok)
            tl.store(s + before * G + offset_G, r, ok)
            tl.store(s + before * G + H + offset_G, z, ok)
        wait_for_group(counters + group, (2 * t + 1) * programs)
        for block in range(first_block, tl.cdiv(B, ROWS), row_groups):
            row, _, ok = locate_rows(block, B, unit_ok)
            offset_G = row[:, None] * G + unit[None, :]
            offset_H = row[:, None] * H + unit[None, :]
            h_before = tl.load(h + before * H + offset_H, ok, 0.0).to(tl.float32)
            z = tl.load(s + before * G + H + offset_G, ok, 0.0).to(tl.float32)
            total = tl.load(a + before * G + 2 * H + offset_G, ok, 0.0).to(tl.float32)
            total += multiply(
                q + before * H, block * ROWS, B, H, H, mask, n_tiles, n_columns, n_ones, n_lengths,
                False, CHUNKS, SLICES, GROUP, RESIDENT, PRECISION,
            )  # fmt: skip
            candidate = tanh(total)
            tl.store(h + (before + N * B) * H + offset_H, candidate + z * (h_before - candidate), ok)
            tl.store(s + before * G + 2 * H + offset_G, candidate, ok)
        wait_for_group(counters + group, (2 * t + 2) * programs)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _backward_before(
    s, h, d_h, d_s, carry, R, mask, counters, cell_0, T, N, B, H, programs, row_groups, HAS_MASK: tl.constexpr,
    CHUNKS: tl.constexpr, N_CHUNKS: tl.constexpr, SLICES: tl.constexpr, GROUP: tl.constexpr, RESIDENT: tl.constexpr,
    UNITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    group, first_block, cell, unit = locate_program(cell_0, programs, row_groups, UNITS)
    unit_ok = unit < H
    G = 3 * H
    columns, strides, lengths = R + cell * G * H + unit, tl.zeros_like(unit) + H, tl.where(unit_ok, 2 * H, 0)
    tiles = load_matrix(columns, strides, lengths, CHUNKS, SLICES, RESIDENT)
    n_columns, n_lengths = R + (cell * G + 2 * H) * H + unit, tl.where(unit_ok, H, 0)
    n_tiles = load_matrix(n_columns, strides, n_lengths, N_CHUNKS, SLICES, RESIDENT)
    for back in range(T):
        now = ((T - 1 - back) * N + cell).to(tl.int64) * B
        after = now + N * B
        for block in range(first_block, tl.cdiv(B, ROWS), row_groups):
            row, _, ok = locate_rows(block, B, unit_ok)
            offset_G = row[:, None] * G + unit[None, :]
            offset_H = row[:, None] * H + unit[None, :]
            z = tl.load(s + now * G + H + offset_G, ok, 0.0).to(tl.float32)
            candidate = tl.load(s + now * G + 2 * H + offset_G, ok, 0.0).to(tl.float32)
            h_before = tl.load(h + now * H + offset_H, ok, 0.0).to(tl.float32)
            d_after = tl.load(carry + cell * B * H + offset_H, ok, 0.0)
            d_after += tl.load(d_h + now * H + offset_H, ok, 0.0).to(tl.float32)
            d_x = multiply(
                d_s + after * G, block * ROWS, B, G, 2 * H, mask, tiles, columns, strides, lengths,
                False, CHUNKS, SLICES, GROUP, RESIDENT, PRECISION,
            )  # fmt: skip
            if HAS_MASK:
                d_x = d_x * tl.load(mask + cell * B * H + offset_H, ok, 0.0)
            d_after += d_x
            tl.store(d_s + now * G + 2 * H + offset_G, d_after * (1 - z) * (1 - candidate * candidate), ok)
            tl.store(d_s + now * G + H + offset_G, d_after * (h_before - candidate) * z * (1 - z), ok)
            tl.store(carry + cell * B * H + offset_H, d_after * z, ok)
        wait_for_group(counters + group, (2 * back + 1) * programs)
        for block in range(first_block, tl.cdiv(B, ROWS), row_groups):
            row, _, ok = locate_rows(block, B, unit_ok)
            offset_G = row[:, None] * G + unit[None, :]
            offset_H = row[:, None] * H + unit[None, :]
            r = tl.load(s + now * G + offset_G, ok, 0.0).to(tl.float32)
            masked = tl.load(h + now * H + offset_H, ok, 0.0).to(tl.float32)
            carried = tl.load(carry + cell * B * H + offset_H, ok, 0.0)
            d_q = multiply(
                d_s + now * G + 2 * H, block * ROWS, B, G, H, mask, n_tiles, n_columns, strides, n_lengths,
                False, N_CHUNKS, SLICES, GROUP, RESIDENT, PRECISION,
            )  # fmt: skip
            d_masked = d_q * r
            if HAS_MASK:
                factor = tl.load(mask + cell * B * H + offset_H, ok, 0.0)
                masked, d_masked = masked * factor, d_masked * factor
            tl.store(d_s + now * G + offset_G, d_q * masked * r * (1 - r), ok)
            tl.store(carry + cell * B * H + offset_H, carried + d_masked, ok)
        wait_for_group(counters + group, (2 * back + 2) * programs)


class _AfterScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, h_0: Tensor, R: Tensor, b: Tensor, mask: Tensor | None) -> Tensor:
        a, R, b = a.contiguous(), R.contiguous(), b.contiguous()
        s, n, h = torch.empty_like(a), a.new_empty(len(a), *h_0.shape), allocate_states(a, h_0)
        chunks = count_chunks(h_0.shape[-1])
        tensors, sizes = (a, s, n, h, R, b, contiguous_or(mask, a.new_empty(1))), (len(a), *h_0.shape)
        weights = 4 * chunks * CHUNK.value
        launch(_forward_after, tensors, sizes, weights=weights, CHUNKS=chunks, HAS_MASK=mask is not None, slices=1)
        ctx.save_for_backward(R, mask, s, n, h)
        return h[1:]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_states: Tensor) -> Gradients:
        R, mask, s, n, h = ctx.saved_tensors
        size = n.shape[-1]
        d_u, d_n = s.new_empty(len(s) + 1, *s.shape[1:]), torch.empty_like(n)
        d_u[-1] = 0
        carry = torch.zeros_like(h[0], dtype=torch.float32)
        chunks = count_chunks(3 * size, SLICES_PER_UNIT)
        tensors = (s, n, h, d_states.contiguous(), d_u, d_n, carry, R, contiguous_or(mask, s.new_empty(1)))
        flags = {"CHUNKS": chunks, "HAS_MASK": mask is not None, "slices": SLICES_PER_UNIT}
        launch(_backward_after, tensors, tuple(n.shape), weights=chunks * CHUNK.value, **flags)
        d_u = d_u[:-1]
        d_h0 = carry.to(h.dtype) + apply_mask(torch.bmm(d_u[0], R), mask)
        d_a = torch.cat([d_u[..., : 2 * size], d_n], dim=-1)
        return d_a, d_h0, weight_gradient(d_u, apply_mask(h[:-1], mask)), flatten_steps(d_u).sum(1), None


class _BeforeScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, h_0: Tensor, R: Tensor, mask: Tensor | None) -> Tensor:
        a, R = a.contiguous(), R.contiguous()
        s, q, h = torch.empty_like(a), a.new_empty(len(a), *h_0.shape), allocate_states(a, h_0)
        chunks = count_chunks(h_0.shape[-1])
        tensors, sizes = (a, s, q, h, R, contiguous_or(mask, a.new_empty(1))), (len(a), *h_0.shape)
        weights = 3 * chunks * CHUNK.value
        launch(_forward_before, tensors, sizes, weights=weights, CHUNKS=chunks, HAS_MASK=mask is not None, slices=1)
        ctx.save_for_backward(R, mask, s, q, h)
        return h[1:]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_states: Tensor) -> Gradients:
        R, mask, s, q, h = ctx.saved_tensors
        size = q.shape[-1]
        d_s = s.new_empty(len(s) + 1, *s.shape[1:])
        d_s[-1] = 0
        carry = torch.zeros_like(h[0], dtype=torch.float32)
        chunks, n_chunks = count_chunks(2 * size, SLICES_PER_UNIT), count_chunks(size, SLICES_PER_UNIT)
        tensors = (s, h, d_states.contiguous(), d_s, carry, R, contiguous_or(mask, s.new_empty(1)))
        flags = {"CHUNKS": chunks, "N_CHUNKS": n_chunks, "HAS_MASK": mask is not None, "slices": SLICES_PER_UNIT}
        launch(_backward_before, tensors, tuple(q.shape), weights=(chunks + n_chunks) * CHUNK.value, **flags)
        d_s = d_s[:-1]
        d_rz, d_n = d_s[..., : 2 * size], d_s[..., 2 * size :]
        d_h0 = carry.to(h.dtype) + apply_mask(torch.bmm(d_rz[0], R[:, : 2 * size]), mask)
        d_R = torch.cat([weight_gradient(d_rz, apply_mask(h[:-1], mask)), weight_gradient(d_n, q)], dim=1)
        return d_s, d_h0, d_R, None


def gru_scan(a_TNBG: Tensor, h_NBH: Tensor, R_NGH: Tensor, b_NG: Tensor | None, mask_NBH: Tensor | None) -> Tensor:
    """The same as `analytic.gru_scan`, in one Triton kernel."""
    if b_NG is None:
        reset_before: Tensor = _BeforeScan.apply(a_TNBG, h_NBH, R_NGH, mask_NBH)
        return reset_before
    states: Tensor = _AfterScan.apply(a_TNBG, h_NBH, R_NGH, b_NG, mask_NBH)
    return states
