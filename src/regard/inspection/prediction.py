"""Prediction: the output of a model with its attention weights."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from regard.data.tokens.pretokenization import MARK
from regard.data.tokens.tokenizers import UNKNOWN, TokenizedText, Tokenizer
from regard.decoding.predictor import DecodedText, attention_role
from regard.inspection import heatmap

Weights = NDArray[np.float32]


@dataclass(frozen=True, repr=False)
class Prediction:
    """A predicted text, its log-probability, and the attention weights of each of its tokens.

    `print` and notebooks show the attention weights as a heat map.

    Attributes:
        source: The source text.
        text: The predicted text.
        score: The log-probability of the prediction.
        tokens: The tokens of the prediction. In a vocabulary of subwords or words, "▁" marks the start of a word.
        source_tokens: The tokens of the source.
        offsets: The span of each source token in the source text.
        truncated: Whether the prediction was truncated at the length limit.
        unknown: The parts of the source that have no token in the vocabulary.
        attentions: The weights of every attention in the model, by name: queries × keys, or heads × queries × keys.
        alternatives: The other predictions if `nbest` is above 1, best first.

    >>> prediction = model.predict("3 mai 2009")
    >>> prediction.attention[0].argmax()  # the source token with the largest weight for the first token
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
    def from_nbest(cls, source: str, nbest: Sequence[DecodedText], tokenizer: Tokenizer) -> "Prediction":
        """Return the first of the n-best, with the others as its alternatives."""
        best, *others = (cls.from_decoded(source, decoded, tokenizer) for decoded in nbest)
        return replace(best, alternatives=others)

    @classmethod
    def from_decoded(cls, source: str, decoded: DecodedText, tokenizer: Tokenizer) -> "Prediction":
        spelled = [source[start:end] for start, end in decoded.source.offsets]
        unknown = (text for text, token in zip(spelled, decoded.source.ids, strict=True) if token == UNKNOWN)
        return cls(
            source=source,
            text=decoded.text,
            score=decoded.score,
            tokens=tokenizer.tokens(decoded.target),
            source_tokens=_mark_word_starts(source, decoded.source, spelled),
            offsets=decoded.source.offsets,
            truncated=decoded.truncated,
            unknown=list(dict.fromkeys(unknown)),
            attentions={name: weights.numpy() for name, weights in decoded.attentions.items()},
        )

    @property
    def attention_name(self) -> str | None:
        """The name of the attention whose weights `attention` returns; None if the model has no cross-attention."""
        names = [name for name in self.attentions if attention_role(name) == "cross"]
        return names[-1] if names else None

    @property
    def attention(self) -> Weights:
        """The weights of the last cross-attention (T × S), averaged over its heads. They have a row for each token of
        the prediction and a column for each token of the source. Zeros if the model has no cross-attention.
        """
        if self.attention_name is None:
            return np.zeros((len(self.tokens), len(self.source_tokens)), dtype=np.float32)
        weights = self.attentions[self.attention_name]
        return weights if weights.ndim == 2 else weights.mean(0)

    def __repr__(self) -> str:
        return f"Prediction({self.text!r}, score={self.score:.4f})"

    def __str__(self) -> str:
        return heatmap.to_text(self.attention, self.source_tokens, self.tokens)

    def _repr_html_(self) -> str:
        return heatmap.to_html(self.attention, self.source_tokens, self.tokens)


def _mark_word_starts(source: str, tokens: TokenizedText, spelled: Sequence[str]) -> list[str]:
    """Return the tokens as they are spelled in the source, with the word-start mark of the vocabulary.

    An unknown token has no text in the vocabulary. In a vocabulary with marks, it starts a word if it is the first
    token after a space.
    """
    has_marks = any(text.startswith(MARK) for text in tokens.texts)
    marked_tokens = []
    before = ""
    for token, text, spelling, (start, _) in zip(tokens.ids, tokens.texts, spelled, tokens.offsets, strict=True):
        if token == UNKNOWN:
            first = before != MARK and (start == 0 or source[start - 1].isspace())
            starts = has_marks and first and not spelling.isspace()
        else:
            starts = text.startswith(MARK)
        before = text
        has_mark = spelling.startswith(MARK)  # the source text contains the mark itself
        marked_tokens.append(MARK + spelling.strip() if starts and not has_mark else spelling)
    return marked_tokens
