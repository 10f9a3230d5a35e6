"""Prediction: the output of a model with its attention weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from regard.attention.record import Role
from regard.data.sources import SourceItem
from regard.data.tokens.tokenizers import Tokenizer
from regard.decoding.search import Hypothesis, Weights
from regard.inspection import heatmap
from regard.models.contracts import Grid


@dataclass(frozen=True, repr=False)
class Prediction:
    """A predicted text, its log-probability, and the attention weights of each of its tokens.

    `print` and notebooks show the attention weights as a heat map.

    Attributes:
        source: The source text, or the name of a source that is not text.
        text: The predicted text.
        score: The log-probability of the prediction.
        tokens: The tokens of the prediction. In a vocabulary of subwords or words, "▁" marks the start of a word.
        source_tokens: The tokens of the source; empty if the source is not text.
        offsets: The span of each source token in the source text.
        truncated: Whether the prediction was truncated at the length limit.
        layout: The height and width of the grid in which the encoder arranges the source; None for a sequence.
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
    layout: Grid | None = None
    unknown: list[str] = field(default_factory=list)
    attentions: dict[str, Weights] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    alternatives: list["Prediction"] = field(default_factory=list)

    @classmethod
    def from_nbest(
        cls,
        source: SourceItem,
        nbest: Sequence[Hypothesis],
        tokenizer: Tokenizer,
        roles: Mapping[str, Role] | None = None,
    ) -> "Prediction":
        """Detokenize the n-best hypotheses for a source. Return the first, with the others as its alternatives."""
        prediction = partial(
            cls,
            source=source.label,
            source_tokens=source.tokens,
            offsets=source.offsets,
            layout=nbest[0].layout,
            unknown=source.unknown,
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
        the prediction and a column for each memory slot: in most models, for each token of the source. Zeros if the
        model has no cross-attention.
        """
        if self.attention_name is None:
            return np.zeros((len(self.tokens), len(self.source_tokens)), dtype=np.float32)
        weights = self.attentions[self.attention_name]
        return weights if weights.ndim == 2 else weights.mean(0)

    @property
    def slot_labels(self) -> list[str]:
        """The labels of the columns of `attention`."""
        return self.label_slots(self.attention.shape[1])

    def label_slots(self, count: int) -> list[str]:
        """Return labels of `count` memory slots: the tokens of the source, the rows and columns of a grid, or numbers
        if the slots are neither.
        """
        if count == len(self.source_tokens):
            return self.source_tokens
        if self.layout is not None and count == self.layout.height * self.layout.width:
            return [f"{1 + slot // self.layout.width},{1 + slot % self.layout.width}" for slot in range(count)]
        return [str(1 + slot) for slot in range(count)]

    def __repr__(self) -> str:
        return f"Prediction({self.text!r}, score={self.score:.4f})"

    def __str__(self) -> str:
        return heatmap.to_text(self.attention, self.slot_labels, self.tokens)

    def _repr_html_(self) -> str:
        return heatmap.to_html(self.attention, self.slot_labels, self.tokens)
