"""Ensembles: several models that answer as one, whatever their architectures; they share the target's vocabulary."""

import math
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from regard.models.contracts import Decoded, Decoder, Encoder, LossTerm, Padded
from regard.models.seq2seq import Seq2Seq

Many = tuple[Any, ...]


@final
class EnsembleEncoder(Encoder):
    """What each model makes of the source."""

    def __init__(self, encoders: Sequence[Encoder]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, source: Padded) -> Any:
        return tuple(encoder(source) for encoder in self.encoders)


@final
class EnsembleDecoder(Decoder):
    """p(y) is the mean of what the models say: log Σ_i p_i(y) / n."""

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        super().__init__()
        self.decoders = nn.ModuleList(decoders)

    def begin(self, memory: Any) -> tuple[Many, Many]:
        begun = [decoder.begin(own) for decoder, own in zip(self._decoders(), memory, strict=True)]
        return tuple(keys for keys, _ in begun), tuple(state for _, state in begun)

    def step(self, token_B: Tensor, state: Many, keys: Many) -> tuple[Tensor, Many]:
        taken = [d.step(token_B, own, key) for d, own, key in zip(self._decoders(), state, keys, strict=True)]
        return average_distributions([logits for logits, _ in taken]), tuple(after for _, after in taken)

    def forward(self, tokens_BT: Tensor, memory: Any) -> Decoded:
        said = [decoder(tokens_BT, own) for decoder, own in zip(self._decoders(), memory, strict=True)]
        terms: tuple[LossTerm, ...] = sum((decoded.terms for decoded in said), ())
        return Decoded.of_logits(average_distributions([decoded.logits_BTV for decoded in said]), terms)

    def _decoders(self) -> list[Decoder]:
        return [decoder for decoder in self.decoders if isinstance(decoder, Decoder)]


def average_distributions(logits: Sequence[Tensor]) -> Tensor:
    """Logits of the mean of several distributions, which are given by theirs."""
    if len(logits) == 1:
        return logits[0]
    log_p = torch.stack([each.float().log_softmax(-1) for each in logits])
    return log_p.logsumexp(0) - math.log(len(logits))


def ensemble(models: Sequence[Seq2Seq]) -> Seq2Seq:
    """One model that says what the given ones say in the mean."""
    return Seq2Seq(
        EnsembleEncoder([model.encoder for model in models]), EnsembleDecoder([model.decoder for model in models])
    )
