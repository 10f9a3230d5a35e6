"""Layer normalization (Ba et al. 2016) as in torch.nn, and in training on a GPU in one kernel each way."""

from typing import final

import torch
from torch import Tensor, nn

from regard.ops import triton


@final
class LayerNorm(nn.LayerNorm):
    """w ⊙ (x − mean x) / √(var x + ε) + b.

    What goes into matrix products alone (`for_products`) is halved here once where they are worked out in half
    precision, and not by each of them.
    """

    def __init__(self, size: int, *, for_products: bool = False) -> None:
        super().__init__(size)
        self.for_products = for_products

    def forward(self, x: Tensor) -> Tensor:
        dtype = _of_products(x) if self.for_products else x.dtype
        if self.training and triton.is_usable(x):
            from regard.ops.triton.layer_norm import layer_norm

            return layer_norm(x, self.weight, self.bias, self.eps, dtype)
        return super().forward(x).to(dtype)


def _of_products(x: Tensor) -> torch.dtype:
    """The precision in which a matrix product takes a tensor; float64 stays what it is."""
    kind = x.device.type
    halved = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if halved else x.dtype
