"""Models of the package timm (PyTorch Image Models) as backbones.

B rows, D channels, H and W height and width.
"""

from types import ModuleType
from typing import Any, final

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.models.contracts import Grid
from regard.models.settings import TimmEncoderSettings
from regard.models.vision.encoder import PretrainedBackbone


@final
class TimmBackbone(PretrainedBackbone):
    """A feature map of a timm model, whose name and stage the settings give. Pixels are normalized as it expects."""

    mean_311: Tensor
    deviation_311: Tensor

    def __init__(self, settings: TimmEncoderSettings) -> None:
        network = create_network(settings, pretrained=False)
        channels = network.feature_info.channels()[-1]
        with torch.no_grad():
            map_shape = network.eval()(torch.zeros(1, 3, settings.height, settings.width))[-1].shape
        channels_last = map_shape[1] != channels
        grid = Grid(*(map_shape[1:3] if channels_last else map_shape[2:4]))
        super().__init__(settings.height, settings.width, grid, channels, frozen=settings.frozen)
        self.settings, self.network, self.channels_last = settings, network, channels_last
        for name, default in (("mean", (0.485, 0.456, 0.406)), ("std", (0.229, 0.224, 0.225))):
            values = torch.tensor(network.pretrained_cfg.get(name, default)) * 255
            self.register_buffer("mean_311" if name == "mean" else "deviation_311", values.view(3, 1, 1))
        self.requires_grad_(not self.frozen).eval()

    def compute_map(self, pixels_B3HW: Tensor) -> Tensor:
        feature_map: Tensor = self.network((pixels_B3HW - self.mean_311) / self.deviation_311)[-1]
        return feature_map.permute(0, 3, 1, 2) if self.channels_last else feature_map

    def load_pretrained(self) -> None:
        if self.settings.pretrained:
            self.network.load_state_dict(create_network(self.settings, pretrained=True).state_dict())


def create_network(settings: TimmEncoderSettings, *, pretrained: bool) -> Any:
    """Create a timm model that returns one feature map."""
    timm = import_timm()
    try:
        return timm.create_model(
            settings.model, pretrained=pretrained, features_only=True, out_indices=(settings.stage,)
        )
    except RuntimeError as error:
        raise ConfigError(
            f"model.encoder.model: timm cannot create '{settings.model}' with feature map {settings.stage}: {error}. "
            "Choose a model of timm.list_models(), and a stage that it has."
        ) from None


def import_timm() -> ModuleType:
    """Import timm, which is needed only for this encoder."""
    try:
        import timm
    except ImportError:
        raise ConfigError(
            "model.encoder: the encoder timm requires the package timm, which is not installed. Run pip install timm, "
            "or use the encoder efficientnet_lite0."
        ) from None
    module: ModuleType = timm
    return module
