"""An encoder and a decoder plugged together."""

from typing import final

from torch import Tensor, nn

from regard.models.contracts import Decoded, Decoder, Encoder, Padded
from regard.models.recurrent import BahdanauDecoder, RecurrentEncoder
from regard.models.settings import RecurrentModel


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


def build_model(settings: RecurrentModel, source_vocabulary: int, target_vocabulary: int) -> Seq2Seq:
    encoder = RecurrentEncoder(settings.encoder, source_vocabulary, settings.embedding, settings.dropout)
    return Seq2Seq(encoder, BahdanauDecoder(settings, target_vocabulary, encoder.size))
