"""Positional encodings: sinusoidal, also in two dimensions, learned and rotary.

T positions, S slots of a grid, D width.
"""

import math
from typing import final

import torch
from torch import Tensor, nn

from regard.arguments import check_integer
from regard.errors import ConfigError, DataError
from regard.ops import triton


def sinusoidal_positions(length: int, size: int, *, start: int = 0) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^{2i/d}), PE(p, 2i+1) = cos(p / 10000^{2i/d}) → (T, D) (Vaswani et al. 2017).

    PE(p + k) is a linear map of PE(p) that depends only on k: a rotation of each pair of dimensions.

    Args:
        length: The number of positions.
        size: The width, an even number.
        start: The first position.

    Returns:
        The vectors of the positions, (length, size).

    Raises:
        ConfigError: A number is negative, or the size is odd.
        ArgumentTypeError: A number is not an integer.

    >>> x = x + regard.sinusoidal_positions(x.shape[1], x.shape[2])
    """
    check_integer("length", length, minimum=0)
    check_integer("size", size)
    check_integer("start", start, minimum=0)
    if size % 2:
        raise ConfigError(f"Sinusoidal positions need an even size, not {size}: they are pairs of sine and cosine.")
    positions = torch.arange(start, start + length, dtype=torch.float64).unsqueeze(1)
    frequencies = torch.exp(torch.arange(0, size, 2, dtype=torch.float64) * (-math.log(10000.0) / size))
    angles = positions * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(torch.get_default_dtype())


def sinusoidal_grid_positions(height: int, width: int, size: int) -> Tensor:
    """Return [PE(row); PE(column)], each of size d/2, for the slots of a grid → (S, D) (Parmar et al. 2018)."""
    if size % 4:
        raise ConfigError(
            f"Sinusoidal positions in two dimensions need a size that is divisible by 4, not {size}: rows and columns "
            "each have pairs of sine and cosine."
        )
    rows_HD, columns_WD = sinusoidal_positions(height, size // 2), sinusoidal_positions(width, size // 2)
    return torch.cat([rows_HD.repeat_interleave(width, dim=0), columns_WD.repeat(height, 1)], dim=1)


@final
class LearnedPositions(nn.Module):
    """A learned vector for each position (Gehring et al. 2017), up to a fixed maximum length."""

    def __init__(self, length: int, size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(length, size).normal_(std=size**-0.5))

    def forward(self, positions: Tensor) -> Tensor:
        """Return the vectors of the given positions, (…) → (…, D)."""
        if positions.numel():
            self._check_position(int(positions.max()))
        return self.table[positions]

    def span(self, start: int, steps: int) -> Tensor:
        """Return the vectors of consecutive positions, (T, D), without synchronizing with the GPU."""
        self._check_position(start + steps - 1)
        return self.table[start : start + steps]

    def _check_position(self, position: int) -> None:
        if position >= self.table.shape[0]:
            raise DataError(
                f"Position {position} is out of range: the model has learned {self.table.shape[0]} positions. "
                "Truncate the sequence, or use sinusoidal or rotary positions."
            )


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021): rotate each pair of dimensions of x (…, T, D) by an angle ∝ its position.

    The dot product of a rotated query and a rotated key depends only on the two vectors and their distance.
    """
    size = x.shape[-1]
    if size % 2:
        raise ConfigError(f"Rotary positions need an even size, not {size}: they rotate pairs of dimensions.")
    exponents = torch.arange(0, size, 2, dtype=torch.float32, device=x.device) * (-math.log(10000.0) / size)
    angles = positions.unsqueeze(-1) * exponents.exp()
    sine, cosine = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1).flatten(-2)


def rotate_heads(x_BTD: Tensor, heads: int, start: int | Tensor) -> Tensor:
    """Rotate each head of x by the positions from `start` on, a number or (1,). On a GPU, one kernel does that."""
    if triton.is_usable(x_BTD):
        from regard.ops.triton import rotary as kernels

        if x_BTD.shape[-1] <= kernels.MAX_WIDTH and x_BTD.shape[-1] // heads % 2 == 0:
            return kernels.rotate_heads(x_BTD, heads, start)
    x_BTHD = x_BTD.unflatten(-1, (heads, -1))  # type: ignore[no-untyped-call]
    positions = start + torch.arange(x_BTD.shape[1], device=x_BTD.device)
    rotated: Tensor = rotate(x_BTHD.transpose(1, 2), positions).transpose(1, 2).flatten(-2)
    return rotated
