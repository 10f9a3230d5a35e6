"""A small convolutional network.

B rows, D channels, H and W height and width.
"""

from typing import final

import torch
from torch import Tensor, nn

from regard.models.contracts import Grid
from regard.models.settings import ConvolutionalEncoderSettings
from regard.models.vision.encoder import Backbone, flatten_grid

_GROUP = 8
"""The number of channels that are normalized together."""


@final
class ConvolutionalNetwork(Backbone):
    """Stages of convolutions. The first of each stage halves the resolution; the others have a residual connection.

    Each is followed by group normalization (Wu and He 2018), which does not depend on the other images of a batch, and
    ReLU.
    """

    def __init__(self, settings: ConvolutionalEncoderSettings) -> None:
        super().__init__(settings.height, settings.width, Grid(*settings.grid_shape), settings.memory_size)
        inputs = (3, *settings.channels[:-1])
        self.stages = nn.Sequential(
            *(_build_stage(*pair, settings.depth) for pair in zip(inputs, settings.channels, strict=True))
        )
        self.pooling = nn.Identity() if settings.grid is None else AveragePooling(settings.map_shape, settings.grid)

    def annotate(self, pixels_B3HW: Tensor) -> Tensor:
        return flatten_grid(self.pooling(self.stages(pixels_B3HW / 127.5 - 1)))


@final
class AveragePooling(nn.Module):
    """The average of each cell of a grid that covers the input, like `nn.AdaptiveAvgPool2d`.

    It is computed by products with matrices of zeros and ones. On a GPU, the gradients of `AdaptiveAvgPool2d` are not
    deterministic.
    """

    rows_YH: Tensor
    columns_WX: Tensor

    def __init__(self, shape: tuple[int, int], grid: tuple[int, int]) -> None:
        super().__init__()
        self.register_buffer("rows_YH", _assign_cells(shape[0], grid[0]), persistent=False)
        self.register_buffer("columns_WX", _assign_cells(shape[1], grid[1]).T, persistent=False)

    def forward(self, x_BDHW: Tensor) -> Tensor:
        """Return the averages (B, D, Y, X) of a grid with Y rows and X columns."""
        sums_BDYX = self.rows_YH.to(x_BDHW.dtype) @ x_BDHW @ self.columns_WX.to(x_BDHW.dtype)
        return sums_BDYX / (self.rows_YH.sum(1, keepdim=True) * self.columns_WX.sum(0)).to(sums_BDYX.dtype)


def _assign_cells(inputs: int, cells: int) -> Tensor:
    """Return a matrix with a one if an input belongs to a cell. Unless `cells` divides `inputs`, cells overlap."""
    cell_C1, input_I = torch.arange(cells).unsqueeze(1), torch.arange(inputs)
    first_C1, end_C1 = cell_C1 * inputs // cells, -(-(cell_C1 + 1) * inputs // cells)
    return ((first_C1 <= input_I) & (input_I < end_C1)).float()


@final
class ConvolutionBlock(nn.Module):
    """ReLU(norm(W ∗ x)), plus x if the resolution and the number of channels stay the same."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, channels, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(1 if channels % _GROUP else channels // _GROUP, channels)
        self.residual = stride == 1 and inputs == channels

    def forward(self, x_BDHW: Tensor) -> Tensor:
        output = torch.relu(self.norm(self.convolution(x_BDHW)))
        return x_BDHW + output if self.residual else output


def _build_stage(inputs: int, channels: int, depth: int) -> nn.Sequential:
    first = ConvolutionBlock(inputs, channels, stride=2)
    return nn.Sequential(first, *(ConvolutionBlock(channels, channels, stride=1) for _ in range(depth - 1)))
