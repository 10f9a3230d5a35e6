"""Trace: everything that a picture of a prediction needs, as one JSON document or one HTML file."""

import html as markup
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.decoding.predictor import kind_of
from regard.errors import ConfigError
from regard.formatting import quantity, to_json
from regard.inspection import heatmap
from regard.inspection.prediction import Prediction, Weights

FORMAT = 1


@dataclass(frozen=True, repr=False)
class Trace:
    """A prediction with all its attentions; `document` is what `save` writes as JSON."""

    prediction: Prediction
    model: dict[str, Any]

    @classmethod
    def of(cls, prediction: Prediction, model: dict[str, Any] | None = None) -> "Trace":
        return cls(prediction, model or {})

    def __repr__(self) -> str:
        found = self.prediction
        lines = [
            f"source: {found.source!r} ({quantity(len(found.source_tokens), 'token')})",
            f"output: {found.text!r} ({quantity(len(found.tokens), 'token')}), log-probability {found.score:.4f}",
            *(f"{name}: {' × '.join(map(str, weights.shape))}" for name, weights in found.attentions.items()),
        ]
        return "\n".join(["Trace(", *(f"  {line}" for line in lines), ")"])

    def _repr_html_(self) -> str:
        """For notebooks: the heat map of the prediction, and the shape of every recorded attention."""
        shapes = "".join(
            f"<li>{markup.escape(name)}: {' × '.join(map(str, weights.shape))}</li>"
            for name, weights in self.prediction.attentions.items()
        )
        return f"<p>{self._title}</p>{self.prediction._repr_html_()}<ul>{shapes}</ul>"

    @property
    def _title(self) -> str:
        found = self.prediction
        return (
            f"<bdi>{markup.escape(found.source)}</bdi> → <bdi>{markup.escape(found.text)}</bdi>, "
            f"log-probability {found.score:.4f}"
        )

    @property
    def document(self) -> dict[str, Any]:
        found = self.prediction
        return {
            "format": FORMAT,
            "model": self.model,
            "source": {"text": found.source, "tokens": found.source_tokens, "offsets": found.offsets},
            "hypotheses": [
                {
                    "text": answer.text,
                    "tokens": answer.tokens,
                    "score": answer.score,
                    "truncated": answer.truncated,
                }
                for answer in (found, *found.alternatives)
            ],
            "attention": [
                {"name": name, "kind": kind_of(name), "shape": list(weights.shape), "data": weights.tolist()}
                for name, weights in found.attentions.items()
            ],
        }

    def to_html(self) -> str:
        """One page that works offline, with a table for each attention."""
        found = self.prediction
        tables = "".join(
            f"<h2>{markup.escape(name)}</h2>{heatmap.html(weights, *_labels(name, found))}"
            for name, weights in _maps(found)
        )
        return (
            '<!doctype html><html><head><meta charset="utf-8"><title>regard</title></head>'
            '<body style="font-family:sans-serif;margin:2em">'
            f'<h1 style="font-size:1.3em">{self._title}</h1>{tables}</body></html>\n'
        )

    def save(self, path: str | Path) -> None:
        """Write the trace as .json or .html."""
        path = Path(path)
        if path.suffix not in {".json", ".html"}:
            raise ConfigError(f"{path}: a trace is saved as .json or .html.")
        text = self.to_html() if path.suffix == ".html" else to_json(self.document, ensure_ascii=False)
        path.write_text(text, "utf-8")


def caption(found: Prediction) -> str:
    """The name of the map that `Prediction.attention` shows; empty if the model has only one."""
    name = found.attention_name
    if name is None:
        return "The model has no attention to its source."
    count = len(list(_maps(found)))
    if count == 1:
        return ""
    heads = "" if found.attentions[name].ndim == 2 else f", average of {len(found.attentions[name])} heads"
    return f"{name}{heads}\n(save as .html to see all {count} maps)"


def _labels(name: str, found: Prediction) -> tuple[list[str], list[str]]:
    """What the columns and the rows of a map stand for."""
    given = ["<s>", *found.tokens[:-1]] if found.tokens else []
    kinds = {
        "encoder": (found.source_tokens, found.source_tokens),
        "self": (given, found.tokens),
        "cross": (found.source_tokens, found.tokens),
    }
    return kinds[kind_of(name.split(",", maxsplit=1)[0])]


def _maps(found: Prediction) -> Iterator[tuple[str, Weights]]:
    """Every map there is: one of each attention, or one of each of its heads."""
    for name, weights in found.attentions.items():
        if weights.ndim == 2:
            yield name, weights
        else:
            yield from ((f"{name}, head {head + 1}", weights_TS) for head, weights_TS in enumerate(weights))
