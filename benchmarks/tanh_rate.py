"""The rate at which a GPU computes tanh: a Triton kernel that does nothing else, for `attention.py`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.triton.additive import APPROXIMATE, tanh

BLOCK = 512


@triton.jit  # type: ignore[untyped-decorator]
def _evaluate(x, output, repeats, APPROXIMATE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x + offset)
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in tl.range(0, repeats, loop_unroll_factor=4):
        total += tanh(y, APPROXIMATE)
        y += 0.25
    tl.store(output + offset, total)


def evaluate_tanh(x: Tensor, repeats: int, *, approximate: bool) -> None:
    """Compute tanh `repeats` times for each element, as the additive score does."""
    _evaluate[(len(x) // BLOCK,)](x, torch.empty_like(x), repeats, approximate and APPROXIMATE, BLOCK)
