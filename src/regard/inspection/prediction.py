"""Prediction: an answer that can be looked at."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from regard.data.tokens.pretokenization import MARK
from regard.data.tokens.tokenizers import UNKNOWN, Tokenizer, Tokens
from regard.decoding.predictor import DecodedText, kind_of
from regard.inspection import heatmap

Weights = NDArray[np.float32]


@dataclass(frozen=True, repr=False)
class Prediction:
    """An answer, its log-probability, and what the model looked at while it wrote each token.

    `attention` is T × S: a row for each token of the answer, a column for each token of the source.
    `attentions` holds those of every attention in the model, by its name; `alternatives` the other answers, where
    several were asked for; `unknown` what of the source the model has no token for. In a vocabulary of subwords or
    words, a token of either side that starts a word begins with "▁"; `offsets` are the spans of the source tokens in
    the text.
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
    def best_of(cls, source: str, found: Sequence[DecodedText], tokenizer: Tokenizer) -> "Prediction":
        """The first of several answers, with the others as its alternatives."""
        best, *others = (cls.of(source, answer, tokenizer) for answer in found)
        return replace(best, alternatives=others)

    @classmethod
    def of(cls, source: str, found: DecodedText, tokenizer: Tokenizer) -> "Prediction":
        spelled = [source[start:end] for start, end in found.source.offsets]
        strange = (text for text, token in zip(spelled, found.source.ids, strict=True) if token == UNKNOWN)
        return cls(
            source=source,
            text=found.text,
            score=found.score,
            tokens=tokenizer.tokens(found.target),
            source_tokens=_with_word_starts(source, found.source, spelled),
            offsets=found.source.offsets,
            truncated=found.truncated,
            unknown=list(dict.fromkeys(strange)),
            attentions={name: weights.numpy() for name, weights in found.attentions.items()},
        )

    @property
    def attention_name(self) -> str | None:
        """The name in the model of the attention that `attention` shows; None if the model has none."""
        reading = [name for name in self.attentions if kind_of(name) == "cross"]
        return reading[-1] if reading else None

    @property
    def attention(self) -> Weights:
        """The weights of the last attention that reads the source; of several heads, their mean."""
        if self.attention_name is None:
            return np.zeros((len(self.tokens), len(self.source_tokens)), dtype=np.float32)
        weights = self.attentions[self.attention_name]
        return weights if weights.ndim == 2 else weights.mean(0)

    def __repr__(self) -> str:
        return f"Prediction({self.text!r}, score={self.score:.4f})"

    def __str__(self) -> str:
        return heatmap.plain(self.attention, self.source_tokens, self.tokens)

    def _repr_html_(self) -> str:
        return heatmap.html(self.attention, self.source_tokens, self.tokens)


def _with_word_starts(source: str, tokens: Tokens, spelled: Sequence[str]) -> list[str]:
    """The tokens as the user wrote them, with the mark of a word start if the token has it in the vocabulary.

    An unknown token has no text in the vocabulary. In a vocabulary with marks, it starts a word if it is the first
    token after a space.
    """
    marked = any(text.startswith(MARK) for text in tokens.texts)
    shown = []
    before = ""
    for token, text, spelling, (start, _) in zip(tokens.ids, tokens.texts, spelled, tokens.offsets, strict=True):
        if token == UNKNOWN:
            first = before != MARK and (start == 0 or source[start - 1].isspace())
            starts = marked and first and not spelling.isspace()
        else:
            starts = text.startswith(MARK)
        before = text
        has_mark = spelling.startswith(MARK)  # the user wrote it
        shown.append(MARK + spelling.strip() if starts and not has_mark else spelling)
    return shown
