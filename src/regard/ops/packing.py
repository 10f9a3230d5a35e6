"""Projections that are packed in one tensor: split it without copies, forward and backward.

B rows, T positions, H heads, D width of a head, E = H D width of a projection.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.ops import triton
from regard.ops.reference_mode import Gradients, differentiable_once


def unpack(packed: Tensor, count: int) -> tuple[Tensor, ...]:
    """Split (B, T, count · E) into `count` tensors (B, T, E), which are views.

    Autograd would concatenate their gradients. If these are views of one tensor too (`allocate_gradients`), that tensor
    is the gradient.
    """
    if not triton.is_usable(packed):
        return packed.chunk(count, dim=-1)
    parts: tuple[Tensor, ...] = _Unpack.apply(packed, count)  # type: ignore[no-untyped-call]
    return parts


class _Unpack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, count: int) -> tuple[Tensor, ...]:
        del ctx
        return packed.chunk(count, dim=-1)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        del ctx
        (rows, steps, width), packed_width = grads[0].shape, grads[0].shape[-1] * len(grads)
        packed = (rows, steps, packed_width), (steps * packed_width, packed_width, 1)
        if _are_adjacent(grads, width) and all(grad.stride() == packed[1] for grad in grads):
            return grads[0].as_strided(*packed), None
        return torch.cat(grads, dim=-1), None


def allocate_gradients(query_BHTD: Tensor, keys_BHSD: Tensor, values_BHSD: Tensor) -> tuple[Tensor, ...]:
    """Allocate gradients such that the heads of a position are contiguous. Those of tensors that were unpacked from one
    tensor are views of one tensor again.
    """
    inputs = query_BHTD, keys_BHSD, values_BHSD
    for packed in (3, 2):
        parts = inputs[-packed:]
        rows, heads, length, width = parts[0].shape
        if len({part.shape for part in parts}) == 1 and _are_adjacent(parts, heads * width):
            whole = parts[0].new_empty(rows, length, packed, heads, width).permute(2, 0, 3, 1, 4)
            return *map(allocate_heads, inputs[:-packed]), *whole
    return tuple(map(allocate_heads, inputs))


def allocate_heads(like_BHTD: Tensor, width: int | None = None) -> Tensor:
    """Allocate a tensor of this shape, or of another width, such that the heads of a position are contiguous."""
    rows, heads, length, like_width = like_BHTD.shape
    return like_BHTD.new_empty(rows, length, heads, width or like_width).transpose(1, 2)


def _are_adjacent(tensors: Sequence[Tensor], distance: int) -> bool:
    """Whether tensors are views of one storage, each this many elements after the one before."""
    first = tensors[0]
    return all(
        tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and tensor.storage_offset() == first.storage_offset() + index * distance
        for index, tensor in enumerate(tensors)
    )
