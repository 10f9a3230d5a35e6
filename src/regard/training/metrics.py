"""Metrics: how good the answers are."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from regard.data.batching import Encoded
from regard.data.corpora import Pairs
from regard.data.order import by_length
from regard.decoding.translator import Translator
from regard.training.losses import token_loss


class Scores(NamedTuple):
    """What a model reaches on some pairs."""

    pairs: int
    accuracy: float
    loss: float

    def better_than(self, other: "Scores | None", metric: str) -> bool:
        """Whether this is the better model; equal accuracy is decided by the loss."""
        if other is None:
            return True
        ours, theirs = ((scores.accuracy, -scores.loss) for scores in (self, other))
        return ours > theirs if metric == "accuracy" else self.loss < other.loss


def exact_match(answers: Sequence[str], references: Sequence[str]) -> float:
    """The share of answers that are the reference to the letter."""
    right = sum(answer == reference for answer, reference in zip(answers, references, strict=True))
    return right / len(references)


def mean_loss(translator: Translator, encoded: Encoded, batch_size: int) -> float:
    """−log p of a token, in nats, over all tokens."""
    total, tokens = 0.0, 0
    translator.model.eval()
    with torch.inference_mode():
        for ids in by_length(encoded.sources.lengths, batch_size):
            loss, count = token_loss(translator.model, encoded.batch(ids, translator.device))
            total, tokens = total + float(loss), tokens + int(count)
    return total / tokens


def evaluate(translator: Translator, pairs: Pairs, batch_size: int = 256) -> Scores:
    """Greedy answers against the references, and the loss of the references."""
    answers = translator.translate(pairs.sources, batch_size=batch_size)
    encoded = Encoded.of(pairs, translator.tokenizers, translator.max_length)
    return Scores(
        pairs=len(pairs),
        accuracy=exact_match([answer.text for [answer] in answers], pairs.targets),
        loss=mean_loss(translator, encoded, batch_size),
    )
