"""Prediction: the output of a model with its attention weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from regard.attention.record import Role
from regard.data.tokens.pretokenization import MARK
from regard.data.tokens.tokenizers import UNKNOWN, TokenizedText, Tokenizer
from regard.decoding.search import Hypothesis, Weights
from regard.inspection import heatmap


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
        roles: The role of every attention in the model, by name: `encoder-self`, `decoder-self` or `cross`.
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
    roles: dict[str, Role] = field(default_factory=dict)
    alternatives: list["Prediction"] = field(default_factory=list)

    @classmethod
    def from_nbest(
        cls,
        text: str,
        source: TokenizedText,
        nbest: Sequence[Hypothesis],
        tokenizer: Tokenizer,
        roles: Mapping[str, Role] | None = None,
    ) -> "Prediction":
        """Detokenize the n-best hypotheses for a text. Return the first, with the others as its alternatives."""
        spelled = [text[start:end] for start, end in source.offsets]
        unknown = (part for part, token in zip(spelled, source.ids, strict=True) if token == UNKNOWN)
        prediction = partial(
            cls,
            source=text,
            source_tokens=_mark_word_starts(text, source, spelled),
            offsets=source.offsets,
            unknown=list(dict.fromkeys(unknown)),
            roles=dict(roles or {}),
        )
        best, *others = (
            prediction(
                text=tokenizer.decode(hypothesis.tokens),
                score=hypothesis.score,
                tokens=tokenizer.tokens(hypothesis.tokens),
                truncated=hypothesis.truncated,
                attentions=dict(hypothesis.attentions),
            )
            for hypothesis in nbest
        )
        return replace(best, alternatives=others)

    @property
    def attention_name(self) -> str | None:
        """The name of the attention whose weights `attention` returns; None if the model has no cross-attention."""
        names = [name for name in self.attentions if self.roles[name] == "cross"]
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
