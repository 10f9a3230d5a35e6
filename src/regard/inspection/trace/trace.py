"""Trace: a prediction with all attention weights of the model and how it was computed, as a JSON document or an HTML
page.
"""

import html as markup
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.data.sources import SourceItem
from regard.data.tokens.tokenizers import Tokenizer
from regard.decoding.tracing import (
    AttentionInputs,
    BeamNode,
    CellStates,
    MechanismRecord,
    Step,
    TracedSearch,
)
from regard.errors import ConfigError, DataError, check_output_folder, check_path
from regard.formatting import quantity, to_json
from regard.inspection.attribution.attribution import Attribution
from regard.inspection.prediction import Prediction
from regard.inspection.trace.changes import Changes
from regard.inspection.trace.document import Document, TraceParts, parse_document, read_document, write_document
from regard.inspection.trace.page import render_page, render_title
from regard.inspection.views.pictures import Style
from regard.regular_files import read_regular

EXTENSIONS = (".json", ".html")


@dataclass(frozen=True, repr=False, eq=False)
class Trace:
    """A prediction with all attention weights of the model, and how it was computed.

    `Model.trace` returns one. Two traces are equal if their documents are equal: `docs/trace.md` describes the format.

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
    def from_search(
        cls,
        source: SourceItem,
        traced: TracedSearch,
        tokenizer: Tokenizer,
        model: dict[str, Any],
        settings: dict[str, Any],
    ) -> "Trace":
        """Return the trace of a search for one source."""
        roles = {name: mechanism.role for name, mechanism in traced.mechanisms.items()}
        prediction = Prediction.from_nbest(source, traced.nbest, tokenizer, roles, model.get("members", 1))
        return cls(prediction, model, "smooth", settings, *traced[1:])

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
            parts = read_document(parse_document(read_regular(path).decode("utf-8")))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}. Check the path.") from error
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            problem = f"it has no field {error}" if isinstance(error, KeyError) else str(error)
            if isinstance(error, TypeError | AttributeError):
                problem = f"a field has the wrong type ({error})"
            raise DataError(
                f"{path} is not a valid trace: {problem}. Write it again with `Trace.save` or `regard look`."
            ) from error
        return cls(**parts._asdict())

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
        title = render_title(self.prediction)
        return f"<p>{title}</p>{self.prediction.view(style=self.style).to_html()}<ul>{shapes}</ul>"

    @property
    def _parts(self) -> TraceParts:
        return TraceParts(
            self.prediction,
            self.model,
            self.settings,
            self.steps,
            self.beam,
            self.mechanisms,
            self.inputs,
            self.states,
            self.attributions,
            self.edits,
            self.changes,
        )

    @property
    def document(self) -> Document:
        """The trace as `save` writes it to a JSON file."""
        return write_document(self._parts)

    def to_html(self) -> str:
        """Return an HTML page that works offline: steps, beam, a view of each attention and head, and the document."""
        return render_page(self._parts, self.document, self.style)

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
