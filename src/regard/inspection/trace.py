"""Trace: a prediction with all attention weights of the model, as a JSON document or an HTML page."""

import html as markup
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import quantity, to_json
from regard.inspection.pictures import Style
from regard.inspection.prediction import Prediction

FORMAT = 2
"""The version of the JSON document."""


@dataclass(frozen=True, repr=False)
class Trace:
    """A prediction with all attention weights of the model.

    Attributes:
        prediction: The prediction.
        model: The settings of the model and its training step.
        style: How weights are drawn over a picture: `smooth` or `grid`.

    >>> trace = model.trace("3 mai 2009")
    >>> trace.save("trace.html")
    >>> trace.document["attention"][0]["shape"]
    """

    prediction: Prediction
    model: dict[str, Any] = field(default_factory=dict)
    style: Style = "smooth"

    def __repr__(self) -> str:
        prediction = self.prediction
        lines = [
            f"source: {prediction.source!r} ({_describe_slots(prediction)})",
            f"output: {prediction.text!r} ({quantity(len(prediction.tokens), 'token')}), "
            f"log-probability {prediction.score:.4f}",
            *(f"{name}: {' × '.join(map(str, weights.shape))}" for name, weights in prediction.attentions.items()),
        ]
        return "\n".join(["Trace(", *(f"  {line}" for line in lines), ")"])

    def _repr_html_(self) -> str:
        """For notebooks: the heat map of the prediction, and the shape of every recorded attention."""
        shapes = "".join(
            f"<li>{markup.escape(name)}: {' × '.join(map(str, weights.shape))}</li>"
            for name, weights in self.prediction.attentions.items()
        )
        return f"<p>{self._title}</p>{self.prediction.view(style=self.style).to_html()}<ul>{shapes}</ul>"

    @property
    def _title(self) -> str:
        prediction = self.prediction
        return (
            f"<bdi>{markup.escape(prediction.source)}</bdi> → <bdi>{markup.escape(prediction.text)}</bdi>, "
            f"log-probability {prediction.score:.4f}"
        )

    @property
    def document(self) -> dict[str, Any]:
        """The trace as `save` writes it to a JSON file."""
        prediction = self.prediction
        return {
            "format": FORMAT,
            "model": self.model,
            "source": {
                "text": prediction.source,
                "tokens": prediction.source_tokens,
                "offsets": prediction.offsets,
                **({} if prediction.layout is None else {"grid": list(prediction.layout)}),
            },
            "hypotheses": [
                {
                    "text": hypothesis.text,
                    "tokens": hypothesis.tokens,
                    "score": hypothesis.score,
                    "truncated": hypothesis.truncated,
                }
                for hypothesis in (prediction, *prediction.alternatives)
            ],
            "attention": [
                {"name": name, "role": prediction.roles[name], "shape": list(weights.shape), "data": weights.tolist()}
                for name, weights in prediction.attentions.items()
            ],
        }

    def to_html(self) -> str:
        """Return an HTML page that works offline, with a view of each attention and head."""
        prediction = self.prediction
        views = "".join(
            f"<h2>{markup.escape(label)}</h2>"
            f"{prediction.view(attention=name, head=head, title='', style=self.style).to_html()}"
            for name, head, label in _maps(prediction)
        )
        return (
            '<!doctype html><html><head><meta charset="utf-8"><title>regard</title></head>'
            '<body style="font-family:sans-serif;margin:2em">'
            f'<h1 style="font-size:1.3em">{self._title}</h1>{views}</body></html>\n'
        )

    def save(self, path: str | Path) -> None:
        """Write the trace to a file.

        Args:
            path: The path of a .json or .html file.

        Raises:
            ConfigError: The path has another extension, or its folder does not exist.
            ArgumentTypeError: The argument is not a path.

        >>> model.trace("3 mai 2009").save("trace.html")
        """
        if not isinstance(path, str | Path):
            raise ArgumentTypeError(f"path must be the path of a file, not {type(path).__name__}.")
        path = Path(path)
        if not path.parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {path.parent}. Create it first.")
        if path.suffix not in {".json", ".html"}:
            raise ConfigError(f"{path}: a trace is saved as .json or .html. Use one of these extensions.")
        text = self.to_html() if path.suffix == ".html" else to_json(self.document, ensure_ascii=False)
        path.write_text(text, "utf-8")


def _describe_slots(prediction: Prediction) -> str:
    if prediction.layout is not None:
        return f"{prediction.layout.height} × {prediction.layout.width} slots"
    return quantity(len(prediction.source_tokens), "token")


def _maps(prediction: Prediction) -> Iterator[tuple[str, int, str]]:
    """Yield the name, the head and a label of each map: one for each attention and head."""
    for name, weights in prediction.attentions.items():
        if weights.ndim == 2:
            yield name, 1, name
        else:
            yield from ((name, head, f"{name}, head {head}") for head in range(1, len(weights) + 1))
