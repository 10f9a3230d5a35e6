"""Prediction: the output of a model with its attention weights, and the views that show them."""

import html as markup
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from regard.attention.attention import Role
from regard.data.sources import SourceItem
from regard.data.tokens.tokenizers import Tokenizer
from regard.decoding.search import AttentionWeights, Hypothesis
from regard.errors import ConfigError, check_choice
from regard.inspection.views.appearance import Appearance
from regard.inspection.views.contact_sheet import ContactSheet
from regard.inspection.views.heatmap import AttentionView, HeatMap
from regard.inspection.views.labels import Labels, Span, find_words, isolate, join_word
from regard.inspection.views.line_view import LineView
from regard.inspection.views.map_grid import MapGrid
from regard.inspection.views.maps import AttentionMap, Head, Layer, MapSelection, combine_words
from regard.inspection.views.pictures import PixelArray, Style
from regard.models.contracts import Grid

ViewKind = Literal["matrix", "grid", "lines"]


class ViewOptions(TypedDict, total=False):
    """The keyword arguments of `Prediction.view`."""

    attention: str
    layer: Layer | None
    head: Head | None
    words: bool
    kind: ViewKind | None
    colors: str | None
    max_weight: float | None
    title: str | None
    style: Style


START_LABEL = "<s>"

_PIXELS_PER_CELL = 16
"""The size of the gray image that replaces a source without pixels."""

_AXES: dict[Role, tuple[str, str]] = {
    "cross": ("source", "output"),
    "encoder-self": ("source (keys)", "source (queries)"),
    "decoder-self": ("decoder input (keys)", "output (queries)"),
}


@dataclass(frozen=True, eq=False)
class SelectedAttention:
    """The attention weights that are selected from a prediction: one map, or a map for each layer and head."""

    role: Role
    title: str
    maps: list[AttentionMap]
    labels: Labels

    @property
    def document(self) -> dict[str, Any]:
        """The weights and labels as values of JSON."""
        return {
            "role": self.role,
            "title": self.title,
            "columns": list(self.labels.columns),
            "rows": list(self.labels.rows),
            "maps": [
                {"layer": part.layer, "head": part.head, "weights": part.weights_TS.tolist()} for part in self.maps
            ],
        }


@dataclass(frozen=True, repr=False)
class Prediction:
    """A predicted text, its log-probability, and the attention weights of each of its tokens.

    `print` and notebooks show the attention weights: as a heat map, or over the image that the model describes.

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
        members: The number of models, if the prediction is that of an ensemble; 1 otherwise.
        alternatives: The other predictions if `nbest` is above 1, best first.
        ranking_score: The value by which the predictions for a source are sorted (truncated ones last): in beam search,
            the log-probability divided by the length penalty, with the other penalties; with `mbr_samples`, the average
            chrF against all samples; otherwise the log-probability. None if it is not known.
        looped: Whether greedy search repeated a few tokens in a loop, of which only the first cycle is kept.
        item: The source as its reader returned it; the pixels of an image are read from it when they are shown.

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
    attentions: dict[str, AttentionWeights] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    members: int = 1
    alternatives: list["Prediction"] = field(default_factory=list)
    ranking_score: float | None = None
    looped: bool = False
    item: SourceItem | None = field(default=None, compare=False)

    @classmethod
    def from_nbest(
        cls,
        source: SourceItem,
        nbest: Sequence[Hypothesis],
        tokenizer: Tokenizer,
        roles: Mapping[str, Role] | None = None,
        members: int = 1,
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
            members=members,
            item=source,
        )
        best, *others = (
            prediction(
                text=tokenizer.decode(hypothesis.tokens),
                score=hypothesis.score,
                ranking_score=hypothesis.rank,
                tokens=tokenizer.tokens(hypothesis.tokens),
                truncated=hypothesis.truncated,
                looped=hypothesis.looped,
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
    def attention(self) -> AttentionWeights:
        """The weights of the last cross-attention (T × S), averaged over its heads. They have a row for each token of
        the prediction and a column for each memory slot: in most models, for each token of the source. Zeros if the
        model has no cross-attention.
        """
        if self.attention_name is None:
            return np.zeros((len(self.tokens), len(self.source_tokens)), dtype=np.float32)
        weights = self.attentions[self.attention_name]
        return weights if weights.ndim == 2 else weights.mean(0)

    @property
    def map_count(self) -> int:
        """The number of maps in `attentions`: one for each attention and head."""
        return sum(1 if weights.ndim == 2 else len(weights) for weights in self.attentions.values())

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
    def words(self) -> list[Span]:
        """The tokens of each word, as spans. If no token starts a word with "▁" or a space, each token is a word."""
        return find_words(self.tokens)

    @property
    def pixels(self) -> PixelArray | None:
        """The image as the encoder reads it (height, width, 3); None if the source is not an image."""
        return None if self.item is None else self.item.pixels

    def view(
        self,
        *,
        attention: str = "cross",
        layer: Layer | None = None,
        head: Head | None = None,
        words: bool = False,
        kind: ViewKind | None = None,
        colors: str | None = None,
        max_weight: float | None = None,
        title: str | None = None,
        style: Style = "smooth",
    ) -> AttentionView:
        """Select attention weights, and return how they are shown: `print` it, or save it with `figures.save`.

        Args:
            attention: A role (`cross`, `encoder-self` or `decoder-self`), or the name of an attention in `attentions`.
            layer: A layer of this role, counted from 1; `mean` or `max` over the layers; `rollout` (Abnar and Zuidema
                2020); `all`. By default the last layer.
            head: A head, counted from 1; `mean` or `max` over the heads; `all`. By default `mean`.
            words: Whether to combine the tokens of each word: rows are averaged, columns are summed.
            kind: `matrix`, `grid` (a map for each layer and head) or `lines`. By default a matrix, or a grid if several
                maps are selected.
            colors: A color map: `light`, `dark`, or a name that matplotlib knows.
            max_weight: The weight of the strongest color. By default, it depends on the largest weight.
            title: The title. By default, which weights are shown; "" for none.
            style: How weights are drawn over an image: `smooth` or `grid`.

        Returns:
            The view: a heat map, a grid, lines, or a contact sheet of an image.

        Raises:
            ConfigError: The model has no such attention, layer or head, or the color map is unknown.

        >>> print(prediction.view(head="max", words=True))
        >>> prediction.view(kind="grid").build_figure().savefig("heads.pdf", bbox_inches="tight")
        """
        selection = MapSelection(attention, layer, head, words)
        return build_view(self, selection, kind, Appearance(colors, max_weight, title, style))

    def select(
        self,
        *,
        attention: str = "cross",
        layer: Layer | None = None,
        head: Head | None = None,
        words: bool = False,
        kind: ViewKind | None = None,
    ) -> SelectedAttention:
        """Return the weights that `view` shows, with the labels of their rows and columns. For the arguments, see
        `view`.

        >>> prediction.select(head="max", words=True).maps[0].weights_TS
        """
        return select_attention(self, MapSelection(attention, layer, head, words), kind)

    def __repr__(self) -> str:
        return f"Prediction({self.text!r}, score={self.score:.4f})"

    def __str__(self) -> str:
        return self.view().to_text()

    @property
    def heading(self) -> str:
        """The source, the prediction and its log-probability."""
        return f"{isolate(self.source)} → {isolate(self.text)}   (log-probability {self.score:.4f})"

    def _repr_html_(self) -> str:
        heading = f'<div style="font:14px sans-serif;margin:4px 0">{markup.escape(self.heading)}</div>'
        return f"{heading}{self.view().to_html()}"


def select_attention(
    prediction: Prediction, selection: MapSelection, kind: ViewKind | None = None
) -> SelectedAttention:
    """Select attention weights of a prediction, and label their rows and columns. By default, a grid shows all layers
    and heads.
    """
    if kind is not None:
        check_choice("kind", kind, get_args(ViewKind))
    if kind == "grid":
        is_layer = selection.attention in prediction.attentions
        selection = replace(
            selection,
            layer=selection.layer or (None if is_layer else "all"),
            head=selection.head or ("mean" if selection.layer == "rollout" else "all"),
        )
    if selection.layer == "rollout" and prediction.members > 1:
        raise ConfigError(
            f"Attention rollout is defined for one model, and this is an ensemble of {prediction.members}. Select a "
            "layer, or load one model."
        )
    role = selection.find_role(prediction.roles)
    if role == "cross" and selection == MapSelection(words=selection.words) and prediction.attention_name is None:
        maps, title = [AttentionMap(prediction.attention)], "The model has no cross-attention."
    else:
        maps, title = selection.select_maps(prediction.attentions, prediction.roles)
        if prediction.members > 1:
            title += f" (the layers of {prediction.members} models)"
    columns, rows = _label_axes(prediction, role, maps[0].weights_TS.shape[1])
    if selection.words and columns and rows:
        column_words, row_words = (_find_axis_words(prediction, role, labels) for labels in (columns, rows))
        maps = [replace(part, weights_TS=combine_words(part.weights_TS, row_words, column_words)) for part in maps]
        columns, rows = _join_words(columns, column_words), _join_words(rows, row_words)
    return SelectedAttention(role, title, maps, Labels(columns, rows, *_AXES[role]))


def _label_axes(prediction: Prediction, role: Role, slots: int) -> tuple[list[str], list[str]]:
    """Return the labels of the columns and of the rows."""
    if role == "decoder-self":
        return ([START_LABEL, *prediction.tokens[:-1]] if prediction.tokens else []), prediction.tokens
    labels = prediction.label_slots(slots)
    return labels, labels if role == "encoder-self" else prediction.tokens


def _find_axis_words(prediction: Prediction, role: Role, labels: Sequence[str]) -> list[Span]:
    """Return the words of an axis. The start token, and slots that are not tokens, are words of their own."""
    if role == "decoder-self" and labels[0] == START_LABEL:
        return [(0, 1), *((start + 1, end + 1) for start, end in find_words(labels[1:]))]
    if labels is prediction.source_tokens or labels is prediction.tokens:
        return find_words(labels)
    return [(index, index + 1) for index in range(len(labels))]


def _join_words(labels: Sequence[str], words: Sequence[Span]) -> list[str]:
    return [join_word(labels[start:end]) for start, end in words]


def build_view(
    prediction: Prediction, selection: MapSelection, kind: ViewKind | None, appearance: Appearance
) -> AttentionView:
    """Return how the selected weights of a prediction are shown. By default, several maps are shown as a grid."""
    if prediction.layout is not None:  # a panel for each token would be too many
        selection = replace(selection, words=True)
    selected = select_attention(prediction, selection, kind)
    title = selected.title if appearance.title is None else appearance.title
    maps = selected.maps
    if _is_over_picture(prediction, selected):
        if kind == "lines":
            raise ConfigError("Lines connect tokens, and the source is an image. Use the view matrix or grid.")
        return _view_over_picture(prediction, selected, title, appearance)
    if kind == "lines":
        if len({part.layer for part in maps}) > 1:
            raise ConfigError("Lines show one layer, but several are selected. Select a layer, or use the view grid.")
        names = [f"head {part.head}" for part in maps]
        return LineView([part.weights_TS for part in maps], selected.labels, title, names, appearance)
    if kind == "grid" or len(maps) > 1:
        if kind == "matrix":
            raise ConfigError(
                f"A matrix shows one map, but {len(maps)} are selected. Select a layer and a head, or use the view "
                "grid."
            )
        return MapGrid(maps, selected.labels, title, appearance)
    return HeatMap(maps[0].weights_TS, selected.labels, title, appearance)


def _is_over_picture(prediction: Prediction, selected: SelectedAttention) -> bool:
    grid = prediction.layout
    slots = selected.maps[0].weights_TS.shape[1]
    return grid is not None and slots == grid.height * grid.width and selected.role != "decoder-self"


def _view_over_picture(
    prediction: Prediction, selected: SelectedAttention, title: str, appearance: Appearance
) -> ContactSheet:
    """Return a panel for each word. A map for each word and head, or for each cell, would be too many: they are
    averaged over the words or the cells.
    """
    if len(selected.maps) > 1:
        words = [part.name for part in selected.maps]
        weights = [part.weights_TS.mean(0) for part in selected.maps]
        title = f"{title}, averaged over the {'words' if selected.role == 'cross' else 'cells'}" if title else ""
    elif selected.role == "encoder-self":
        words, weights = ["average over the cells"], [selected.maps[0].weights_TS.mean(0)]
    else:
        words, weights = list(selected.labels.rows), list(selected.maps[0].weights_TS)
    assert prediction.layout is not None
    rows, columns = prediction.layout
    pixels_HW3 = prediction.pixels
    if pixels_HW3 is None:
        pixels_HW3 = np.full((_PIXELS_PER_CELL * rows, _PIXELS_PER_CELL * columns, 3), 160, np.uint8)
    weights_TYX: AttentionWeights = np.array(weights, np.float32).reshape(len(words), rows, columns)
    return ContactSheet(pixels_HW3, prediction.source, prediction.text, words, weights_TYX, title, appearance.style)
