"""The JSON document of a trace: `docs/trace.md` describes every field."""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import numpy as np

from regard.attention.attention import Role
from regard.data.sources import SourceItem, Span
from regard.decoding.tracing import (
    Array,
    AttentionInputs,
    BeamNode,
    Candidate,
    CellStates,
    MechanismRecord,
    Step,
)
from regard.formatting import parse_json, to_json
from regard.inspection.attribution.attribution import Attribution, describe_attribution
from regard.inspection.prediction import Prediction
from regard.inspection.trace.changes import Changes
from regard.inspection.views.pictures import PixelArray
from regard.models.contracts import Grid

FORMAT: Final = 3
"""The version of the JSON document."""

DTYPES: Final = ("float16", "float32", "int64", "uint8", "bool")
"""The dtypes of arrays in a document."""

Document = dict[str, Any]

_OPEN_TAG, _CLOSE_TAG = '<script type="application/json" id="trace">', "</script>"


class TraceParts(NamedTuple):
    """The parts of a trace, as the document contains them."""

    prediction: Prediction
    model: dict[str, Any]
    settings: dict[str, Any]
    steps: list[list[Step]]
    beam: list[list[BeamNode]] | None
    mechanisms: dict[str, MechanismRecord]
    inputs: list[AttentionInputs]
    states: list[CellStates]
    attributions: list[Attribution]
    edits: list[dict[str, Any]]
    changes: Changes | None


def write_document(parts: TraceParts) -> Document:
    """Return the document of a trace."""
    prediction = parts.prediction
    return {
        "format": FORMAT,
        "model": parts.model,
        "source": _write_source(prediction),
        "hypotheses": [
            {
                "text": each.text,
                "tokens": each.tokens,
                "score": _to_finite(each.score),
                "ranking_score": _to_finite(each.score if each.ranking_score is None else each.ranking_score),
                "truncated": each.truncated,
                "looped": each.looped,
            }
            for each in (prediction, *prediction.alternatives)
        ],
        "steps": [[_write_step(step) for step in steps] for steps in parts.steps],
        "beam": None if parts.beam is None else [list(map(_write_node, nodes)) for nodes in parts.beam],
        "attention": _write_attention(parts),
        "mechanisms": {
            name: {**mechanism._asdict(), "parameters": _write_arrays(mechanism.parameters)}
            for name, mechanism in parts.mechanisms.items()
        },
        "states": [
            {
                **states._asdict(),
                "initial": _write_arrays(states.initial),
                "states": _write_arrays(states.states),
                "gates": _write_arrays(states.gates),
            }
            for states in parts.states
        ],
        "attributions": list(map(write_attribution, parts.attributions)),
        "settings": parts.settings,
        "edits": parts.edits,
        "changes": None if parts.changes is None else _write_changes(parts.changes),
    }


def write_array(array: Array, dtype: str | None = None) -> Document:
    """Encode an array: its shape, its dtype, and its bytes in C order, little-endian, as base64."""
    name = dtype or str(array.dtype)
    assert name in DTYPES
    data = np.ascontiguousarray(array, np.dtype(name).newbyteorder("<")).tobytes()
    return {"shape": list(array.shape), "dtype": name, "data": base64.b64encode(data).decode("ascii")}


def _write_arrays(arrays: Mapping[str, Array]) -> Document:
    return {name: write_array(array) for name, array in arrays.items()}


def _write_source(prediction: Prediction) -> Document:
    pixels_HW3 = prediction.pixels
    return {
        "text": prediction.source,
        "tokens": prediction.source_tokens,
        "offsets": [list(span) for span in prediction.offsets],
        "unknown": prediction.unknown,
        "grid": None if prediction.layout is None else list(prediction.layout),
        "picture": None if pixels_HW3 is None else write_array(pixels_HW3),
    }


def _write_step(step: Step) -> Document:
    top = [{**candidate._asdict(), "log_prob": _to_finite(candidate.log_prob)} for candidate in step.top]
    return {**step._asdict(), "log_prob": _to_finite(step.log_prob), "top": top}


def _write_node(node: BeamNode) -> Document:
    return {**node._asdict(), "score": _to_finite(node.score), "log_prob": _to_finite(node.log_prob)}


def _write_attention(parts: TraceParts) -> list[Document]:
    """Return an entry for each attention of the encoder, and for each attention of the decoder and hypothesis."""
    prediction = parts.prediction
    layers = number_layers(prediction.roles)
    # Recomputed weights can be compared with those in the document only if these are not rounded to half precision.
    dtype = "float32" if parts.inputs else "float16"
    inputs = {(each.name, each.hypothesis): _write_arrays(each.arrays) for each in parts.inputs}
    entries = []
    for index, hypothesis in enumerate((prediction, *prediction.alternatives)):
        for name, weights in hypothesis.attentions.items():
            role = prediction.roles[name]
            if role == "encoder-self" and index:
                continue  # the hypotheses share the encoder
            owner = None if role == "encoder-self" else index
            entry = {"name": name, "role": role, "layer": layers[name], "hypothesis": owner}
            added = {"inputs": inputs[name, owner]} if (name, owner) in inputs else {}
            entries.append({**entry, **write_array(weights, dtype), **added})
    return entries


def write_attribution(attribution: Attribution) -> Document:
    target_scores = attribution.target_scores
    return {
        **describe_attribution(attribution, attribution.agreement),
        "normalized": attribution.normalized,
        **write_array(attribution.scores, "float32"),
        "target_scores": None if target_scores is None else write_array(target_scores, "float32"),
    }


def _read_attribution(entry: Document, prediction: Prediction) -> Attribution:
    target_scores = entry["target_scores"]
    return Attribution(
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


def number_layers(roles: Mapping[str, Role]) -> dict[str, int]:
    """Return the index of each attention among those with the same role."""
    counts: dict[Role, int] = {}
    layers = {}
    for name, role in roles.items():
        layers[name] = counts.get(role, 0)
        counts[role] = layers[name] + 1
    return layers


def read_document(document: Document) -> TraceParts:
    """Return the parts of a trace. Raise ValueError, KeyError or TypeError if the document is not valid."""
    if document["format"] != FORMAT:
        raise ValueError(f"it has the format {document['format']}, and this version of regard reads format {FORMAT}")
    beam, prediction = document["beam"], _read_prediction(document)
    return TraceParts(
        prediction,
        document["model"],
        document["settings"],
        [list(map(_read_step, steps)) for steps in document["steps"]],
        None if beam is None else [list(map(_read_node, nodes)) for nodes in beam],
        {
            name: MechanismRecord(**{**mechanism, "parameters": _read_arrays(mechanism["parameters"])})
            for name, mechanism in document["mechanisms"].items()
        },
        [
            AttentionInputs(entry["name"], entry["hypothesis"], _read_arrays(entry["inputs"]))
            for entry in document["attention"]
            if "inputs" in entry
        ],
        [
            CellStates(**{**entry, **{name: _read_arrays(entry[name]) for name in ("initial", "states", "gates")}})
            for entry in document["states"]
        ],
        # Documents of this format that were written before there were attributions have no such field.
        [_read_attribution(entry, prediction) for entry in document.get("attributions", [])],
        document["edits"],
        # Documents of this format that were written before there were edits have no such field.
        None if document.get("changes") is None else _read_changes(document["changes"]),
    )


def read_array(entry: Document) -> Array:
    """Decode an array."""
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"an array has the dtype {entry['dtype']}, which is not one of {', '.join(DTYPES)}")
    dtype = np.dtype(entry["dtype"]).newbyteorder("<")
    data = np.frombuffer(base64.b64decode(entry["data"], validate=True), dtype)
    array: Array = data.reshape(entry["shape"]).astype(entry["dtype"])
    return array


def _read_arrays(entries: Mapping[str, Document]) -> dict[str, Array]:
    return {name: read_array(entry) for name, entry in entries.items()}


def _read_prediction(document: Document) -> Prediction:
    source, entries = document["source"], document["attention"]
    picture = None if source["picture"] is None else read_array(source["picture"])
    item = StoredSource(source["text"], source["tokens"], list(map(tuple, source["offsets"])), picture)
    described = document["mechanisms"] or {entry["name"]: entry for entry in entries}
    predictions = [
        Prediction(
            item.label,
            hypothesis["text"],
            _from_finite(hypothesis["score"]),
            hypothesis["tokens"],
            item.tokens,
            item.offsets,
            hypothesis["truncated"],
            None if source["grid"] is None else Grid(*source["grid"]),
            source["unknown"],
            {
                entry["name"]: read_array(entry).astype(np.float32)
                for entry in entries
                if entry["hypothesis"] in (None, index)
            },
            {name: entry["role"] for name, entry in described.items()},
            document["model"].get("members", 1),
            ranking_score=_from_finite(hypothesis.get("ranking_score", hypothesis["score"])),
            looped=bool(hypothesis.get("looped", False)),
            item=item,
        )
        for index, hypothesis in enumerate(document["hypotheses"])
    ]
    predictions[0].alternatives.extend(predictions[1:])
    return predictions[0]


def _read_step(entry: Document) -> Step:
    top = [Candidate(**{**each, "log_prob": _from_finite(each["log_prob"])}) for each in entry["top"]]
    return Step(**{**entry, "log_prob": _from_finite(entry["log_prob"]), "top": top})


def _read_node(entry: Document) -> BeamNode:
    values = {name: _from_finite(entry[name]) for name in ("score", "log_prob")}
    return BeamNode(**{**entry, **values})


def _write_changes(changes: Changes) -> Document:
    return {**changes._asdict(), "score": _to_finite(changes.score)}


def _read_changes(entry: Document) -> Changes:
    return Changes(**{**entry, "score": _from_finite(entry["score"])})


def _to_finite(value: float) -> float | None:
    """JSON has no −∞, the logarithm of 0: it becomes null."""
    return value if math.isfinite(value) else None


def _from_finite(value: float | None) -> float:
    return -math.inf if value is None else float(value)


def embed_document(document: Document) -> str:
    """Return the document as an element of an HTML page. No text in it can end the element."""
    return f"{_OPEN_TAG}{to_json(document, ensure_ascii=False).replace('<', chr(92) + 'u003c')}{_CLOSE_TAG}"


def parse_document(text: str) -> Document:
    """Return the document in the text of a JSON file, or of an HTML page that contains it."""
    _, opened, rest = text.partition(_OPEN_TAG)
    embedded, closed, _ = rest.partition(_CLOSE_TAG)
    document = parse_json(embedded if opened and closed else text)
    if not isinstance(document, dict) or "format" not in document:
        raise ValueError("it contains no document with a format number")
    return document


@final
@dataclass(frozen=True)
class StoredSource(SourceItem):
    """The source of a prediction that was read from a document."""

    text: str
    text_tokens: Sequence[str]
    spans: Iterable[Span]
    picture: PixelArray | None

    @property
    def label(self) -> str:
        return self.text

    @property
    def length(self) -> int:
        return len(self.text_tokens)

    @property
    def tokens(self) -> list[str]:
        return list(self.text_tokens)

    @property
    def offsets(self) -> list[Span]:
        return list(self.spans)

    @property
    def pixels(self) -> PixelArray | None:
        return self.picture
