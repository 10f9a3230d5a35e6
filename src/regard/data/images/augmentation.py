"""Augmentation of images in training: horizontal flips and random crops.

The augmentation of an image is a pure function of the seed, the epoch and the index of the pair, so that a resumed run
sees the same images.

B rows, H height, W width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from regard.models.vision.sources import Pixels


@final
@dataclass(frozen=True)
class ImageAugmentation:
    """Flips images horizontally, and resizes a random crop of them to the full size.

    Attributes:
        flip: The probability of a horizontal flip. Captions that name left or right are then wrong.
        crop: The minimum height and width of the crop, as a share of those of the image; 1 keeps the whole image.
    """

    flip: float = 0.0
    crop: float = 1.0

    def __call__(self, source: Pixels, rows: Sequence[int], epoch: int, seed: int) -> Pixels:
        parameters_B5 = np.stack([self._sample(row, epoch, seed) for row in rows])
        return Pixels(_transform(source.pixels_B3HW.float(), parameters_B5))

    def _sample(self, row: int, epoch: int, seed: int) -> NDArray[np.float64]:
        """Sample whether to flip (−1, or 1 if not), the height and width of the crop, and the position of its center,
        from −1 to 1.
        """
        values = np.random.default_rng((seed, epoch, row)).random(5)
        flip = -1.0 if values[0] < self.flip else 1.0
        height, width = self.crop + (1 - self.crop) * values[1:3]
        y, x = (2 * values[3:] - 1) * (1 - np.array([height, width]))
        return np.array([flip, height, width, y, x])


def _transform(pixels_B3HW: torch.Tensor, parameters_B5: NDArray[np.float64]) -> torch.Tensor:
    """Crop, resize and flip each image."""
    flip_B, height_B, width_B, y_B, x_B = torch.from_numpy(parameters_B5.astype(np.float32)).unbind(1)
    zero_B = torch.zeros_like(flip_B)
    matrix_B23 = torch.stack(
        [torch.stack([flip_B * width_B, zero_B, x_B], 1), torch.stack([zero_B, height_B, y_B], 1)], dim=1
    )
    shape = list(pixels_B3HW.shape)
    grid_BHW2 = functional.affine_grid(matrix_B23, shape, align_corners=False)
    return functional.grid_sample(pixels_B3HW, grid_BHW2, padding_mode="border", align_corners=False)
