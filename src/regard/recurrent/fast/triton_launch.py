"""All steps of a recurrent cell in one Triton kernel.

Rows do not depend on each other, so a block of rows of one cell is a group by itself. Within a group each program
owns some units: at each step it multiplies its columns of R with the whole output of the step before, opens its
gates, writes its units, and waits until all programs of the group have done so. All programs of a launch must
therefore be running at once: there are at most one or two for each of the device's multiprocessors.

Products of float32 matrices are as exact as torch's own recurrent kernels are told to make them
(`torch.backends.cudnn.rnn.fp32_precision`): with TF32 by default, else with three of them, which is float32's own
precision.
"""

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.triton import device_of

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Programs then run one after another, and none can wait for the next: a group has a single one."""

VARYING = ["group_0", "T", "N", "B", "programs"]
"""Sizes that change from batch to batch: no kernel is compiled anew for them."""

UNITS = 16


@triton.jit
def tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def place(group_0, programs, B, ROWS: tl.constexpr):
    """Which member of which group a program is; the group's cell, its rows, and which of them there are."""
    member = tl.program_id(0) % programs
    group = group_0 + tl.program_id(0) // programs
    row_blocks = tl.cdiv(B, ROWS)
    row = (group % row_blocks) * ROWS + tl.arange(0, ROWS)
    return member, group, group // row_blocks, row, row < B


@triton.jit
def wait(counter, target):
    """Return when all programs of the group have come here; what they wrote before can then be read."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release")
    while tl.atomic_add(counter, 0, sem="acquire") < target:
        pass
    tl.debug_barrier()


@triton.jit
def multiply(
    total, x, x_row, matrix, columns, n_columns_ok, K, row, row_ok, keep, keep_row,
    KEEP: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Total + x · matrixᵀ; `columns` are where the rows of the matrix begin that make the columns of the total."""
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        k_ok = k < K
        seen = tl.load(
            x + row[:, None] * x_row + k[None, :], row_ok[:, None] & k_ok[None, :], 0.0, cache_modifier=".cg"
        )
        if KEEP:
            seen = seen * tl.load(keep + row[:, None] * keep_row + k[None, :], row_ok[:, None] & k_ok[None, :], 0.0)
        tile = tl.load(matrix + columns[None, :] + k[:, None], n_columns_ok[None, :] & k_ok[:, None], 0.0)
        total = tl.dot(seen, tile, total, input_precision=PRECISION)
    return total


def launch(kernel: Any, tensors: tuple[Tensor, ...], sizes: tuple[int, int, int, int], **constants: Any) -> None:
    """Run a kernel for (T, N, B, H), in as many goes as it takes for all programs of a go to run at once."""
    steps, cells, rows, size = sizes
    row_block = min(64, max(16, triton.next_power_of_2(rows)))
    groups = cells * triton.cdiv(rows, row_block)
    device = tensors[0].device
    room = 1 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count
    room *= 2 if row_block == 16 and not INTERPRETED else 1
    programs = min(triton.cdiv(size, UNITS), room)
    at_once = room // programs
    counters = torch.zeros(groups, dtype=torch.int32, device=device)
    tf32 = getattr(torch.backends.cudnn.rnn, "fp32_precision", None) == "tf32"
    options = {} if INTERPRETED else {"num_warps": 4, "num_stages": 3, "launch_cooperative_grid": True}
    for first in range(0, groups, at_once):
        with device_of(counters):
            kernel[(min(at_once, groups - first) * programs,)](
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
                BLOCK_K=256 // tensors[0].element_size(),  # what shared memory has room for
                PRECISION="tf32" if tf32 else "tf32x3",
                **constants,
                **options,
            )


def or_unused(tensor: Tensor | None, unused: Tensor) -> Tensor:
    return unused if tensor is None else tensor.contiguous()
