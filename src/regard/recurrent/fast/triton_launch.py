"""Run all steps of a recurrent cell in one Triton kernel for each of forward and backward.

A group of programs, one per multiprocessor, runs some rows of one cell. Each program owns some units. Its columns of R
stay in shared memory for all steps, if they fit. At each step it multiplies them by the complete output of the previous
step, computes its gates, writes its units, and waits until all programs of the group have done so. All programs of a
launch must therefore be resident at the same time: a launch has at most one per multiprocessor.

float32 products use the precision of torch's recurrent kernels (`torch.backends.cudnn.rnn.fp32_precision`): TF32 by
default, otherwise three TF32 products, which have the precision of float32.
"""

import os
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.triton import device_of

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
"""The interpreter runs programs one after another, so none can wait for another: a group has one program."""

UNSPECIALIZED = ["cell_0", "T", "N", "B", "programs", "row_groups"]
"""Sizes that change from batch to batch. Kernels are not recompiled for them."""

ROWS, CHUNK = tl.constexpr(16), tl.constexpr(256)
"""Rows that a program computes at once, and elements of a product that it multiplies at once."""

WARPS = 4

SLICES_PER_UNIT = 4
"""The slices of a product with one column for each unit; see `multiply`."""

SHARED_BYTES = 224 * 1024
"""Shared memory of a multiprocessor of compute capability 9.0."""

MAX_LOADED_BYTES = 96 * 1024
"""The size of the chunks of a product that are loaded at once, limited by the number of registers."""

MAX_PROGRAMS = tl.constexpr(256)
"""Programs of a group are fewer than this."""


@triton.jit
def tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def locate_program(cell_0, programs, row_groups, UNITS: tl.constexpr):
    """Return the group of this program, its first block of rows, its cell, and its units."""
    group = tl.program_id(0) // programs
    unit = tl.program_id(0) % programs * UNITS + tl.arange(0, UNITS)
    return cell_0 * row_groups + group, group % row_groups, cell_0 + group // row_groups, unit


@triton.jit
def locate_rows(block, B, unit_ok):
    """Return the rows of a block, which of them exist, and which elements of a tile (rows, units) exist."""
    row = block * ROWS + tl.arange(0, ROWS)
    return row, row < B, (row < B)[:, None] & unit_ok[None, :]


@triton.jit
def wait_for_group(counter, target):
    """Wait until all programs of the group reach this point. Their earlier writes are then visible."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release")
    if not INTERPRETED:
        while _read_counter(counter) < target:
            pass
    tl.debug_barrier()


@triton.jit
def _read_counter(counter):
    return tl.inline_asm_elementwise(
        "ld.acquire.gpu.global.s32 $0, [$1];", "=r,l", [counter.to(tl.int64)], tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _load_tile(columns, strides, lengths, chunk, CHUNKS: tl.constexpr, SLICES: tl.constexpr):
    """Load a chunk of each slice of K, (CHUNK, SLICES · columns)."""
    k = chunk * CHUNK + tl.arange(0, CHUNK)
    size: tl.constexpr = CHUNKS // SLICES * CHUNK
    COLUMNS: tl.constexpr = columns.shape[0]
    slice_k = tl.arange(0, SLICES)[None, :, None] * size + k[:, None, None]
    ok = slice_k < lengths[None, None, :]
    tile = tl.load(columns[None, None, :] + slice_k * strides[None, None, :], ok, 0.0)
    return tl.reshape(tile, (CHUNK, SLICES * COLUMNS))


@triton.jit
def load_matrix(columns, strides, lengths, CHUNKS: tl.constexpr, SLICES: tl.constexpr, RESIDENT: tl.constexpr):
    """Return the columns of a matrix in chunks, which stay in shared memory. Each column has a pointer to its first
    element, the distance between two of them, and their number.
    """
    tiles = ()
    if RESIDENT:
        for chunk in tl.static_range(CHUNKS // SLICES):
            tiles = tiles + (_load_tile(columns, strides, lengths, chunk, CHUNKS, SLICES),)  # type: ignore[assignment] # noqa: RUF005
    return tiles


@triton.jit
def _load_rows(x, first_row, B, stride, K, chunk, CHUNKS: tl.constexpr, SLICES: tl.constexpr):
    """Load a chunk of each slice of x (rows, K), (SLICES · rows, CHUNK). Other programs have written it, so it must not
    come from the first-level cache.
    """
    m = tl.arange(0, SLICES * ROWS)
    row = first_row + m % ROWS
    k = (m // ROWS)[:, None] * (CHUNKS // SLICES * CHUNK) + chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
    return tl.load(x + row[:, None] * stride + k, (row < B)[:, None] & (k < K), 0.0, cache_modifier=".cg")


@triton.jit
def multiply(
    x, first_row, B, stride, K, mask, tiles, columns, strides, lengths,
    HAS_MASK: tl.constexpr, CHUNKS: tl.constexpr, SLICES: tl.constexpr, GROUP: tl.constexpr, RESIDENT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return m · matrix (rows, columns), where m is x (rows, K) with its dropout mask applied.

    A product of 16 rows and few columns would occupy one warp. K is therefore split into slices, which are stacked
    along the rows of x and along the columns of the matrix. Only the blocks on the diagonal of this product are used.
    """
    COLUMNS: tl.constexpr = columns.shape[0]
    total = tl.zeros((SLICES * ROWS, SLICES * COLUMNS), tl.float32)
    if not RESIDENT:
        for chunk in range(CHUNKS // SLICES):
            loaded = _load_rows(x, first_row, B, stride, K, chunk, CHUNKS, SLICES)
            if HAS_MASK:
                loaded = loaded * _load_rows(mask, first_row, B, stride, K, chunk, CHUNKS, SLICES)
            tile = _load_tile(columns, strides, lengths, chunk, CHUNKS, SLICES)
            total = tl.dot(loaded, tile, total, input_precision=PRECISION)
    else:
        for first in tl.static_range(0, CHUNKS // SLICES, GROUP):
            # The loads of a group are issued before its products.
            chunks = ()
            for chunk in tl.static_range(first, first + GROUP):
                if chunk < CHUNKS // SLICES:
                    loaded = _load_rows(x, first_row, B, stride, K, chunk, CHUNKS, SLICES)
                    if HAS_MASK:
                        loaded = loaded * _load_rows(mask, first_row, B, stride, K, chunk, CHUNKS, SLICES)
                    chunks = chunks + (loaded,)  # type: ignore[assignment] # noqa: RUF005
            for chunk in tl.static_range(first, first + GROUP):
                if chunk < CHUNKS // SLICES:
                    total = tl.dot(chunks[chunk - first], tiles[chunk], total, input_precision=PRECISION)
    if SLICES > 1:
        row_slice, column_slice = tl.arange(0, SLICES * ROWS) // ROWS, tl.arange(0, SLICES * COLUMNS) // COLUMNS
        total = tl.where(row_slice[:, None] == column_slice[None, :], total, 0.0)
        total = tl.sum(tl.sum(tl.reshape(total, (SLICES, ROWS, SLICES, COLUMNS)), 2), 0)
    return total


@triton.jit
def exchange_sums(sums, counter, target, row, row_ok, programs, first, second):
    """Return the sums of two tiles over the columns of all programs of the group, (rows, 1) each. `sums` is (rows,
    programs, 2).
    """
    own = sums + (row * programs + tl.program_id(0) % programs) * 2
    tl.store(own, tl.sum(first, 1), row_ok)
    tl.store(own + 1, tl.sum(second, 1), row_ok)
    wait_for_group(counter, target)
    program = tl.arange(0, MAX_PROGRAMS)
    ok = row_ok[:, None] & (program < programs)[None, :]
    all_sums = sums + (row[:, None] * programs + program[None, :]) * 2
    first, second = (
        tl.load(all_sums, ok, 0.0, cache_modifier=".cg"),
        tl.load(all_sums + 1, ok, 0.0, cache_modifier=".cg"),
    )
    return tl.sum(first, 1)[:, None], tl.sum(second, 1)[:, None]


@triton.jit
def split_gates(total, UNITS: tl.constexpr):
    """(rows, 4 units) → four tiles (rows, units)."""
    apart = tl.permute(tl.reshape(total, (ROWS, 4, UNITS)), (0, 2, 1))
    even, odd = tl.split(tl.reshape(apart, (ROWS, UNITS, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


class Grid(NamedTuple):
    """How a kernel is launched: units of a program, programs of a group, groups of a cell, and cells of a launch;
    whether the weights stay in shared memory, and how many chunks of a product are loaded at once.
    """

    units: int
    programs: int
    row_groups: int
    cells: int
    resident: bool
    group: int

    @classmethod
    def choose(cls, sizes: tuple[int, int, int, int], unit_bytes: int, chunk_bytes: int, processors: int) -> "Grid":
        """Choose the grid for sizes (T, N, B, H), weights of `unit_bytes` and chunks of `chunk_bytes`."""
        _, cells, rows, size = sizes
        units = 16 if 16 * unit_bytes + chunk_bytes <= SHARED_BYTES else 8
        while triton.cdiv(size, units) > processors:
            units *= 2
        free_bytes = SHARED_BYTES - units * unit_bytes
        resident = free_bytes >= chunk_bytes
        group = max(1, min(MAX_LOADED_BYTES, free_bytes if resident else SHARED_BYTES) // chunk_bytes)
        programs = triton.cdiv(size, units)
        cells = max(1, min(cells, processors // programs))
        row_groups = max(1, min(triton.cdiv(rows, ROWS.value), processors // (programs * cells)))
        return cls(units, programs, row_groups, cells, resident, group)


def launch(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    sizes: tuple[int, int, int, int],
    *,
    weights: int,
    slices: int,
    **constants: Any,
) -> None:
    """Run a kernel for sizes (T, N, B, H), in several launches if not all programs can be resident at the same time.

    A unit has `weights` elements of the matrices. Products are split into `slices`.
    """
    steps, cells, rows, size = sizes
    tf32 = getattr(torch.backends.cudnn.rnn, "fp32_precision", None) == "tf32"
    # Three TF32 products need the high and the low bits of each operand.
    device, element = tensors[0].device, tensors[0].element_size()
    element *= 2 if tensors[0].dtype == torch.float32 and not tf32 else 1
    processors = 1 if INTERPRETED.value else torch.cuda.get_device_properties(device).multi_processor_count
    grid = Grid.choose(sizes, weights * element, slices * CHUNK.value * ROWS.value * element, processors)
    counters = torch.zeros(cells * grid.row_groups, dtype=torch.int32, device=device)
    options = {} if INTERPRETED.value else {"num_warps": WARPS, "num_stages": 1, "launch_cooperative_grid": True}
    for first in range(0, cells, grid.cells):
        with device_of(counters):
            kernel[(min(grid.cells, cells - first) * grid.row_groups * grid.programs,)](
                *tensors, counters, first, steps, cells, rows, size, grid.programs, grid.row_groups,
                SLICES=slices, GROUP=grid.group, RESIDENT=grid.resident, UNITS=grid.units,
                PRECISION="tf32" if tf32 else "tf32x3", **constants, **options,
            )  # fmt: skip


def count_chunks(size: int, slices: int = 1) -> int:
    """Return the number of chunks of a product over this many elements, a multiple of `slices`."""
    return int(triton.cdiv(size, slices * CHUNK.value)) * slices


def contiguous_or(tensor: Tensor | None, unused: Tensor) -> Tensor:
    """Return a contiguous tensor, or the placeholder `unused` for None, because kernels cannot receive None."""
    return unused if tensor is None else tensor.contiguous()
