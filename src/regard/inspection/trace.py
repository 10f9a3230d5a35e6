"""Trace: everything that a picture of a prediction needs, as one JSON document or one HTML file."""

import html as markup
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import ConfigError
from regard.inspection import heatmap
from regard.inspection.prediction import Prediction

FORMAT = 1


@dataclass(frozen=True)
class Trace:
    """A prediction with all its attentions; `document` is what `save` writes as JSON."""

    prediction: Prediction
    model: dict[str, Any]

    @classmethod
    def of(cls, prediction: Prediction, model: dict[str, Any] | None = None) -> "Trace":
        return cls(prediction, model or {})

    @property
    def document(self) -> dict[str, Any]:
        found = self.prediction
        return {
            "format": FORMAT,
            "model": self.model,
            "source": {"text": found.source, "tokens": found.source_tokens, "offsets": found.offsets},
            "hypotheses": [
                {
                    "text": found.text,
                    "tokens": found.tokens,
                    "score": found.score,
                    "truncated": found.truncated,
                }
            ],
            "attention": [
                {"name": name, "kind": "cross", "shape": list(weights.shape), "data": weights.tolist()}
                for name, weights in found.attentions.items()
            ],
        }

    def to_html(self) -> str:
        """One page that works offline, with a table for each attention."""
        found = self.prediction
        tables = "".join(
            f"<h2>{markup.escape(name)}</h2>{heatmap.html(weights, found.source_tokens, found.tokens)}"
            for name, weights in found.attentions.items()
        )
        title = f"<bdi>{markup.escape(found.source)}</bdi> → <bdi>{markup.escape(found.text)}</bdi>"
        return (
            '<!doctype html><html><head><meta charset="utf-8"><title>regard</title></head>'
            '<body style="font-family:sans-serif;margin:2em">'
            f'<h1 style="font-size:1.3em">{title}</h1><p>log-probability {found.score:.4f}</p>{tables}</body></html>\n'
        )

    def save(self, path: str | Path) -> None:
        """Write the trace as .json or .html."""
        path = Path(path)
        if path.suffix not in {".json", ".html"}:
            raise ConfigError(f"{path}: a trace is saved as .json or .html.")
        text = self.to_html() if path.suffix == ".html" else json.dumps(self.document, ensure_ascii=False)
        path.write_text(text, "utf-8")
