"""The landing page: the gallery of mechanisms, generated from the code and from the predictions of the explorer."""

from base64 import b64decode
from html import escape
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

import regard
from reference_pages import table_lines
from regard.attention.mechanisms import MECHANISMS
from regard.inspection.explain.facts import HEADERS, find_facts

LIVE: Final = ("bahdanau", "luong-local-p", "transformer-model")
"""The models of the explorer on the landing page. The first one is that of `make demo`, with smaller layers."""

CELL: Final = 10
"""The size of a weight in a figure."""


def render_landing(gallery: dict[str, Any]) -> str:
    """Return the landing page: the introduction, the table of all mechanisms, and a card for each."""
    cards = [
        _render_card(entry, trace["document"])
        for entry, trace in zip(name_entries(gallery), gallery["traces"], strict=True)
    ]
    introduction, _, rest = (Path(__file__).with_name("index.md").read_text("utf-8")).partition("{table}")
    before, _, after = rest.partition("{cards}")
    return "\n".join([introduction, *_render_table(), before, '<div class="cards">', *cards, "</div>", after])


def name_entries(gallery: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of the gallery with the names of their models."""
    names = {model["id"]: model["name"] for model in gallery["models"]}
    return [{**entry, "name": names[entry["model"]]} for entry in gallery["gallery"]]


def select_live(gallery: dict[str, Any]) -> dict[str, Any]:
    """Return the data of the explorer on the landing page: a few models, without the tab Gallery."""
    models = [model for model in gallery["models"] if model["name"] in LIVE]
    ids = {model["id"] for model in models}
    return {
        "models": models,
        "traces": [trace for trace in gallery["traces"] if trace["request"]["model"] in ids],
        "cards": {key: card for key, card in gallery["cards"].items() if key in ids},
        "fragment": gallery["fragment"],
    }


def _render_table() -> list[str]:
    rows = [[f"[{name}](#{name})", *find_facts(mechanism).row()] for name, mechanism in MECHANISMS.items()]
    return ['<div class="mechanisms" markdown="1">', "", *table_lines(["mechanism", *HEADERS], rows), "</div>"]


def _render_card(entry: dict[str, Any], trace: dict[str, Any]) -> str:
    """Return the card of a mechanism or a model: equation, paper, figure, use, cost and command."""
    name = entry["name"]
    mechanism = MECHANISMS.get(name)
    link = "gallery.html#" + urlencode({"tab": "equation", "model": entry["model"], "role": entry["role"]})
    return "\n".join(
        [
            f'<section class="card"><h3 id="{name}">{name}</h3>',
            f'<p class="equation">{escape(entry["equation"])}</p>',
            f"<p>{escape(entry['citation'])}</p>",
            draw_weights(entry, trace),
            f"<p>{escape(mechanism.use if mechanism else _capitalize(entry['description']) + '.')}</p>",
            f"<p>{escape(_describe_cost(entry, is_mechanism=mechanism is not None))}</p>",
            f"<p><code>regard train dates {escape(entry['settings'])}</code></p>",
            f'<p><a href="{escape(link)}">The numbers of {name}</a></p>',
            "</section>",
        ]
    )


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _describe_cost(entry: dict[str, Any], *, is_mechanism: bool) -> str:
    """Return the multiply-adds of an attention, or how those of a model grow."""
    explanation = regard.explain("dates", dict(setting.split("=", 1) for setting in entry["settings"].split()))
    if not is_mechanism:
        return f"Multiply-adds of a model: {explanation.cost.growth}."
    parts = [
        part for part in explanation.cost.parts if part.name in ("cross-attention", "output projection of each slot")
    ]
    formula = " + ".join(str(part.forward) for part in parts)
    return f"Multiply-adds: {formula}. Parameters: {sum(part.parameters for part in parts):,}."


def draw_weights(entry: dict[str, Any], trace: dict[str, Any]) -> str:
    """Return the weights of an entry for its sentence as SVG: a row for each step, averaged over the heads."""
    source, target = trace["source"]["tokens"], trace["hypotheses"][0]["tokens"]
    found = [attention for attention in trace["attention"] if attention["role"] == entry["role"]]
    weights_TS = _decode(found[0] if entry["role"] == "encoder-self" else found[-1])
    columns, rows = {
        "cross": (source, target),
        "encoder-self": (source, source),
        "decoder-self": (["<s>", *target], target),
    }[entry["role"]]
    height, width = weights_TS.shape
    labels = [
        *(f'<text x="{(x + 0.5) * CELL}" y="-3">{escape(_show(columns[x]))}</text>' for x in range(width)),
        *(f'<text x="-5" y="{(y + 0.8) * CELL}">{escape(_show(rows[y]))}</text>' for y in range(height)),
    ]
    cells = [
        f'<rect x="{x * CELL}" y="{y * CELL}" width="{CELL}" height="{CELL}" fill-opacity="{weights_TS[y, x]:.2f}"/>'
        for y, x in np.argwhere(weights_TS >= 0.01)
    ]
    return (
        f'<svg role="img" aria-label="The attention weights of {entry["name"]}" '
        f'viewBox="-12 -12 {width * CELL + 14} {height * CELL + 14}">{"".join([*labels, *cells])}</svg>'
    )


def _decode(attention: dict[str, Any]) -> NDArray[np.float32]:
    """Return the weights of an attention in a trace, averaged over its heads."""
    weights = np.frombuffer(b64decode(attention["data"]), "<f4").reshape(attention["shape"])
    return weights.mean(0) if weights.ndim == 3 else weights


def _show(token: str) -> str:
    return "␣" if token == " " else "⊢" if token == "<s>" else token
