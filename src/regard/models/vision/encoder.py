"""The encoder of images: a backbone, which computes a grid of annotations, and what is applied to them.

B rows, H and W height and width, S slots, D width.
"""

from abc import ABC, abstractmethod
from typing import Self, final

import torch
from torch import Tensor, nn

from regard.attention.positions import LearnedPositions, sinusoidal_grid_positions
from regard.errors import DataError
from regard.models.contracts import Encoder, FrozenPart, Grid, Memory
from regard.models.settings import IMAGE, Positions
from regard.models.vision.sources import Features, ImageSource, Pixels
from regard.ops.cost import CostPart


class Backbone(nn.Module, ABC):
    """Pixels from 0 to 255 → annotations, a vector for each cell of a grid, row by row."""

    def __init__(self, height: int, width: int, grid: Grid, size: int) -> None:
        super().__init__()
        self.image_shape = (3, height, width)
        self.grid = grid
        self.size = size

    def forward(self, pixels_B3HW: Tensor) -> Tensor:
        """Return the annotations (B, S, D)."""
        if pixels_B3HW.shape[1:] != self.image_shape:
            expected, actual = (" × ".join(map(str, shape)) for shape in (self.image_shape, pixels_B3HW.shape[1:]))
            raise DataError(f"The model reads images of the shape {expected}, not {actual}. Resize the images.")
        return self.annotate(pixels_B3HW.to(next(self.parameters()).dtype))

    @abstractmethod
    def annotate(self, pixels_B3HW: Tensor) -> Tensor:
        """Return the annotations (B, S, D) of floating-point pixels."""

    def load_pretrained(self) -> None:
        """Load pretrained weights, if there are any."""


class PretrainedBackbone(Backbone, ABC):
    """A network with pretrained weights. It stays in evaluation mode, so that its batch normalization uses the
    statistics of its own training data. A frozen one has no gradients.
    """

    def __init__(self, height: int, width: int, grid: Grid, size: int, *, frozen: bool) -> None:
        super().__init__(height, width, grid, size)
        self.frozen = frozen

    @abstractmethod
    def compute_map(self, pixels_B3HW: Tensor) -> Tensor:
        """Return the feature map of floating-point pixels (B, D, rows, columns)."""

    @final
    def annotate(self, pixels_B3HW: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return flatten_grid(self.compute_map(pixels_B3HW))

    @final
    def train(self, mode: bool = True) -> Self:
        del mode
        return super().train(False)


def flatten_grid(map_BDHW: Tensor) -> Tensor:
    """Return the cells of a feature map as slots, row by row → (B, S, D)."""
    return map_BDHW.flatten(2).transpose(1, 2)


@final
class GridPositions(nn.Module):
    """Adds a vector to each slot of a grid: sinusoidal in two dimensions, or learned."""

    sinusoids_SD: Tensor

    def __init__(self, kind: Positions, grid: Grid, size: int) -> None:
        super().__init__()
        self.learned = LearnedPositions(grid.height * grid.width, size) if kind == "learned" else None
        self.has_sinusoids = kind == "sinusoidal"
        if self.has_sinusoids:
            self.register_buffer("sinusoids_SD", sinusoidal_grid_positions(*grid, size), persistent=False)

    def forward(self, slots_BSD: Tensor) -> Tensor:
        if self.learned is not None:
            return slots_BSD + self.learned.table
        return slots_BSD + self.sinusoids_SD if self.has_sinusoids else slots_BSD


@final
class ImageEncoder(Encoder[ImageSource]):
    """The annotations of a backbone; projected to another width, and with positions, if set.

    The summary is the average annotation, from which a recurrent decoder starts (Xu et al. 2015). With a cache dtype,
    training computes the annotations of a frozen backbone once for each image.
    """

    source_kind = IMAGE

    def __init__(
        self,
        backbone: Backbone,
        *,
        size: int | None = None,
        positions: Positions = "none",
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.projection = nn.Identity() if size is None else nn.Linear(backbone.size, size)
        self._size = backbone.size if size is None else size
        self.positions = GridPositions(positions, backbone.grid, self._size)
        self.cache_dtype = cache_dtype

    @property
    def size(self) -> int:
        return self._size

    @property
    def input_module(self) -> nn.Module:
        return self.backbone

    @property
    def frozen_part(self) -> FrozenPart | None:
        if self.cache_dtype is None:
            return None
        return FrozenPart(self.backbone, self._compute_features, Features, self.cache_dtype)

    @property
    def fixed_slots(self) -> int:
        return self.backbone.grid.height * self.backbone.grid.width

    def example_source(self, length: int, device: torch.device) -> Pixels:
        """Return an image; all have the same size."""
        del length
        return Pixels(torch.zeros(1, *self.backbone.image_shape, device=device))

    def cost_parts(self) -> list[CostPart]:
        projection = CostPart("projection and positions", (self.projection, self.positions))
        return [CostPart("backbone", (self.backbone,)), projection]

    def load_pretrained(self) -> None:
        self.backbone.load_pretrained()

    def forward(self, source: ImageSource) -> Memory:
        features_BSD = source.features_by(self.backbone).to(next(self.parameters()).dtype)
        slots_BSD = self.positions(self.projection(features_BSD))
        allowed_BS = torch.ones(slots_BSD.shape[:2], dtype=torch.bool, device=slots_BSD.device)
        return Memory(slots_BSD, allowed_BS, slots_BSD.mean(1), layout=self.backbone.grid)

    def _compute_features(self, source: ImageSource) -> Tensor:
        return source.features_by(self.backbone)
