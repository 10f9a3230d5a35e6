"""Sequence-to-sequence models: an encoder and a decoder, built from settings."""

from collections.abc import Callable
from typing import final

from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.attentive import AttentiveDecoder, BahdanauDecoder, ConditionalDecoder, LuongDecoder
from regard.models.contracts import Decoded, Decoder, Encoder, Padded
from regard.models.recurrent import FixedDecoder, RecurrentEncoder
from regard.models.settings import FixedModel, Model, RecurrentModel, TransformerModel
from regard.models.transformer import TransformerDecoder, TransformerEncoder


@final
class Seq2Seq(nn.Module):
    """p(y | x) = Π_t p(y_t | y_<t, x)."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, source: Padded, tokens_BT: Tensor) -> Decoded:
        """Predict the token after each of the given target tokens (teacher forcing)."""
        decoded: Decoded = self.decoder(tokens_BT, self.encoder(source))
        return decoded


DECODERS: dict[str, Callable[[RecurrentModel, int, int], AttentiveDecoder]] = {
    "bahdanau": BahdanauDecoder,
    "conditional": ConditionalDecoder,
    "luong": LuongDecoder,
    "simple": LuongDecoder,
}
"""The decoders by the setting `decoder.order`."""


def build_model(settings: Model, source_vocabulary: int, target_vocabulary: int) -> Seq2Seq:
    """Build the model that the settings describe, with randomly initialized weights."""
    if isinstance(settings, TransformerModel):
        return build_transformer(settings, source_vocabulary, target_vocabulary)
    encoder = RecurrentEncoder(settings.encoder, source_vocabulary, settings.embedding, settings.dropout)
    decoder: FixedDecoder | AttentiveDecoder
    if isinstance(settings, FixedModel):
        decoder = FixedDecoder(settings, target_vocabulary, encoder.size)
    else:
        decoder = DECODERS[settings.decoder.order](settings, target_vocabulary, encoder.size)
    if settings.tied == "all":
        _check_shared_vocabulary(source_vocabulary, target_vocabulary)
        encoder.embedding.weight = decoder.embedding.weight
    return Seq2Seq(encoder, decoder)


def build_transformer(settings: TransformerModel, source_vocabulary: int, target_vocabulary: int) -> Seq2Seq:
    """Build a Transformer, with the weights tied as set."""
    encoder = TransformerEncoder(settings, source_vocabulary)
    decoder = TransformerDecoder(settings, target_vocabulary)
    if settings.tied == "all":
        _check_shared_vocabulary(source_vocabulary, target_vocabulary)
        encoder.embedding.tokens.weight = decoder.embedding.tokens.weight
    return Seq2Seq(encoder, decoder)


def _check_shared_vocabulary(source_vocabulary: int, target_vocabulary: int) -> None:
    if source_vocabulary != target_vocabulary:
        raise ConfigError(
            "model.tied: all requires that source and target share one vocabulary. Set tokenizer.shared=true, or "
            "model.tied=decoder."
        )
