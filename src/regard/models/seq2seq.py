"""Sequence-to-sequence models: an encoder and a decoder, built from settings."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from regard.arguments import check_type
from regard.errors import ConfigError
from regard.models.attentive import (
    AttentiveDecoder,
    BahdanauDecoder,
    ConditionalDecoder,
    DeepFusionDecoder,
    LuongDecoder,
)
from regard.models.contracts import Decoded, Decoder, Encoder, Source
from regard.models.recurrent import FixedDecoder, RecurrentEncoder
from regard.models.settings import (
    ConvolutionalEncoderSettings,
    EfficientNetEncoderSettings,
    EncoderSettings,
    ModelSettings,
    PatchEncoderSettings,
    PretrainedEncoderSettings,
    RecurrentModel,
    RegisteredModel,
    TimmEncoderSettings,
)
from regard.models.transformer import TransformerDecoder, TransformerEncoder
from regard.models.vision.convolutional import ConvolutionalNetwork
from regard.models.vision.efficientnet import EfficientNetLite0
from regard.models.vision.encoder import ImageEncoder, PretrainedBackbone
from regard.models.vision.patches import PatchTransformer
from regard.models.vision.timm_models import TimmBackbone


@final
class Seq2Seq(nn.Module):
    """p(y | x) = Π_t p(y_t | y_<t, x)."""

    def __init__(self, encoder: Encoder[Any], decoder: Decoder) -> None:
        super().__init__()
        for name, module, kind in (("encoder", encoder, Encoder), ("decoder", decoder, Decoder)):
            check_type(name, module, kind, f"a regard.{kind.__name__}")
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, source: Source, tokens_BT: Tensor) -> Decoded:
        """Predict the token after each of the given target tokens (teacher forcing)."""
        decoded: Decoded = self.decoder(tokens_BT, self.encoder(source))
        return decoded


def _build_attentive_decoder(settings: RecurrentModel, vocabulary: int, memory_size: int) -> AttentiveDecoder:
    decoders: dict[str, Callable[[RecurrentModel, int, int], AttentiveDecoder]] = {
        "bahdanau": BahdanauDecoder,
        "conditional": ConditionalDecoder,
        "luong": LuongDecoder,
        "simple": LuongDecoder,
    }
    if settings.decoder.fusion == "deep":
        return DeepFusionDecoder(settings, vocabulary, memory_size)
    return decoders[settings.decoder.order](settings, vocabulary, memory_size)


_DTYPES = {"none": None, "float16": torch.float16, "float32": torch.float32}


def build_convolutional_encoder(settings: ConvolutionalEncoderSettings) -> ImageEncoder:
    return ImageEncoder(ConvolutionalNetwork(settings), positions=settings.positions)


def build_patch_encoder(settings: PatchEncoderSettings) -> ImageEncoder:
    return ImageEncoder(PatchTransformer(settings))


def build_efficientnet_encoder(settings: EfficientNetEncoderSettings) -> ImageEncoder:
    return _build_pretrained(EfficientNetLite0(settings), settings)


def build_timm_encoder(settings: TimmEncoderSettings) -> ImageEncoder:
    return _build_pretrained(TimmBackbone(settings), settings)


def _build_pretrained(backbone: PretrainedBackbone, settings: PretrainedEncoderSettings) -> ImageEncoder:
    dtype = _DTYPES[settings.cache] if settings.frozen else None
    return ImageEncoder(backbone, size=settings.size, positions=settings.positions, cache_dtype=dtype)


def register_encoder(name: str, encoder: Callable[..., Encoder[Any]]) -> None:
    """Register an encoder: a subclass of `Encoder`, or a function that builds one.

    It is called with the arguments `vocabulary` (number of source tokens), `embedding` (width of the embeddings) and
    `dropout` that it has parameters for. Its other parameters are options. Afterwards, `model.encoder: name` selects
    it, with any decoder.
    """
    EncoderSettings.registry.register(EncoderSettings, name, encoder)


def register_decoder(name: str, decoder: Callable[..., Decoder]) -> None:
    """Register a decoder: a subclass of `Decoder`, or a function that builds one.

    It is called with the arguments `vocabulary` (number of target tokens), `memory_size` (width of a memory slot),
    `embedding` (width of the embeddings) and `dropout` that it has parameters for. Its other parameters are options.
    Afterwards, `model: name` selects it, and `model.encoder` selects any encoder.
    """
    ModelSettings.registry.register(RegisteredModel, name, decoder)


def build_model(settings: ModelSettings, source_vocabulary: int, target_vocabulary: int) -> Seq2Seq:
    """Build the model that the settings describe, with randomly initialized weights."""
    choice = settings.encoder_settings
    encoder: Encoder[Any] = choice.build_part(
        vocabulary=source_vocabulary,
        embedding=settings.embedding_size,
        dropout=settings.embedding_dropout,
    )
    decoder: Decoder = settings.build_part(vocabulary=target_vocabulary, memory_size=encoder.size)
    if settings.ties_source_embedding:
        _tie_embeddings(encoder, decoder)
    return Seq2Seq(encoder, decoder)


def _tie_embeddings(encoder: Encoder[Any], decoder: Decoder) -> None:
    source, target = encoder.token_embedding, decoder.token_embedding
    if source is None or target is None:
        raise ConfigError(
            f"model.tied: all requires token embeddings, which {type(encoder).__name__} or {type(decoder).__name__} "
            "does not have. Set model.tied=decoder."
        )
    assert source.weight.shape[0] == target.weight.shape[0], "the settings require a shared vocabulary"
    source.weight = target.weight


ModelSettings.registry.builders |= {
    "recurrent": _build_attentive_decoder,
    "fixed": FixedDecoder,
    "transformer": TransformerDecoder,
}
EncoderSettings.registry.builders |= {
    "recurrent": RecurrentEncoder,
    "transformer": TransformerEncoder,
    "cnn": build_convolutional_encoder,
    "patches": build_patch_encoder,
    "efficientnet_lite0": build_efficientnet_encoder,
    "timm": build_timm_encoder,
}
