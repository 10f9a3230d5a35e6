"""Positions: where a token stands, told to a model that would not know.

T positions, D width.
"""

import math
from typing import final

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, DataError


def sinusoidal_positions(length: int, size: int, *, start: int = 0) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^{2i/d}), PE(p, 2i+1) = cos(p / 10000^{2i/d}) → (T, D) (Vaswani et al. 2017).

    PE(p + k) is a linear map of PE(p) that depends on k alone: a rotation in each pair of dimensions.
    """
    if size % 2:
        raise ConfigError(f"Sinusoidal positions come in pairs of sine and cosine: the size {size} must be even.")
    positions = torch.arange(start, start + length, dtype=torch.float64).unsqueeze(1)
    frequencies = torch.exp(torch.arange(0, size, 2, dtype=torch.float64) * (-math.log(10000.0) / size))
    angles = positions * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(torch.get_default_dtype())


@final
class LearnedPositions(nn.Module):
    """A vector for each position, learned (Gehring et al. 2017); the longest sequence is fixed at the start."""

    def __init__(self, length: int, size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(length, size).normal_(std=size**-0.5))

    def forward(self, positions: Tensor) -> Tensor:
        """The vectors of the given positions, (…) → (…, D)."""
        if positions.numel():
            self._see_that_it_is_known(int(positions.max()))
        return self.table[positions]

    def span(self, start: int, steps: int) -> Tensor:
        """The vectors of so many positions from one on, (T, D); no device is asked."""
        self._see_that_it_is_known(start + steps - 1)
        return self.table[start : start + steps]

    def _see_that_it_is_known(self, position: int) -> None:
        if position >= self.table.shape[0]:
            raise DataError(
                f"Position {position} is beyond the {self.table.shape[0]} that were learned. "
                "Cut the sequence, or take sinusoidal or rotary positions."
            )


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021): each pair of dimensions of x (…, T, D) turned by its position's angle.

    The dot product of a rotated query and a rotated key depends on the two vectors and their distance alone.
    """
    size = x.shape[-1]
    if size % 2:
        raise ConfigError(f"Rotary positions turn pairs of dimensions: the size {size} must be even.")
    exponents = torch.arange(0, size, 2, dtype=torch.float32, device=x.device) * (-math.log(10000.0) / size)
    angles = positions.unsqueeze(-1) * exponents.exp()
    sine, cosine = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1).flatten(-2)
