"""Prediction: the output of a model with its attention weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np

from regard.attention.record import Role
from regard.data.sources import SourceItem
from regard.data.tokens.pretokenization import MARK
from regard.data.tokens.tokenizers import Tokenizer
from regard.decoding.search import Hypothesis, Weights
from regard.inspection.contact_sheet import ContactSheet
from regard.inspection.heatmap import AttentionView, HeatMap
from regard.inspection.pictures import PixelArray, Style
from regard.models.contracts import Grid

_PIXELS_PER_CELL = 16
"""The size of the gray picture that replaces a source without pixels."""


@dataclass(frozen=True, repr=False)
class Prediction:
    """A predicted text, its log-probability, and the attention weights of each of its tokens.

    `print` and notebooks show the attention weights: as a heat map, or over the picture that the model describes.

    Attributes:
        source: The source text; for another kind of source, its label, such as a file name.
        text: The predicted text.
        score: The log-probability of the prediction.
        tokens: The tokens of the prediction. In a vocabulary of subwords or words, "▁" marks the start of a word.
        source_tokens: The tokens of the source; empty if the source is not text.
        offsets: The span of each source token in the source text.
        truncated: Whether the prediction was truncated at the length limit.
        layout: The height and width of the grid of the memory slots; None if they are a sequence.
        unknown: The parts of the source that have no token in the vocabulary.
        attentions: The weights of every attention in the model, by name: queries × keys, or heads × queries × keys.
        roles: The role of every attention in the model, by name: `encoder-self`, `decoder-self` or `cross`.
        alternatives: The other predictions if `nbest` is above 1, best first.
        item: The source as its reader returned it; the pixels of a picture are read from it when they are shown.

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
    item: SourceItem | None = field(default=None, compare=False)

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
            item=source,
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
        """Return labels for `count` memory slots: the tokens of the source, or the rows and columns of a grid, or
        numbers.
        """
        if count == len(self.source_tokens):
            return self.source_tokens
        if self.layout is not None and count == self.layout.height * self.layout.width:
            return [f"{1 + slot // self.layout.width},{1 + slot % self.layout.width}" for slot in range(count)]
        return [str(1 + slot) for slot in range(count)]

    @property
    def words(self) -> list[tuple[int, int]]:
        """The tokens of each word, as spans. If no token starts with "▁", each token is a word."""
        starts = [index for index, token in enumerate(self.tokens) if token.startswith(MARK)] or range(len(self.tokens))
        edges = [*({0, *starts} if self.tokens else ()), len(self.tokens)]
        return list(pairwise(sorted(edges)))

    @property
    def pixels(self) -> PixelArray | None:
        """The picture as the encoder reads it (height, width, 3); None if the source is not a picture."""
        return None if self.item is None else self.item.pixels

    @property
    def attention_note(self) -> str:
        """Describe which weights are in `attention`; empty if the model has no others."""
        name = self.attention_name
        if name is None:
            return "The model has no cross-attention."
        count = sum(1 if weights.ndim == 2 else len(weights) for weights in self.attentions.values())
        if count == 1:
            return ""
        heads = "" if self.attentions[name].ndim == 2 else f", average of {len(self.attentions[name])} heads"
        return f"{name}{heads}\n(save as .html to see all {count} maps)"

    def view(self, style: Style = "smooth") -> AttentionView:
        """Return how the weights in `attention` are shown: over a picture, or as a heat map."""
        return self.view_weights(self.attention, "cross", self.attention_note, style)

    def view_weights(self, weights_TS: Weights, role: Role, note: str = "", style: Style = "smooth") -> AttentionView:
        """Return how some of the weights of the model are shown."""
        grid, slots = self.layout, weights_TS.shape[1]
        if grid is not None and slots == grid.height * grid.width:
            if role == "encoder-self":  # a panel for each cell would be too many
                return self._view_over_picture(
                    ["average over the cells"], weights_TS.mean(0, keepdims=True), note, style
                )
            if role == "cross":
                words = ["".join(self.tokens[start:end]).removeprefix(MARK) for start, end in self.words]
                weights = [weights_TS[start:end].mean(0) for start, end in self.words]
                return self._view_over_picture(words, np.array(weights, np.float32), note, style)
        labels = self.label_slots(slots)
        inputs = ["<s>", *self.tokens[:-1]] if self.tokens else []
        axes: dict[Role, tuple[list[str], list[str]]] = {
            "encoder-self": (labels, labels),
            "decoder-self": (inputs, self.tokens),
            "cross": (labels, self.tokens),
        }
        return HeatMap(weights_TS, *axes[role], note)

    def _view_over_picture(self, words: Sequence[str], weights: Weights, note: str, style: Style) -> ContactSheet:
        """Return a panel for each of some words, given the weights of all memory slots for each word."""
        assert self.layout is not None
        rows, columns = self.layout
        pixels_HW3 = self.pixels
        if pixels_HW3 is None:
            pixels_HW3 = np.full((_PIXELS_PER_CELL * rows, _PIXELS_PER_CELL * columns, 3), 160, np.uint8)
        weights_TYX = weights.reshape(len(words), rows, columns)
        return ContactSheet(pixels_HW3, self.source, self.text, words, weights_TYX, note, style)

    def __repr__(self) -> str:
        return f"Prediction({self.text!r}, score={self.score:.4f})"

    def __str__(self) -> str:
        return self.view().to_text()

    def _repr_html_(self) -> str:
        return self.view().to_html()
