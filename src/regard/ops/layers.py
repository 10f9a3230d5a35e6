"""Layers as in torch.nn: linear layers and residual connections that are faster on a GPU, dropout that is faster on a
CPU, and layer normalization with a choice of the output dtype.
"""

from typing import final

import torch
from torch import Tensor, nn

from regard.ops import triton

_LEVELS = 1 << 16

MAX_KERNEL_WIDTH = 4096
"""The largest width for which the kernels of residual connections are used: a program holds whole rows."""


@final
class Linear(nn.Linear):
    """W x + b, as `torch.nn.Linear`, or max(0, W x + b).

    Only matrix products may read its weights: with CUDA graphs and bfloat16, training replaces them with copies that
    are cast once per step (`training/cuda_graphs.py`).
    """

    def forward(self, x: Tensor, *, relu: bool = False) -> Tensor:
        return linear(x, self.weight, self.bias, relu=relu)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
    """W x + b, or its ReLU. With weights in half precision on a GPU, a kernel computes the gradient of the bias."""
    is_half = weight.dtype in {torch.bfloat16, torch.float16}
    if bias is not None and is_half and torch.is_grad_enabled() and triton.is_usable(x):
        from regard.ops.triton import linear as kernels

        return kernels.linear(x, weight, bias, relu=relu)
    output = nn.functional.linear(x, weight, bias)
    return torch.relu(output) if relu else output


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

    def __init__(self, size: int, *, eps: float = 1e-5, autocast_output: bool = False) -> None:
        super().__init__(size, eps=eps)
        self.autocast_output = autocast_output

    def forward(self, x: Tensor) -> Tensor:
        dtype = _autocast_dtype(x) if self.autocast_output else x.dtype
        if dtype != x.dtype and _uses_kernels(x):
            from regard.ops.triton import norms as kernels

            return kernels.add_norm(x, None, self.weight, self.bias, dropout=0.0, eps=self.eps, dtype=dtype)
        return super().forward(x).to(dtype)


def add_norm(x: Tensor, update: Tensor, norm: nn.Module, dropout: Dropout) -> Tensor:
    """norm(x + dropout(update)): the residual connection of post-norm.

    On a GPU, one kernel computes it if the norm is a `LayerNorm`, and the output has the autocast dtype: it goes to
    matrix products, and to the next residual connection, which normalizes it again.
    """
    if isinstance(norm, LayerNorm) and _uses_kernels(update):
        from regard.ops.triton import norms as kernels

        probability, dtype = dropout.p if dropout.training else 0.0, _autocast_dtype(x)
        return kernels.add_norm(x, update, norm.weight, norm.bias, dropout=probability, eps=norm.eps, dtype=dtype)
    output: Tensor = norm(x + dropout(update))
    return output


def add_dropout(x: Tensor, update: Tensor, dropout: Dropout) -> Tensor:
    """Return x + dropout(update): the residual connection of pre-norm. On a GPU, one kernel computes it."""
    if dropout.training and dropout.p and x.dtype == torch.float32 and _uses_kernels(update):
        from regard.ops.triton import norms as kernels

        return kernels.add_dropout(x, update, dropout=dropout.p)
    output: Tensor = x + dropout(update)
    return output


def _uses_kernels(x: Tensor) -> bool:
    """Whether the kernels of residual connections are used: in training on a GPU, if a program can hold a row."""
    return torch.is_grad_enabled() and x.shape[-1] <= MAX_KERNEL_WIDTH and triton.is_usable(x)


def _autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype to which autocast casts the input of a matrix product. It leaves float64 unchanged."""
    device = x.device.type
    is_cast = not x.is_meta and torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if is_cast else x.dtype
