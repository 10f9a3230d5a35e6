"""A linear layer with a Triton kernel for the gradients of its bias and of a ReLU. It reads the gradient of the output
once: dz = dy ⊙ [y > 0], db = Σ_n dz.

N rows, D inputs, E outputs.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.ops.triton import device_of
from regard.ops.triton.partial_sums import sum_rows

ROWS, COLUMNS = 32, 128
"""The tile that a program holds at once."""

TILES, PROGRAMS = 4, 1056
"""The minimum number of tiles of a program, and the maximum number of programs: eight for each multiprocessor of an
H100 or H200.
"""


@triton.jit(do_not_specialize=["N"])
def _bias_gradient(
    d_output, output, d_sum, partial, N, E: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RELU: tl.constexpr
):  # fmt: skip
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(tl.program_id(1) * ROWS, N, tl.num_programs(1) * ROWS):
        rows = start + tl.arange(0, ROWS)[:, None]
        inside = (rows < N) & (columns[None, :] < E)
        offsets = rows.to(tl.int64) * E + columns[None, :]
        d = tl.load(d_output + offsets, inside, 0.0)
        if RELU:
            d = tl.where(tl.load(output + offsets, inside, 0.0) > 0, d, 0.0).to(d.dtype)
            tl.store(d_sum + offsets, d, inside)
        total += d.to(tl.float32)
    tl.store(partial + tl.program_id(1) * E + columns, tl.sum(total, 0), columns < E)


def bias_gradient(d_output_NE: Tensor, output_NE: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gradient before the ReLU, if the output after it is given, and the gradient of the bias."""
    rows, width = d_output_NE.shape
    columns = triton.cdiv(width, COLUMNS)
    programs = max(1, min(triton.cdiv(rows, TILES * ROWS), PROGRAMS // columns))
    partial_PE = torch.empty(programs, width, dtype=torch.float32, device=d_output_NE.device)
    d_sum_NE = d_output_NE if output_NE is None else torch.empty_like(d_output_NE)
    with device_of(d_output_NE):
        _bias_gradient[(columns, programs)](
            d_output_NE, output_NE, d_sum_NE, partial_PE, rows, width, ROWS, COLUMNS, output_NE is not None
        )
    return d_sum_NE, sum_rows(partial_PE, d_output_NE.dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_ED: Tensor, bias_E: Tensor, relu: bool) -> Tensor:
        add_product = torch._addmm_activation if relu else torch.addmm
        output_NE: Tensor = add_product(bias_E, x_ND, weight_ED.t())
        ctx.save_for_backward(x_ND, weight_ED, output_NE if relu else None)
        return output_NE

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_output_NE: Tensor) -> Gradients:
        x_ND, weight_ED, output_NE = ctx.saved_tensors
        d_sum_NE, d_bias_E = bias_gradient(d_output_NE.contiguous(), output_NE)
        return d_sum_NE @ weight_ED, d_sum_NE.t() @ x_ND, d_bias_E, None


def linear(x: Tensor, weight_ED: Tensor, bias_E: Tensor, *, relu: bool) -> Tensor:
    """W x + b, or its ReLU, in the dtype of the weights."""
    with torch.autocast(x.device.type, enabled=False):
        output_NE: Tensor = _Linear.apply(x.flatten(0, -2).to(weight_ED.dtype), weight_ED, bias_E, relu)
    return output_NE.view(*x.shape[:-1], -1)
