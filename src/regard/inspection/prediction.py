"""Prediction: an answer that can be looked at."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from regard.data.tokens.tokenizers import UNKNOWN, Tokenizer
from regard.decoding.translator import Translation, kind_of
from regard.inspection import heatmap

Weights = NDArray[np.float32]


@dataclass(frozen=True, repr=False)
class Prediction:
    """An answer, its log-probability, and what the model looked at while it wrote each token.

    `attention` is T × S: a row for each token of the answer, a column for each token of the source.
    `attentions` holds those of every attention in the model, by its name; `alternatives` the other answers, where
    several were asked for; `unknown` what of the source the model has no token for.
    """

    source: str
    text: str
    score: float
    tokens: list[str]
    source_tokens: list[str]
    offsets: list[tuple[int, int]]
    truncated: bool = False
    unknown: list[str] = field(default_factory=list)
    attentions: dict[str, Weights] = field(default_factory=dict)
    alternatives: list["Prediction"] = field(default_factory=list)

    @classmethod
    def best_of(cls, source: str, found: Sequence[Translation], tokenizer: Tokenizer) -> "Prediction":
        """The first of several answers, with the others as its alternatives."""
        best, *others = (cls.of(source, answer, tokenizer) for answer in found)
        return replace(best, alternatives=others)

    @classmethod
    def of(cls, source: str, found: Translation, tokenizer: Tokenizer) -> "Prediction":
        # As the user wrote it, also where the vocabulary does not know it.
        source_tokens = [source[start:end] for start, end in found.source.offsets]
        strange = (text for text, token in zip(source_tokens, found.source.ids, strict=True) if token == UNKNOWN)
        return cls(
            source=source,
            text=found.text,
            score=found.score,
            tokens=tokenizer.tokens(found.target),
            source_tokens=source_tokens,
            offsets=found.source.offsets,
            truncated=found.truncated,
            unknown=list(dict.fromkeys(strange)),
            attentions={name: weights.numpy() for name, weights in found.attentions.items()},
        )

    @property
    def attention(self) -> Weights:
        """The weights of the last attention that reads the source; of several heads, their mean."""
        reading = [weights for name, weights in self.attentions.items() if kind_of(name) == "cross"]
        if not reading:
            return np.zeros((len(self.tokens), len(self.source_tokens)), dtype=np.float32)
        return reading[-1] if reading[-1].ndim == 2 else reading[-1].mean(0)

    def __repr__(self) -> str:
        return f"Prediction({self.text!r}, score={self.score:.4f})"

    def __str__(self) -> str:
        return heatmap.plain(self.attention, self.source_tokens, self.tokens)

    def _repr_html_(self) -> str:
        return heatmap.html(self.attention, self.source_tokens, self.tokens)
