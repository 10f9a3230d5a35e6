"""Launch Triton kernels that run all steps of a recurrent cell.

Rows are independent of each other, so a block of rows of one cell forms a group of programs. Each program of a group
owns some units. At each step it multiplies its columns of R with the complete output of the previous step, computes its
gates, writes its units, and waits until all programs of the group have done so. All programs of a launch must therefore
be resident at the same time: a launch has at most one or two per multiprocessor.

float32 products use the precision of torch's recurrent kernels (`torch.backends.cudnn.rnn.fp32_precision`): TF32 by
default, otherwise three TF32 products, which have the precision of float32.
"""

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.triton import device_of

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""The interpreter runs programs one after another, so none can wait for another: a group has one program."""

UNSPECIALIZED = ["group_0", "T", "N", "B", "programs"]
"""Sizes that change from batch to batch. Kernels are not recompiled for them."""

UNITS = 16


@triton.jit
def tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def locate_program(group_0, programs, B, ROWS: tl.constexpr):
    """Return the index of this program in its group, the group, its cell and rows, and which of these rows exist."""
    member = tl.program_id(0) % programs
    group = group_0 + tl.program_id(0) // programs
    row_blocks = tl.cdiv(B, ROWS)
    row = (group % row_blocks) * ROWS + tl.arange(0, ROWS)
    return member, group, group // row_blocks, row, row < B


@triton.jit
def wait_for_group(counter, target):
    """Wait until all programs of the group reach this point. Their earlier writes are then visible."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release")
    while tl.atomic_add(counter, 0, sem="acquire") < target:
        pass
    tl.debug_barrier()


@triton.jit
def multiply(
    total, x, x_row, matrix, columns, n_columns_ok, K, row, row_ok, mask, mask_row,
    HAS_MASK: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return total + x · matrixᵀ. `columns` holds the offset of the matrix row for each column of the total."""
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        k_ok = k < K
        masked = tl.load(
            x + row[:, None] * x_row + k[None, :], row_ok[:, None] & k_ok[None, :], 0.0, cache_modifier=".cg"
        )
        if HAS_MASK:
            masked = masked * tl.load(mask + row[:, None] * mask_row + k[None, :], row_ok[:, None] & k_ok[None, :], 0.0)
        tile = tl.load(matrix + columns[None, :] + k[:, None], n_columns_ok[None, :] & k_ok[:, None], 0.0)
        total = tl.dot(masked, tile, total, input_precision=PRECISION)
    return total


def launch(kernel: Any, tensors: tuple[Tensor, ...], sizes: tuple[int, int, int, int], **constants: Any) -> None:
    """Run a kernel for sizes (T, N, B, H), in several launches if not all programs can be resident at the same time."""
    steps, cells, rows, size = sizes
    row_block = min(64, max(16, triton.next_power_of_2(rows)))
    groups = cells * triton.cdiv(rows, row_block)
    device = tensors[0].device
    max_programs = 1 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count
    max_programs *= 2 if row_block == 16 and not INTERPRETED else 1
    programs = min(triton.cdiv(size, UNITS), max_programs)
    groups_per_launch = max_programs // programs
    counters = torch.zeros(groups, dtype=torch.int32, device=device)
    tf32 = getattr(torch.backends.cudnn.rnn, "fp32_precision", None) == "tf32"
    options = {} if INTERPRETED else {"num_warps": 4, "num_stages": 3, "launch_cooperative_grid": True}
    for first in range(0, groups, groups_per_launch):
        with device_of(counters):
            kernel[(min(groups_per_launch, groups - first) * programs,)](
                *tensors,
                counters,
                first,
                steps,
                cells,
                rows,
                size,
                programs,
                ROWS=row_block,
                UNITS=UNITS,
                BLOCK_K=256 // tensors[0].element_size(),  # limited by the size of shared memory
                PRECISION="tf32" if tf32 else "tf32x3",
                **constants,
                **options,
            )


def contiguous_or(tensor: Tensor | None, unused: Tensor) -> Tensor:
    """Return a contiguous tensor, or the placeholder `unused` for None, because kernels cannot receive None."""
    return unused if tensor is None else tensor.contiguous()
