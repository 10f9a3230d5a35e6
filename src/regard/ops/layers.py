"""Layers as in torch.nn: dropout that is faster on a CPU, and layer normalization with a choice of the output dtype."""

from typing import final

import torch
from torch import Tensor, nn

_LEVELS = 1 << 16


@final
class Dropout(nn.Module):
    """Dropout (Srivastava et al. 2014): x ⊙ m / (1 − p), where each element of m is 0 with probability p, else 1.

    On a CPU, one random number of 64 bits is used for four elements, which is three times as fast; torch samples one
    number per element. p is then rounded to a multiple of 1/65536.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        if not x.is_cpu:
            return nn.functional.dropout(x, self.p)
        dropped = round(self.p * _LEVELS)
        random_bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        mask = random_bits.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - _LEVELS // 2
        return x * mask.to(x.dtype).mul_(_LEVELS / (_LEVELS - dropped))

    def extra_repr(self) -> str:
        return f"p={self.p}"


@final
class LayerNorm(nn.LayerNorm):
    """Layer normalization (Ba et al. 2016): w ⊙ (x − mean x) / √(var x + ε) + b.

    With `autocast_output`, the output has the autocast dtype. Use it if the output goes to matrix products only: it is
    cast once here instead of once per product.
    """

    def __init__(self, size: int, *, autocast_output: bool = False) -> None:
        super().__init__(size)
        self.autocast_output = autocast_output

    def forward(self, x: Tensor) -> Tensor:
        dtype = _autocast_dtype(x) if self.autocast_output else x.dtype
        return super().forward(x).to(dtype)


def _autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype to which autocast casts the input of a matrix product. It leaves float64 unchanged."""
    device = x.device.type
    is_cast = not x.is_meta and torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if is_cast else x.dtype
