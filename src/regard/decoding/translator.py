"""Text in, text out: a model with its tokenisers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.record import record
from regard.data.batching import Batch, by_length, note_cut, pad
from regard.data.tokenizers import END, PAD, START, UNKNOWN, TokenizerPair, Tokens
from regard.decoding.search import Symbols, greedy
from regard.decoding.settings import DecodingSettings
from regard.models.seq2seq import Seq2Seq

SYMBOLS = Symbols(START, END, never=(PAD, UNKNOWN, START))


class Translation(NamedTuple):
    """An answer with what it answers; the attentions (T × S, by name) where they were asked for."""

    text: str
    score: float
    truncated: bool
    source: Tokens
    target: list[int]
    attentions: dict[str, Tensor]


@dataclass(frozen=True)
class Translator:
    """A model, its tokenisers, and how long an answer may be."""

    model: Seq2Seq
    tokenizers: TokenizerPair
    limits: DecodingSettings
    max_length: int

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def translate(self, texts: Sequence[str], *, batch_size: int = 64, attention: bool = False) -> list[Translation]:
        """One answer for each text, in order. An empty text has an empty answer."""
        encoded = self.tokenizers.source.encode(texts)
        note_cut(sum(len(tokens.ids) > self.max_length for tokens in encoded), self.max_length)
        sources = [self._clip(tokens) for tokens in encoded]
        answers: dict[int, Translation] = {}
        was_training = self.model.training
        self.model.eval()
        try:
            for rows in by_length([len(source.ids) for source in sources], batch_size):
                found = self._answer([sources[row] for row in rows], attention=attention)
                answers.update(zip(rows, found, strict=True))
        finally:
            self.model.train(was_training)
        return [answers[row] for row in range(len(sources))]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Log p(target | source) of each pair."""
        source = pad([self._clip(tokens).ids for tokens in self.tokenizers.source.encode(sources)]).to(self.device)
        target = pad([[*ids, END] for ids in self.tokenizers.target.ids(targets)]).to(self.device)
        self.model.eval()
        with torch.inference_mode():
            logits_BTV = self.model(source, Batch(source, target, []).given).logits_BTV
            log_p_BTV = logits_BTV.float().log_softmax(-1)
            log_p_BT = log_p_BTV.gather(-1, target.tokens_BT.unsqueeze(-1)).squeeze(-1)
            scores: list[float] = log_p_BT.masked_fill(~target.valid_BT, 0.0).double().sum(-1).tolist()
        return scores

    def _clip(self, tokens: Tokens) -> Tokens:
        end = self.max_length
        return Tokens(tokens.ids[:end], tokens.texts[:end], tokens.offsets[:end])

    @torch.inference_mode()
    def _answer(self, sources: list[Tokens], *, attention: bool) -> list[Translation]:
        source = pad([tokens.ids for tokens in sources]).to(self.device)
        memory = self.model.encoder(source)
        limits_B = (source.lengths_B * self.limits.ratio + self.limits.extra).long()
        limits_B = torch.where(source.lengths_B > 0, limits_B, 0)
        found = greedy(self.model.decoder, memory, SYMBOLS, limits_B)
        weights: dict[str, Tensor] = {}
        if attention:
            # A second pass over the finished answers keeps the search free of weights, whatever its strategy.
            given = pad([[START, *answer.tokens] for answer in found]).to(self.device)
            with record(self.model) as trace:
                self.model.decoder(given.tokens_BT, memory)
            weights = trace.weights
        return [
            Translation(
                text=self.tokenizers.target.decode(answer.tokens),
                score=answer.score,
                truncated=answer.truncated and bool(tokens.ids),
                source=tokens,
                target=answer.tokens,
                attentions={
                    name: weights_BTS[row, ..., : len(answer.tokens), : len(tokens.ids)].float().cpu()
                    for name, weights_BTS in weights.items()
                },
            )
            for row, (answer, tokens) in enumerate(zip(found, sources, strict=True))
        ]
