"""A Transformer over the patches of an image.

B rows, H and W height and width, S patches, D width.
"""

from typing import final

import torch
from torch import Tensor, nn

from regard.models.contracts import Grid
from regard.models.settings import PatchEncoderSettings
from regard.models.transformer import EncoderLayer, build_norm, init_weights
from regard.models.vision.encoder import Backbone, GridPositions, flatten_grid
from regard.ops.layers import Dropout


@final
class PatchTransformer(Backbone):
    """A linear projection of each patch, positions, and Transformer layers (ViT, Dosovitskiy et al. 2021).

    There is no class token: a decoder attends to the patches, and starts from their average.
    """

    def __init__(self, settings: PatchEncoderSettings) -> None:
        super().__init__(settings.height, settings.width, Grid(*settings.grid_shape), settings.size)
        self.projection = nn.Conv2d(3, settings.size, settings.patch, stride=settings.patch)
        self.positions = GridPositions(settings.positions, self.grid, settings.size)
        self.dropout = Dropout(settings.dropout)
        self.layers = nn.ModuleList(EncoderLayer(settings, settings.score) for _ in range(settings.layers))
        self.norm = build_norm(settings) if settings.norm == "pre" else nn.Identity()
        init_weights(self.layers)

    def annotate(self, pixels_B3HW: Tensor) -> Tensor:
        patches_BSD = flatten_grid(self.projection(pixels_B3HW / 127.5 - 1))
        x_BSD = self.dropout(self.positions(patches_BSD))
        allowed_BS = torch.ones(x_BSD.shape[:2], dtype=torch.bool, device=x_BSD.device)
        for layer in self.layers:
            x_BSD = layer(x_BSD, allowed_BS)
        normalized: Tensor = self.norm(x_BSD)
        return normalized
