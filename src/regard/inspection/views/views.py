"""Build the view of a prediction: select attention weights, label them, and choose how they are drawn."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import numpy as np

from regard.attention.attention import Role
from regard.decoding.search import AttentionWeights
from regard.errors import ConfigError, check_choice
from regard.inspection.views.appearance import Appearance
from regard.inspection.views.contact_sheet import ContactSheet
from regard.inspection.views.heatmap import AttentionView, HeatMap
from regard.inspection.views.labels import Labels
from regard.inspection.views.line_view import LineView
from regard.inspection.views.map_grid import MapGrid
from regard.inspection.views.pictures import Style
from regard.inspection.views.selection import AttentionMap, Head, Layer, Selection, combine_words
from regard.inspection.views.words import Span, find_words, join_word

if TYPE_CHECKING:
    from regard.inspection.prediction import Prediction

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


def select_attention(prediction: "Prediction", selection: Selection, kind: ViewKind | None = None) -> SelectedAttention:
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
    if role == "cross" and selection == Selection(words=selection.words) and prediction.attention_name is None:
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


def _label_axes(prediction: "Prediction", role: Role, slots: int) -> tuple[list[str], list[str]]:
    """Return the labels of the columns and of the rows."""
    if role == "decoder-self":
        return ([START_LABEL, *prediction.tokens[:-1]] if prediction.tokens else []), prediction.tokens
    labels = prediction.label_slots(slots)
    return labels, labels if role == "encoder-self" else prediction.tokens


def _find_axis_words(prediction: "Prediction", role: Role, labels: Sequence[str]) -> list[Span]:
    """Return the words of an axis. The start token, and slots that are not tokens, are words of their own."""
    if role == "decoder-self" and labels[0] == START_LABEL:
        return [(0, 1), *((start + 1, end + 1) for start, end in find_words(labels[1:]))]
    if labels is prediction.source_tokens or labels is prediction.tokens:
        return find_words(labels)
    return [(index, index + 1) for index in range(len(labels))]


def _join_words(labels: Sequence[str], words: Sequence[Span]) -> list[str]:
    return [join_word(labels[start:end]) for start, end in words]


def build_view(
    prediction: "Prediction", selection: Selection, kind: ViewKind | None, appearance: Appearance
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


def _is_over_picture(prediction: "Prediction", selected: SelectedAttention) -> bool:
    grid = prediction.layout
    slots = selected.maps[0].weights_TS.shape[1]
    return grid is not None and slots == grid.height * grid.width and selected.role != "decoder-self"


def _view_over_picture(
    prediction: "Prediction", selected: SelectedAttention, title: str, appearance: Appearance
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
