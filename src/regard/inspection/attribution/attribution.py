"""Attribution: the scores of source tokens for each token of a target, and their agreement with attention weights.

K explained steps, T target steps, S parts of the source.
"""

import html as markup
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import ConfigError, check_path
from regard.inspection import figures
from regard.inspection.attribution.agreement import Agreement, kendall, overlap, spearman
from regard.inspection.attribution.settings import Baseline, Method
from regard.inspection.prediction import (
    START_LABEL,
    Prediction,
    SelectedAttention,
    ViewKind,
    build_view,
    select_attention,
)
from regard.inspection.trace.document import Document, read_array, write_array, write_prediction
from regard.inspection.views.appearance import Appearance
from regard.inspection.views.heatmap import AttentionView, HeatMap
from regard.inspection.views.labels import Labels
from regard.inspection.views.maps import Head, Layer, MapSelection
from regard.inspection.views.pictures import Style

END_LABEL = "</s>"

TITLES: Mapping[Method, str] = {
    "gradient_x_input": "Gradient × input",
    "integrated_gradients": "Integrated gradients",
    "occlusion": "Occlusion",
    "value_zeroing": "Value zeroing",
    "attention": "Attention weights",
}

_UNSIGNED = ("value_zeroing", "attention")
"""The methods whose scores are never negative."""


@dataclass(frozen=True, repr=False, eq=False)
class Attribution:
    """How much each part of the source contributes to each token of a target.

    `Model.attribute` returns one. `print` and notebooks show the scores as a heat map.

    Attributes:
        prediction: The prediction or the given target, with its attention weights.
        method: `gradient_x_input`, `integrated_gradients`, `occlusion`, `value_zeroing` or `attention`.
        scores: A row for each explained step, and a column for each token of the source, or each cell of an image.
        steps: The index of the token that each row explains.
        contrast: The other token, if the scores explain why a token was predicted rather than another.
        target_scores: With `previous`, the scores of the inputs of the decoder: the start token and the tokens before.
        deltas: For integrated gradients, the sum of the scores of each row minus the difference of the explained value
            between source and baseline. It is small if there are enough integration steps.
        baseline: The baseline of integrated gradients.
        normalized: Whether each row was divided by the sum of its absolute scores.

    >>> attribution = model.attribute("3 mai 2009", method="occlusion")
    >>> attribution.scores.argmax(1)  # the source token with the largest score, for each token
    >>> attribution.agreement.spearman
    """

    prediction: Prediction
    method: Method
    scores: NDArray[np.float32]
    steps: list[int]
    contrast: str | None = None
    target_scores: NDArray[np.float32] | None = None
    deltas: list[float] | None = None
    baseline: Baseline | None = None
    normalized: bool = False

    @property
    def tokens(self) -> list[str]:
        """The labels of the rows: the tokens that are explained."""
        tokens = [[*self.prediction.tokens, END_LABEL][step] for step in self.steps]
        return tokens if self.contrast is None else [f"{token} rather than {self.contrast}" for token in tokens]

    @property
    def source_tokens(self) -> list[str]:
        """The labels of the columns."""
        return self.prediction.label_slots(self.scores.shape[1])

    @property
    def agreement(self) -> Agreement | None:
        """The agreement with the weights of the last cross-attention, averaged over its heads. None if the model has no
        cross-attention, or if it does not have a memory slot for each token.
        """
        return self.measure_agreement()

    def measure_agreement(
        self, *, attention: str = "cross", layer: Layer | None = None, head: Head | None = None
    ) -> Agreement | None:
        """Return the agreement with other attention weights. For the arguments, see `Prediction.view`.

        >>> attribution.measure_agreement(layer=1, head=3).kendall
        """
        selection = MapSelection(attention, layer, head)
        if selection.find_role(self.prediction.roles) != "cross" or "all" in (layer, head):
            raise ConfigError(
                "Scores of source tokens can be compared only with a single map of cross-attention. Select a layer and "
                "a head, or mean or max over them."
            )
        if self.prediction.attention_name is None:
            return None
        weights_TS = select_attention(self.prediction, selection).maps[0].weights_TS
        if weights_TS.shape[1] != self.scores.shape[1]:
            return None
        pairs = [
            (abs(scores_S), weights_TS[step]) if step < len(weights_TS) else None
            for step, scores_S in zip(self.steps, self.scores, strict=True)
        ]
        # The weights of a saved trace are rounded, and have the same overlap.
        measures = (spearman, kendall, lambda scores_S, weights_S: overlap(scores_S, weights_S.astype(np.float16)))
        return Agreement(*([None if pair is None else measure(*pair) for pair in pairs] for measure in measures))

    def normalize(self) -> "Attribution":
        """Return the scores with each row divided by the sum of its absolute values."""
        if self.normalized:
            return self
        parts = [self.scores] if self.target_scores is None else [self.scores, self.target_scores]
        total_K1 = abs(np.concatenate(parts, 1)).sum(1, keepdims=True)
        scores, *others = ((part / np.where(total_K1 > 0, total_K1, 1)).astype(np.float32) for part in parts)
        return replace(self, scores=scores, target_scores=others[0] if others else None, normalized=True)

    @property
    def title(self) -> str:
        """The method."""
        return TITLES[self.method]

    def view(
        self,
        *,
        words: bool = False,
        kind: ViewKind | None = None,
        colors: str | None = None,
        max_weight: float | None = None,
        title: str | None = None,
        style: Style = "smooth",
    ) -> AttentionView:
        """Return how the scores are shown: `print` it, or save it with `save`.

        Each row is divided by the sum of its absolute scores. In a matrix, blue is positive and red is negative. Lines
        and images show absolute values.

        Args:
            words: Whether to combine the tokens of each word: rows are averaged, columns are summed.
            kind: `matrix` or `lines`.
            colors: A color map: `signed`, `light`, `dark`, or a name that matplotlib knows.
            max_weight: The score of the strongest color. By default, it depends on the largest score.
            title: The title. By default, the method; "" for none.
            style: How scores are drawn over an image: `smooth` or `grid`.

        Raises:
            ConfigError: The color map is unknown, or lines are requested for an image.

        >>> print(attribution.view(words=True))
        """
        is_picture = self.prediction.layout is not None
        signed = self.method not in _UNSIGNED and kind != "lines" and not is_picture
        title = self.title if title is None else title
        appearance = Appearance(colors, max_weight, title, style, signed, "score" if signed else "share")
        return build_view(self._as_prediction(signed=signed), MapSelection(words=words), kind, appearance)

    def view_target(self, *, colors: str | None = None, title: str | None = None) -> AttentionView:
        """Return how the scores of the inputs of the decoder are shown."""
        scores_KT = self.normalize().target_scores
        if scores_KT is None:
            raise ConfigError("There are no scores of the previous tokens. Compute them with previous=True.")
        signed = self.method not in _UNSIGNED
        columns = [START_LABEL, *self.prediction.tokens][: scores_KT.shape[1]]
        labels = Labels(columns, self.tokens, "decoder input", "output")
        title = self.title if title is None else title
        appearance = Appearance(colors, signed=signed, quantity="score" if signed else "share")
        return HeatMap(scores_KT.astype(np.float32), labels, title, appearance)

    def select(self, *, words: bool = False) -> SelectedAttention:
        """Return the scores with the labels of their rows and columns; with `words`, of words."""
        shown = replace(self._as_prediction(signed=True), attentions={self.method: self.scores})
        return replace(select_attention(shown, MapSelection(words=words)), title=self.title)

    def save(self, path: str | Path) -> None:
        """Write the scores to a file.

        Args:
            path: A .svg, .png, .pdf or .html file for a figure, or a .json file for a trace with the scores.

        Raises:
            ConfigError: The path has another extension, or its folder does not exist.

        >>> attribution.save("attribution.svg")
        """
        document = {**write_prediction(self.prediction), "attributions": [self.document]}
        figures.save_all([figures.Figure(self.prediction, self.view(), document)], check_path(path))

    def _as_prediction(self, *, signed: bool) -> Prediction:
        """Return a prediction with the scores in place of attention weights, which the views draw."""
        scores = self.normalize().scores.astype(np.float32)
        return replace(
            self.prediction,
            tokens=self.tokens,
            attentions={self.method: scores if signed else abs(scores)},
            roles={self.method: "cross"},
            alternatives=[],
        )

    def __repr__(self) -> str:
        size = " × ".join(map(str, self.scores.shape))
        return f"Attribution({self.prediction.text!r}, method={self.method!r}, {size} scores)"

    def __str__(self) -> str:
        return "\n".join([self.view().to_text(), *self._notes])

    def _repr_html_(self) -> str:
        notes = "".join(f'<div style="font:13px sans-serif">{markup.escape(note)}</div>' for note in self._notes)
        return f"{self.view().to_html()}{notes}"

    @property
    def _notes(self) -> list[str]:
        notes = self.describe(self.agreement)
        return ["", *notes] if notes else []

    def describe(self, agreement: Agreement | None) -> list[str]:
        """Describe the agreement with attention weights, and the error of integrated gradients, a line for each."""
        lines = [] if agreement is None or self.method == "attention" else [str(agreement)]
        if self.deltas:
            lines.append(f"Largest convergence delta: {max(map(abs, self.deltas)):.2g}")
        return lines

    def to_document(self, *, words: bool = False, agreement: Agreement | None = None) -> dict[str, Any]:
        """Return the scores as values of JSON, with their labels, and the given agreement."""
        selected = self.select(words=words)
        return {
            **self._facts(agreement),
            "columns": list(selected.labels.columns),
            "rows": list(selected.labels.rows),
            "scores": selected.maps[0].weights_TS.tolist(),
        }

    @property
    def document(self) -> Document:
        """The scores as the document of a trace contains them."""
        return {
            **self._facts(self.agreement),
            "normalized": self.normalized,
            **write_array(self.scores, "float32"),
            "target_scores": None if self.target_scores is None else write_array(self.target_scores, "float32"),
        }

    @classmethod
    def from_document(cls, entry: Document, prediction: Prediction) -> "Attribution":
        """Read an attribution from the document of a trace, given its prediction."""
        target_scores = entry["target_scores"]
        return cls(
            prediction,
            entry["method"],
            read_array(entry),
            entry["steps"],
            entry["contrast"],
            None if target_scores is None else read_array(target_scores),
            entry["deltas"],
            entry["baseline"],
            entry["normalized"],
        )

    def _facts(self, agreement: Agreement | None) -> dict[str, Any]:
        """Return how the scores were computed, and their agreement with attention weights, as values of JSON."""
        return {
            "method": self.method,
            "steps": self.steps,
            "contrast": self.contrast,
            "baseline": self.baseline,
            "deltas": self.deltas,
            "spearman": None if agreement is None else agreement.spearman,
            "kendall": None if agreement is None else agreement.kendall,
            "overlap": None if agreement is None else agreement.overlap,
        }
