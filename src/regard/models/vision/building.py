"""Builds image encoders from their settings."""

import torch

from regard.models.encoder_settings import EncoderSettings
from regard.models.vision.convolutional import ConvolutionalNetwork
from regard.models.vision.efficientnet import EfficientNetLite0
from regard.models.vision.encoder import ImageEncoder, PretrainedBackbone
from regard.models.vision.patches import PatchTransformer
from regard.models.vision.settings import (
    ConvolutionalEncoderSettings,
    EfficientNetEncoderSettings,
    PatchEncoderSettings,
    PretrainedEncoderSettings,
    TimmEncoderSettings,
)
from regard.models.vision.timm_models import TimmBackbone

_DTYPES = {"none": None, "float16": torch.float16, "float32": torch.float32}


@EncoderSettings.registry.implement(ConvolutionalEncoderSettings)
def build_convolutional_encoder(settings: ConvolutionalEncoderSettings) -> ImageEncoder:
    return ImageEncoder(ConvolutionalNetwork(settings), positions=settings.positions)


@EncoderSettings.registry.implement(PatchEncoderSettings)
def build_patch_encoder(settings: PatchEncoderSettings) -> ImageEncoder:
    return ImageEncoder(PatchTransformer(settings))


@EncoderSettings.registry.implement(EfficientNetEncoderSettings)
def build_efficientnet_encoder(settings: EfficientNetEncoderSettings) -> ImageEncoder:
    return _build_pretrained(EfficientNetLite0(settings), settings)


@EncoderSettings.registry.implement(TimmEncoderSettings)
def build_timm_encoder(settings: TimmEncoderSettings) -> ImageEncoder:
    return _build_pretrained(TimmBackbone(settings), settings)


def _build_pretrained(backbone: PretrainedBackbone, settings: PretrainedEncoderSettings) -> ImageEncoder:
    dtype = _DTYPES[settings.cache] if settings.frozen else None
    return ImageEncoder(backbone, size=settings.size, positions=settings.positions, cache_dtype=dtype)
