"""Layer normalization (Ba et al. 2016) as in torch.nn, with Triton kernels for training on a GPU."""

from typing import final

import torch
from torch import Tensor, nn

from regard.ops import triton


@final
class LayerNorm(nn.LayerNorm):
    """w ⊙ (x − mean x) / √(var x + ε) + b.

    With `autocast_output`, the output has the autocast dtype. Use it if the output goes to matrix products only: it is
    cast once here instead of once per product.
    """

    def __init__(self, size: int, *, autocast_output: bool = False) -> None:
        super().__init__(size)
        self.autocast_output = autocast_output

    def forward(self, x: Tensor) -> Tensor:
        dtype = _autocast_dtype(x) if self.autocast_output else x.dtype
        if self.training and triton.is_usable(x):
            from regard.ops.triton.layer_norm import layer_norm

            return layer_norm(x, self.weight, self.bias, self.eps, dtype)
        return super().forward(x).to(dtype)


def _autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype to which autocast casts the input of a matrix product. It leaves float64 unchanged."""
    device = x.device.type
    is_cast = not x.is_meta and torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if is_cast else x.dtype
