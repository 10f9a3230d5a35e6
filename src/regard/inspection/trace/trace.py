"""Trace: a prediction with all attention weights of the model and how it was computed, as a JSON document or an HTML
page; and what edits changed, compared with the prediction without them.
"""

import html as markup
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from regard.decoding.search import AttentionWeights
from regard.decoding.tracing import (
    AttentionInputs,
    BeamNode,
    Candidate,
    CellStates,
    MechanismRecord,
    Step,
)
from regard.errors import ConfigError, DataError, check_output_folder, check_path
from regard.formatting import quantity, replace_nonfinite, to_json
from regard.inspection.attribution.attribution import Attribution
from regard.inspection.prediction import Prediction
from regard.inspection.trace.document import (
    FORMAT,
    Document,
    from_finite,
    read_arrays,
    read_prediction,
    write_arrays,
    write_prediction,
)
from regard.inspection.trace.page import parse_document, render_trace
from regard.inspection.views.pictures import Style
from regard.regular_files import read_regular

EXTENSIONS = (".json", ".html")

DECIMALS = 6
"""Total variation is rounded, because an attention with edits rounds differently from one without."""


class Changes(NamedTuple):
    """The best prediction without the edits, and how it differs."""

    text: str
    tokens: list[str]
    score: float
    first_step: int | None
    """The first step at which the tokens differ; None if they are the same."""
    variation: dict[str, list[float]]
    """The total variation of the weights of each attention, ½ Σ_j |a_j − a'_j|, at each step of both, averaged over
    heads. An attention with another number of keys than before is left out.
    """


@dataclass(frozen=True, repr=False, eq=False)
class Trace:
    """A prediction with all attention weights of the model, and how it was computed.

    `Model.trace` returns one. Two traces are equal if their documents are equal. `docs/trace-document.md` describes
    the format.

    Attributes:
        prediction: The prediction, with the other hypotheses as its `alternatives`.
        model: The model: its architecture, settings, training step and dtype.
        style: How weights are drawn over an image: `smooth` or `grid`.
        settings: The settings of the search, and the constraints.
        steps: The steps of each hypothesis, the end token included: each token with its log-probability, the entropy of
            the distribution, and the most likely tokens.
        beam: The candidates of each step of beam search: kept, finished or pruned. None for another search.
        mechanisms: The score, scope and selection of each attention, by name; and their parameters, with `queries`.
        inputs: What the weights of each attention are computed from, with `queries`.
        states: The states and gates of each recurrent cell, with `states`.
        attributions: The scores of source tokens for the first hypothesis, as `Model.attribute` returns them.
        edits: Changes of the source, the weights or the output that the trace was computed with, as JSON.
        changes: What the edits changed, compared with the prediction without them; None if there are no edits.

    >>> trace = model.trace("3 mai 2009", beam=3)
    >>> trace.steps[0][0].top
    >>> trace.save("trace.json")
    >>> regard.Trace.load("trace.json") == trace
    """

    prediction: Prediction
    model: dict[str, Any] = field(default_factory=dict)
    style: Style = "smooth"
    settings: dict[str, Any] = field(default_factory=dict)
    steps: list[list[Step]] = field(default_factory=list)
    beam: list[list[BeamNode]] | None = None
    mechanisms: dict[str, MechanismRecord] = field(default_factory=dict)
    inputs: list[AttentionInputs] = field(default_factory=list)
    states: list[CellStates] = field(default_factory=list)
    attributions: list[Attribution] = field(default_factory=list)
    edits: list[dict[str, Any]] = field(default_factory=list)
    changes: Changes | None = None

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Read a trace from a .json or .html file that `save` has written.

        The trace is equal to the saved one. Its attention weights are rounded to float16, unless the trace was recorded
        with `queries`.

        Args:
            path: The path of the file.

        Returns:
            The trace.

        Raises:
            DataError: The file cannot be read, or does not contain a trace in the format of this version.
            ArgumentTypeError: The argument is not a path.

        >>> trace = model.trace("3 mai 2009")
        >>> trace.save("trace.html")
        >>> regard.Trace.load("trace.html").prediction
        """
        check_path(path)
        try:
            return cls._from_document(parse_document(read_regular(path).decode("utf-8")))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}. Check the path.") from error
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            problem = f"it has no field {error}" if isinstance(error, KeyError) else str(error)
            if isinstance(error, TypeError | AttributeError):
                problem = f"a field has the wrong type ({error})"
            raise DataError(
                f"{path} is not a valid trace: {problem}. Write it again with `Trace.save` or `regard look`."
            ) from error

    @classmethod
    def _from_document(cls, document: Document) -> "Trace":
        """Return the trace of a document. Raise ValueError, KeyError or TypeError if the document is not valid."""
        if document["format"] != FORMAT:
            found = document["format"]
            raise ValueError(f"it has the format {found}, and this version of regard reads format {FORMAT}")
        beam, prediction, changes = document["beam"], read_prediction(document), document.get("changes")
        return cls(
            prediction,
            document["model"],
            settings=document["settings"],
            steps=[list(map(_read_step, steps)) for steps in document["steps"]],
            beam=None if beam is None else [list(map(_read_node, nodes)) for nodes in beam],
            mechanisms={
                name: MechanismRecord(**{**mechanism, "parameters": read_arrays(mechanism["parameters"])})
                for name, mechanism in document["mechanisms"].items()
            },
            inputs=[
                AttentionInputs(entry["name"], entry["hypothesis"], read_arrays(entry["inputs"]))
                for entry in document["attention"]
                if "inputs" in entry
            ],
            states=[
                CellStates(**{**entry, **{name: read_arrays(entry[name]) for name in ("initial", "states", "gates")}})
                for entry in document["states"]
            ],
            # Documents of this format that were written before there were attributions have no such field.
            attributions=[Attribution.from_document(entry, prediction) for entry in document.get("attributions", [])],
            edits=document["edits"],
            # Documents of this format that were written before there were edits have no such field.
            changes=None if changes is None else Changes(**{**changes, "score": from_finite(changes["score"])}),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self.document == other.document

    __hash__ = None  # type: ignore[assignment] # as for any other mutable content

    def __repr__(self) -> str:
        prediction = self.prediction
        lines = [
            f"source: {prediction.source!r} ({_describe_slots(prediction)})",
            f"output: {prediction.text!r} ({quantity(len(prediction.tokens), 'token')}), "
            f"log-probability {prediction.score:.4f}",
            *([] if self.changes is None else [f"without {quantity(len(self.edits), 'edit')}: {self.changes.text!r}"]),
            *(f"{name}: {' × '.join(map(str, weights.shape))}" for name, weights in prediction.attentions.items()),
        ]
        return "\n".join(["Trace(", *(f"  {line}" for line in lines), ")"])

    def _repr_html_(self) -> str:
        """For notebooks: the heat map of the prediction, and the shape of every recorded attention."""
        shapes = "".join(
            f"<li>{markup.escape(name)}: {' × '.join(map(str, weights.shape))}</li>"
            for name, weights in self.prediction.attentions.items()
        )
        prediction = self.prediction
        title = (
            f"<bdi>{markup.escape(prediction.source)}</bdi> → <bdi>{markup.escape(prediction.text)}</bdi>, "
            f"log-probability {prediction.score:.4f}"
        )
        return f"<p>{title}</p>{self.prediction.view(style=self.style).to_html()}<ul>{shapes}</ul>"

    @property
    def document(self) -> Document:
        """The trace as `save` writes it to a JSON file."""
        document = {
            **write_prediction(self.prediction, self.inputs),
            "model": self.model,
            "steps": [
                [{**step._asdict(), "top": [each._asdict() for each in step.top]} for step in steps]
                for steps in self.steps
            ],
            "beam": None if self.beam is None else [[node._asdict() for node in nodes] for nodes in self.beam],
            "mechanisms": {
                name: {**mechanism._asdict(), "parameters": write_arrays(mechanism.parameters)}
                for name, mechanism in self.mechanisms.items()
            },
            "states": [
                {
                    **states._asdict(),
                    "initial": write_arrays(states.initial),
                    "states": write_arrays(states.states),
                    "gates": write_arrays(states.gates),
                }
                for states in self.states
            ],
            "attributions": [attribution.document for attribution in self.attributions],
            "settings": self.settings,
            "edits": self.edits,
            "changes": None if self.changes is None else self.changes._asdict(),
        }
        return cast(Document, replace_nonfinite(document))

    def to_html(self) -> str:
        """Return an HTML page that works offline: the page of the explorer, with the steps, the beam, every attention
        and head, and the document.
        """
        return render_trace(self.document, self.style)

    def save(self, path: str | Path) -> None:
        """Write the trace to a file.

        Args:
            path: The path of a .json or .html file. The page contains the JSON document, so that `load` reads both.

        Raises:
            ConfigError: The path has another extension, or its folder does not exist.
            ArgumentTypeError: The argument is not a path.

        >>> model.trace("3 mai 2009").save("trace.html")
        """
        path = check_path(path)
        check_output_folder(path)
        if path.suffix.lower() not in EXTENSIONS:
            raise ConfigError(f"{path}: a trace is saved as .json or .html. Use one of these extensions.")
        text = self.to_html() if path.suffix.lower() == ".html" else to_json(self.document, ensure_ascii=False)
        path.write_text(text, "utf-8")


def _describe_slots(prediction: Prediction) -> str:
    if prediction.layout is not None:
        return f"{prediction.layout.height} × {prediction.layout.width} slots"
    return quantity(len(prediction.source_tokens), "token")


def _read_step(entry: Document) -> Step:
    top = [Candidate(**{**each, "log_prob": from_finite(each["log_prob"])}) for each in entry["top"]]
    return Step(**{**entry, "log_prob": from_finite(entry["log_prob"]), "top": top})


def _read_node(entry: Document) -> BeamNode:
    values = {name: from_finite(entry[name]) for name in ("score", "log_prob")}
    return BeamNode(**{**entry, **values})


def compare_predictions(before: Prediction, after: Prediction) -> Changes:
    """Compare the best predictions without and with edits."""
    pairs = zip(before.tokens, after.tokens, strict=False)
    common = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    is_same = common == len(before.tokens) == len(after.tokens)
    variation = {}
    for name, weights in after.attentions.items():
        is_target = after.roles[name] == "decoder-self"
        if is_target or weights.shape[-1] == before.attentions[name].shape[-1]:
            variation[name] = _total_variation(before.attentions[name], weights)
    return Changes(before.text, before.tokens, before.score, None if is_same else common, variation)


def _total_variation(before: AttentionWeights, after: AttentionWeights) -> list[float]:
    """Return the total variation of each row that both have. If one has more keys, the missing weights count as 0."""
    rows, columns = np.minimum(before.shape[-2:], after.shape[-2:])
    difference = np.abs(before[..., :rows, :columns] - after[..., :rows, :columns]).sum(-1, dtype=np.float64) / 2
    average_T = difference.mean(0) if difference.ndim == 2 else difference
    rounded: list[float] = np.round(average_T, DECIMALS).tolist()
    return rounded
