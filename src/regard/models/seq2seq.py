"""An encoder and a decoder plugged together."""

from typing import final

from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.attentive import BahdanauDecoder, LuongDecoder
from regard.models.contracts import Decoded, Decoder, Encoder, Padded
from regard.models.recurrent import FixedDecoder, RecurrentEncoder
from regard.models.settings import FixedModel, Model, TransformerModel
from regard.models.transformer import TransformerDecoder, TransformerEncoder


@final
class Seq2Seq(nn.Module):
    """p(y | x) = Π_t p(y_t | y_<t, x)."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, source: Padded, tokens_BT: Tensor) -> Decoded:
        """What follows each of the given tokens."""
        decoded: Decoded = self.decoder(tokens_BT, self.encoder(source))
        return decoded


def build_model(settings: Model, source_vocabulary: int, target_vocabulary: int) -> Seq2Seq:
    """The model that settings describe, its weights drawn at random."""
    if isinstance(settings, TransformerModel):
        return build_transformer(settings, source_vocabulary, target_vocabulary)
    encoder = RecurrentEncoder(settings.encoder, source_vocabulary, settings.embedding, settings.dropout)
    if isinstance(settings, FixedModel):
        return Seq2Seq(encoder, FixedDecoder(settings, target_vocabulary, encoder.size))
    decoder = BahdanauDecoder if settings.decoder.order == "bahdanau" else LuongDecoder
    return Seq2Seq(encoder, decoder(settings, target_vocabulary, encoder.size))


def build_transformer(settings: TransformerModel, source_vocabulary: int, target_vocabulary: int) -> Seq2Seq:
    """An encoder and a decoder of a Transformer, with those matrices shared that settings tie."""
    encoder = TransformerEncoder(settings, source_vocabulary)
    decoder = TransformerDecoder(settings, target_vocabulary)
    if settings.tied == "all":
        if source_vocabulary != target_vocabulary:
            raise ConfigError(
                "model.tied: all embeddings can be one only where source and target have one vocabulary. Set "
                "tokenizer.shared=true, or model.tied=decoder."
            )
        encoder.embedding.tokens.weight = decoder.embedding.tokens.weight
    return Seq2Seq(encoder, decoder)
