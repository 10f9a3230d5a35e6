"""A sum over rows of logits without ever holding all logits: a part of the rows at a time, its gradient with it.

N rows, D width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard import plain
from regard.models.contracts import Decoded
from regard.plain import Gradients, differentiable_once

MOST_LOGITS = {"cpu": 1 << 21, "cuda": 1 << 26}
"""Logits that are held at once: on a CPU so many as stay in its cache."""

Part = Callable[..., Tensor]


def sum_of_parts(part: Part, decoded: Decoded, *sides: Tensor) -> Tensor:
    """Σ part(rows of each side), where `part` makes logits of the rows by the output layer."""
    rows = rows_at_once(decoded)
    if len(sides[0]) <= rows or plain.asked_for():
        return part(*sides)
    if not torch.is_grad_enabled():
        cut = zip(*(torch.split(side, rows) for side in sides), strict=True)
        return torch.stack([part(*own) for own in cut]).sum()
    total: Tensor = _Sum.apply(part, rows, len(sides), *sides, *decoded.weights)  # type: ignore[no-untyped-call]
    return total


def rows_at_once(decoded: Decoded) -> int:
    """Of how many rows the logits may be held."""
    return max(1, MOST_LOGITS.get(decoded.features.device.type, 1 << 26) // decoded.vocabulary)


class _Sum(torch.autograd.Function):
    """The gradient of each part is worked out right after it, while its logits are there; of the sum it is then a
    multiple.
    """

    @staticmethod
    def forward(ctx: Any, part: Part, rows: int, count: int, *given: Tensor) -> Tensor:
        wanted = [side.requires_grad for side in given[:count]]
        sides, weights = [side.detach() for side in given[:count]], given[count:]
        gradients = [torch.empty_like(side) if needed else None for side, needed in zip(sides, wanted, strict=True)]
        learned = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
        total = sides[0].new_zeros((), dtype=torch.float32)
        for start in range(0, len(sides[0]), rows):
            place = slice(start, start + rows)
            with torch.enable_grad():
                own = [side[place].requires_grad_(needed) for side, needed in zip(sides, wanted, strict=True)]
                value = part(*own)
                inputs = [side for side, needed in zip(own, wanted, strict=True) if needed]
                found = list(torch.autograd.grad(value, (*inputs, *weights), allow_unused=True, materialize_grads=True))
            total += value.detach()
            for gradient in gradients:
                if gradient is not None:
                    gradient[place] = found.pop(0)
            for sum_, grad in zip(learned, found, strict=True):
                sum_ += grad
        ctx.save_for_backward(*gradients, *learned)
        return total

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, scale: Tensor) -> Gradients:
        return None, None, None, *(None if saved is None else _scaled(saved, scale) for saved in ctx.saved_tensors)


def _scaled(x: Tensor, scale: Tensor) -> Tensor:
    """In the wider precision of both: one over many tokens is not to be rounded to half precision."""
    wide = torch.promote_types(x.dtype, scale.dtype)
    return (x.to(wide) * scale.to(wide)).to(x.dtype)
