"""A Triton kernel that adds up partial sums. Each program of another kernel stores the sum of its rows, and this kernel
adds them in a fixed order, so that the result is deterministic. The result of atomic additions is not.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.triton import device_of

ROWS, COLUMNS = 64, 32
"""The tile that a program holds at once."""


@triton.jit(do_not_specialize=["P"])
def _sum_rows(partial, output, P, E: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, P, ROWS):
        rows = start + tl.arange(0, ROWS)[:, None]
        total += tl.load(partial + rows * E + columns[None, :], (rows < P) & (columns[None, :] < E), 0.0)
    tl.store(output + columns, tl.sum(total, 0).to(output.dtype.element_ty), columns < E)


def sum_rows(partial_PE: Tensor, dtype: torch.dtype) -> Tensor:
    """Σ_p partial_p, added in float32."""
    count, width = partial_PE.shape
    output_E = torch.empty(width, dtype=dtype, device=partial_PE.device)
    with device_of(partial_PE):
        _sum_rows[(triton.cdiv(width, COLUMNS),)](partial_PE, output_E, count, width, ROWS, COLUMNS)
    return output_E
