"""Ensembles: several models of any architecture that predict as one. They share the target vocabulary."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from regard.models.contracts import Decoded, Decoder, Encoder, Grid, LossTerm, Memory, Source
from regard.models.seq2seq import Seq2Seq

PerModel = tuple[Any, ...]


class EnsembleMemory(NamedTuple):
    """The memory of each model. All models read the same source, so their memories have the same visible slots."""

    memories: tuple[Memory, ...]

    def pad(self, rows: int, slots: int) -> "EnsembleMemory":
        return EnsembleMemory(tuple(memory.pad(rows, slots) for memory in self.memories))

    @property
    def allowed_BS(self) -> Tensor:
        return self.memories[0].allowed_BS

    @property
    def layout(self) -> Grid | None:
        return self.memories[0].layout


@final
class EnsembleEncoder(Encoder[Source]):
    """Encode the source with each model."""

    def __init__(self, encoders: Sequence[Encoder[Any]]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self._size = encoders[0].size

    @property
    def size(self) -> int:
        """The width of the memory of the first model."""
        return self._size

    def forward(self, source: Source) -> Any:
        return EnsembleMemory(tuple(encoder(source) for encoder in self.encoders))


@final
class EnsembleDecoder(Decoder):
    """Average the distributions of the models: log p(y) = log Σ_i p_i(y) / n."""

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        super().__init__()
        self.decoders = nn.ModuleList(decoders)

    def begin(self, memory: Any) -> tuple[PerModel, PerModel]:
        starts = [decoder.begin(part) for decoder, part in zip(self._decoders(), memory.memories, strict=True)]
        return tuple(keys for keys, _ in starts), tuple(state for _, state in starts)

    def step(self, token_B: Tensor, state: PerModel, keys: PerModel) -> tuple[Tensor, PerModel]:
        outputs = [d.step(token_B, part, key) for d, part, key in zip(self._decoders(), state, keys, strict=True)]
        return average_distributions([logits for logits, _ in outputs]), tuple(after for _, after in outputs)

    def forward(self, tokens_BT: Tensor, memory: Any) -> Decoded:
        outputs = [decoder(tokens_BT, part) for decoder, part in zip(self._decoders(), memory.memories, strict=True)]
        loss_terms: tuple[LossTerm, ...] = sum((decoded.loss_terms for decoded in outputs), ())
        return Decoded.from_logits(average_distributions([decoded.logits_BTV for decoded in outputs]), loss_terms)

    def _decoders(self) -> list[Decoder]:
        return [decoder for decoder in self.decoders if isinstance(decoder, Decoder)]


def average_distributions(logits: Sequence[Tensor]) -> Tensor:
    """Return the log-probabilities of the average of several distributions, given their logits. The logits of a single
    model are returned unchanged.
    """
    if len(logits) == 1:
        return logits[0]
    log_p = torch.stack([x.float().log_softmax(-1) for x in logits])
    return log_p.logsumexp(0) - math.log(len(logits))


def ensemble(models: Sequence[Seq2Seq]) -> Seq2Seq:
    """Build one model that predicts the averaged distribution of several models."""
    return Seq2Seq(
        EnsembleEncoder([model.encoder for model in models]), EnsembleDecoder([model.decoder for model in models])
    )
