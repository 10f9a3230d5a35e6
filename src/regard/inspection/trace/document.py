"""The document of a trace in JSON: `docs/trace-document.md` describes every field."""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from regard.attention.attention import Role
from regard.data.sources import SourceItem, Span
from regard.decoding.tracing import AttentionInputs
from regard.decoding.weights import Array
from regard.formatting import replace_nonfinite
from regard.inspection.prediction import Prediction
from regard.inspection.views.pictures import PixelArray
from regard.models.contracts import Grid

FORMAT: Final = 3
"""The version of the JSON document."""

DTYPES: Final = ("float16", "float32", "int64", "uint8", "bool")
"""The dtypes of arrays in a document."""

Document = dict[str, Any]


def write_prediction(prediction: Prediction, inputs: Sequence[AttentionInputs] = ()) -> Document:
    """Return the document of a prediction with its attention weights, and what these are computed from. Fields that
    only a trace can fill are empty.
    """
    return {
        "format": FORMAT,
        "model": {},
        "source": _write_source(prediction),
        "hypotheses": replace_nonfinite(
            [
                {
                    "text": each.text,
                    "tokens": each.tokens,
                    "score": each.score,
                    "ranking_score": each.score if each.ranking_score is None else each.ranking_score,
                    "truncated": each.truncated,
                    "looped": each.looped,
                }
                for each in (prediction, *prediction.alternatives)
            ]
        ),
        "steps": [],
        "beam": None,
        "attention": _write_attention(prediction, inputs),
        "mechanisms": {},
        "states": [],
        "attributions": [],
        "settings": {},
        "edits": [],
        "changes": None,
    }


def write_array(array: Array, dtype: str | None = None) -> Document:
    """Encode an array: its shape, its dtype, and its bytes in C order, little-endian, as base64."""
    name = dtype or str(array.dtype)
    assert name in DTYPES
    data = np.ascontiguousarray(array, np.dtype(name).newbyteorder("<")).tobytes()
    return {"shape": list(array.shape), "dtype": name, "data": base64.b64encode(data).decode("ascii")}


def write_arrays(arrays: Mapping[str, Array]) -> Document:
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


def _write_attention(prediction: Prediction, recorded: Sequence[AttentionInputs]) -> list[Document]:
    """Return an entry for each attention of the encoder, and for each attention of the decoder and hypothesis."""
    layers = number_layers(prediction.roles)
    # Recomputed weights can be compared with those in the document only if these are not rounded to half precision.
    dtype = "float32" if recorded else "float16"
    inputs = {(each.name, each.hypothesis): write_arrays(each.arrays) for each in recorded}
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


def number_layers(roles: Mapping[str, Role]) -> dict[str, int]:
    """Return the index of each attention among those with the same role."""
    counts: dict[Role, int] = {}
    layers = {}
    for name, role in roles.items():
        layers[name] = counts.get(role, 0)
        counts[role] = layers[name] + 1
    return layers


def read_array(entry: Document) -> Array:
    """Decode an array."""
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"an array has the dtype {entry['dtype']}, which is not one of {', '.join(DTYPES)}")
    dtype = np.dtype(entry["dtype"]).newbyteorder("<")
    data = np.frombuffer(base64.b64decode(entry["data"], validate=True), dtype)
    array: Array = data.reshape(entry["shape"]).astype(entry["dtype"])
    return array


def read_arrays(entries: Mapping[str, Document]) -> dict[str, Array]:
    return {name: read_array(entry) for name, entry in entries.items()}


def read_prediction(document: Document) -> Prediction:
    """Return the prediction of a document. Raise ValueError, KeyError or TypeError if it is not valid."""
    source, entries = document["source"], document["attention"]
    picture = None if source["picture"] is None else read_array(source["picture"])
    item = StoredSource(source["text"], source["tokens"], list(map(tuple, source["offsets"])), picture)
    described = document["mechanisms"] or {entry["name"]: entry for entry in entries}
    predictions = [
        Prediction(
            item.label,
            hypothesis["text"],
            from_finite(hypothesis["score"]),
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
            ranking_score=from_finite(hypothesis.get("ranking_score", hypothesis["score"])),
            looped=bool(hypothesis.get("looped", False)),
            item=item,
        )
        for index, hypothesis in enumerate(document["hypotheses"])
    ]
    predictions[0].alternatives.extend(predictions[1:])
    return predictions[0]


def from_finite(value: float | None) -> float:
    """JSON has no −∞, the logarithm of 0: it is null."""
    return -math.inf if value is None else float(value)


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
