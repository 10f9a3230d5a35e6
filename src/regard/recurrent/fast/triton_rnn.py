"""All steps of a simple recurrent network, h' = φ(a + R m), in one Triton kernel for each of forward and backward; see
`triton_launch` for the method.

m is h with its dropout mask applied, φ is tanh or relu. T steps, N cells in parallel, B rows, H units.
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
    tanh,
    wait_for_group,
)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _forward(
    a, h, R, mask, valid, counters, cell_0, T, N, B, H, programs, row_groups,
    TANH: tl.constexpr, HAS_MASK: tl.constexpr, RAGGED: tl.constexpr,
    CHUNKS: tl.constexpr, SLICES: tl.constexpr, GROUP: tl.constexpr, RESIDENT: tl.constexpr,
    UNITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    group, first_block, n, unit = locate_program(cell_0, programs, row_groups, UNITS)
    unit_ok = unit < H
    columns, ones, lengths = R + (n * H + unit) * H, tl.full((UNITS,), 1, tl.int32), tl.where(unit_ok, H, 0)
    tiles = load_matrix(columns, ones, lengths, CHUNKS, SLICES, RESIDENT)
    for t in range(T):
        before = (t * N + n).to(tl.int64) * B
        for block in range(first_block, tl.cdiv(B, ROWS), row_groups):
            row, row_ok, ok = locate_rows(block, B, unit_ok)
            offset_H = row[:, None] * H + unit[None, :]
            total = tl.load(a + before * H + offset_H, ok, 0.0).to(tl.float32)
            total += multiply(
                h + before * H, block * ROWS, B, H, H, mask + n * B * H, tiles, columns, ones, lengths,
                HAS_MASK, CHUNKS, SLICES, GROUP, RESIDENT, PRECISION,
            )  # fmt: skip
            output = tl.where(total < 0, 0.0, total)  # NaN stays NaN
            if TANH:
                output = tanh(total)
            if RAGGED:
                output = output * tl.load(valid + t * B + row, row_ok, 0.0)[:, None]
            tl.store(h + (before + N * B) * H + offset_H, output, ok)
        wait_for_group(counters + group, (t + 1) * programs)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _backward(
    h, d_h, d_a, R, mask, counters, cell_0, T, N, B, H, programs, row_groups,
    TANH: tl.constexpr, HAS_MASK: tl.constexpr,
    CHUNKS: tl.constexpr, SLICES: tl.constexpr, GROUP: tl.constexpr, RESIDENT: tl.constexpr,
    UNITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    group, first_block, n, unit = locate_program(cell_0, programs, row_groups, UNITS)
    unit_ok = unit < H
    columns, lengths = R + n * H * H + unit, tl.where(unit_ok, H, 0)
    strides = tl.zeros_like(unit) + H
    tiles = load_matrix(columns, strides, lengths, CHUNKS, SLICES, RESIDENT)
    for back in range(T):
        now = ((T - 1 - back) * N + n).to(tl.int64) * B
        after = now + N * B
        for block in range(first_block, tl.cdiv(B, ROWS), row_groups):
            row, _, ok = locate_rows(block, B, unit_ok)
            offset_H = row[:, None] * H + unit[None, :]
            output = tl.load(h + after * H + offset_H, ok, 0.0).to(tl.float32)
            d_output = tl.load(d_h + now * H + offset_H, ok, 0.0).to(tl.float32)
            d_x = multiply(
                d_a + after * H, block * ROWS, B, H, H, mask, tiles, columns, strides, lengths,
                False, CHUNKS, SLICES, GROUP, RESIDENT, PRECISION,
            )  # fmt: skip
            if HAS_MASK:
                d_x = d_x * tl.load(mask + n * B * H + offset_H, ok, 0.0)
            d_output += d_x
            d_total = tl.where(output > 0, d_output, 0.0)
            if TANH:
                d_total = d_output * (1 - output * output)
            tl.store(d_a + now * H + offset_H, d_total, ok)
        wait_for_group(counters + group, (back + 1) * programs)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, activation: str, a: Tensor, h_0: Tensor, R: Tensor, mask: Tensor | None, valid: Tensor | None
    ) -> Tensor:
        a, R = a.contiguous(), R.contiguous()
        h, unused = allocate_states(a, h_0), a.new_empty(1)
        tensors = (a, h, R, contiguous_or(mask, unused), contiguous_or(valid, unused))
        chunks = count_chunks(h_0.shape[-1], SLICES_PER_UNIT)
        flags = {
            "TANH": activation == "tanh",
            "HAS_MASK": mask is not None,
            "CHUNKS": chunks,
            "slices": SLICES_PER_UNIT,
        }
        flags["weights"] = chunks * CHUNK.value
        launch(_forward, tensors, (len(a), *h_0.shape), RAGGED=valid is not None, **flags)
        ctx.flags = flags
        ctx.save_for_backward(R, mask, h)
        return h[1:]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_states: Tensor) -> Gradients:
        R, mask, h = ctx.saved_tensors
        d_a = torch.empty_like(h)
        d_a[-1] = 0
        tensors = (h, d_states.contiguous(), d_a, R, contiguous_or(mask, h.new_empty(1)))
        steps, cells, rows, size = d_states.shape
        launch(_backward, tensors, (steps, cells, rows, size), **ctx.flags)
        d_a = d_a[:-1]
        d_h0 = apply_mask(torch.bmm(d_a[0], R), mask)
        return None, d_a, d_h0, weight_gradient(d_a, apply_mask(h[:-1], mask)), None, None


def rnn_scan(
    activation: str, a_TNBH: Tensor, h_NBH: Tensor, R_NHH: Tensor, mask_NBH: Tensor | None, valid_TB1: Tensor | None
) -> Tensor:
    """The same as `analytic.rnn_scan`, in one Triton kernel."""
    states: Tensor = _Scan.apply(activation, a_TNBH, h_NBH, R_NHH, mask_NBH, valid_TB1)
    return states
