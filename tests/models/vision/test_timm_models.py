"""Backbones of timm: a substitute package with its interface, and its absence."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.models.seq2seq import build_timm_encoder
from regard.models.settings import TimmEncoderSettings
from regard.models.vision.sources import Pixels


class FeatureInfo:
    def channels(self) -> list[int]:
        return [6]


class Network(nn.Module):
    """A network with the interface of `timm.create_model(features_only=True)`."""

    pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}  # noqa: RUF012
    feature_info = FeatureInfo()

    def __init__(self, channels_last: bool, pretrained: bool) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 6, 8, stride=8)
        self.channels_last = channels_last
        if pretrained:
            nn.init.constant_(self.convolution.weight, 0.01)

    def forward(self, x: Tensor) -> list[Tensor]:
        output = self.convolution(x)
        return [output.permute(0, 2, 3, 1) if self.channels_last else output]


def create_model(name: str, *, pretrained: bool, features_only: bool, out_indices: tuple[int, ...]) -> Network:
    if name not in {"cnn", "swin"}:
        raise RuntimeError(f"Unknown model ({name})")
    assert features_only
    assert out_indices == (-1,)
    return Network(channels_last=name == "swin", pretrained=pretrained)


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("timm")
    module.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", module)


def settings(**options: Any) -> TimmEncoderSettings:
    return TimmEncoderSettings(**{"model": "cnn", "height": 16, "width": 32, **options})


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("model", ["cnn", "swin"])
def test_annotations_are_a_feature_map_of_the_model(model: str) -> None:
    torch.manual_seed(0)
    encoder = build_timm_encoder(settings(model=model))
    pixels = torch.rand(2, 3, 16, 32) * 255
    memory = encoder(Pixels(pixels))
    assert memory.layout == (2, 4)
    assert encoder.size == 6
    convolution = encoder.backbone.get_submodule("network.convolution")
    expected = convolution((pixels / 255 - 0.5) / 0.25).flatten(2).transpose(1, 2)
    torch.testing.assert_close(memory.slots_BSD, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("timm")
def test_pretrained_weights_are_loaded_on_request() -> None:
    encoder = build_timm_encoder(settings(size=4))
    assert encoder.size == 4
    encoder.load_pretrained()
    assert (encoder.backbone.get_parameter("network.convolution.weight") == 0.01).all()
    random = build_timm_encoder(settings(frozen=False, pretrained=False))
    random.load_pretrained()
    assert not (random.backbone.get_parameter("network.convolution.weight") == 0.01).all()


@pytest.mark.usefixtures("timm")
def test_an_unknown_model_is_reported() -> None:
    with pytest.raises(regard.ConfigError, match=r"timm cannot create 'resnot' .* Choose a model of timm.list_models"):
        build_timm_encoder(settings(model="resnot"))


def test_the_absence_of_timm_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(regard.ConfigError, match="Run pip install timm, or use the encoder efficientnet_lite0"):
        build_timm_encoder(settings())
