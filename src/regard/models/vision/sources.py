"""Images as sources: their pixels, or features that were computed from them.

B rows, H and W height and width, S slots, D width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from regard.arguments import check_tensors
from regard.errors import ConfigError
from regard.models.contracts import Grid, Source

LENGTH_HINT = 16
"""The length of an image, from which search computes the maximum length of a prediction."""


class ImageSource(Source, ABC):
    """A batch of images, as pixels or as features."""

    @abstractmethod
    def features_by(self, backbone: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the features of the images (B, S, D), with `backbone` as the function from pixels to features."""

    @property
    def length_hint_B(self) -> Tensor:
        (tensor,) = self.tensors
        return torch.full((len(tensor),), LENGTH_HINT, device=tensor.device)


@final
@dataclass(frozen=True, eq=False)
class Pixels(ImageSource):
    """Images in RGB as they were read, from 0 to 255: integers or floating-point. All have the same size."""

    pixels_B3HW: Tensor

    def __post_init__(self) -> None:
        check_tensors(pixels=self.pixels_B3HW)
        if self.pixels_B3HW.dim() != 4 or self.pixels_B3HW.shape[1] != 3:
            shape = tuple(self.pixels_B3HW.shape)
            raise ConfigError(f"pixels must have the shape (rows, 3, height, width), not {shape}.")

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.pixels_B3HW,)

    def with_tensors(self, tensors: Iterable[Tensor]) -> "Pixels":
        return Pixels(*tensors)

    def features_by(self, backbone: Callable[[Tensor], Tensor]) -> Tensor:
        return backbone(self.pixels_B3HW)

    def occlude(self, hidden_BS: Tensor, unknown: int, layout: Grid | None) -> "Pixels":
        del unknown
        assert layout is not None
        height, width = self.pixels_B3HW.shape[-2:]
        cells_B1YX = hidden_BS.view(-1, 1, *layout).float()
        hidden_B1HW = nn.functional.interpolate(cells_B1YX, (height, width), mode="nearest").bool()
        average_B311 = self.pixels_B3HW.double().mean((-2, -1), keepdim=True).round().to(self.pixels_B3HW.dtype)
        return Pixels(torch.where(hidden_B1HW, average_B311, self.pixels_B3HW))


@final
@dataclass(frozen=True, eq=False)
class Features(ImageSource):
    """The features of images, computed by a frozen backbone."""

    features_BSD: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.features_BSD,)

    def with_tensors(self, tensors: Iterable[Tensor]) -> "Features":
        return Features(*tensors)

    def features_by(self, backbone: Callable[[Tensor], Tensor]) -> Tensor:
        del backbone
        return self.features_BSD
