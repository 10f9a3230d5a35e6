"""The HTML page of a trace: one file that works offline. All text is escaped, and the page makes no request."""

import html as markup
import math
from collections.abc import Iterable, Iterator, Sequence

from regard.decoding.tracing import BeamNode, CellStates, Step
from regard.formatting import quantity, to_json
from regard.inspection.prediction import Prediction
from regard.inspection.trace.changes import Changes
from regard.inspection.trace.document import Document, embed_document
from regard.inspection.views.heatmap import POLICY
from regard.inspection.views.labels import label
from regard.inspection.views.pictures import Style

_CSS = """
body { font-family: sans-serif; margin: 2em; line-height: 1.4 }
h1 { font-size: 1.3em } h2 { font-size: 1.1em; margin-top: 1.6em }
table.steps { border-collapse: collapse } table.steps td, table.steps th { padding: 2px 8px; text-align: left }
.number { text-align: right; font-variant-numeric: tabular-nums }
.pruned { color: #767676 } .finished { font-weight: bold }
"""


def render_page(
    prediction: Prediction,
    steps: Sequence[Sequence[Step]],
    beam: Sequence[Sequence[BeamNode]] | None,
    states: Sequence[CellStates],
    edited: tuple[Sequence[Document], Changes | None],
    document: Document,
    style: Style,
) -> str:
    """Return the page: hypotheses, steps, beam, a view of each attention and head; and the document itself."""
    sections = [
        _render_edits(*edited),
        _render_hypotheses(prediction),
        _render_steps(steps[0]) if steps else "",
        _render_beam(beam) if beam else "",
        *_render_attention(prediction, style),
        _render_states(states),
    ]
    architecture = document["model"].get("architecture", "")
    return (
        '<!doctype html><html><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>regard</title><style>{_CSS}</style></head><body>"
        f"<h1>{render_title(prediction)}</h1>"
        f"{f'<p>{markup.escape(architecture)}</p>' if architecture else ''}"
        f"{''.join(sections)}{embed_document(document)}</body></html>\n"
    )


def render_title(prediction: Prediction) -> str:
    return (
        f"<bdi>{markup.escape(prediction.source)}</bdi> → <bdi>{markup.escape(prediction.text)}</bdi>, "
        f"log-probability {prediction.score:.4f}"
    )


def _render_edits(edits: Sequence[Document], changes: Changes | None) -> str:
    if changes is None:
        return ""
    items = (f"<li>{markup.escape(to_json(edit, ensure_ascii=False))}</li>" for edit in edits)
    return (
        f"<h2>Edits</h2><ol>{''.join(items)}</ol>"
        f"<p>Without edits: <bdi>{markup.escape(changes.text)}</bdi>, log-probability {changes.score:.4f}</p>"
    )


def _render_hypotheses(prediction: Prediction) -> str:
    if not prediction.alternatives:
        return ""
    items = (
        f"<li><bdi>{markup.escape(each.text)}</bdi>, log-probability {each.score:.4f}{_render_rank(each)}"
        f"{', truncated' if each.truncated else ''}{', a loop was removed' if each.looped else ''}</li>"
        for each in (prediction, *prediction.alternatives)
    )
    return f"<h2>Hypotheses</h2><ol>{''.join(items)}</ol>"


def _render_rank(prediction: Prediction) -> str:
    """Render the score by which the hypotheses are sorted, unless it is the log-probability."""
    rank = prediction.ranking_score
    return "" if rank is None or rank == prediction.score else f", ranking score {rank:.4f}"


def _render_steps(steps: Sequence[Step]) -> str:
    if not steps:
        return ""
    rows = (
        f'<tr><td class="number">{number}</td><td>{_render_token(step.token)}</td>'
        f'<td class="number">{_to_percent(step.log_prob)}</td><td class="number">{step.entropy:.2f}</td>'
        f"<td>{', '.join(f'{_render_token(each.token)} {_to_percent(each.log_prob)}' for each in step.top)}</td></tr>"
        for number, step in enumerate(steps, 1)
    )
    header = "".join(f"<th>{name}</th>" for name in ("step", "token", "probability", "entropy", "most likely tokens"))
    return f'<h2>Steps</h2><table class="steps"><tr>{header}</tr>{"".join(rows)}</table>'


def _render_beam(steps: Sequence[Sequence[BeamNode]]) -> str:
    """List the candidates of each step, with the tokens from the start of the hypothesis on."""
    beam: dict[int | None, tuple[str, ...]] = {}
    lists = []
    for number, nodes in enumerate(steps, 1):
        paths = [(*beam.get(node.parent, ()), node.token) for node in nodes]
        items = (
            f'<li class="{markup.escape(node.outcome)}"><bdi>{" ".join(map(_render_token, path))}</bdi> '
            f"({markup.escape(node.outcome)}, {node.score:.3f})</li>"
            for node, path in zip(nodes, paths, strict=True)
        )
        beam = {node.slot: path for node, path in zip(nodes, paths, strict=True) if node.outcome == "kept"}
        counts = quantity(len(nodes), "candidate")
        lists.append(f"<details><summary>step {number}: {counts}</summary><ol>{''.join(items)}</ol></details>")
    return f"<h2>Beam</h2>{''.join(lists)}"


def _render_attention(prediction: Prediction, style: Style) -> Iterator[str]:
    for name, head, title in _maps(prediction):
        view = prediction.view(attention=name, head=head, title="", style=style)
        yield f"<h2>{markup.escape(title)}</h2>{view.to_html()}"


def _maps(prediction: Prediction) -> Iterator[tuple[str, int, str]]:
    """Yield the name, the head and a title of each map: one for each attention and head."""
    for name, weights in prediction.attentions.items():
        if weights.ndim == 2:
            yield name, 1, name
        else:
            yield from ((name, head, f"{name}, head {head}") for head in range(1, len(weights) + 1))


def _render_states(states: Iterable[CellStates]) -> str:
    """List the recorded states, which the document contains."""
    items = [
        f"<li>{markup.escape(each.name)} ({markup.escape(each.direction)}): "
        f"{', '.join(markup.escape(part) for part in (*each.states, *each.gates))}</li>"
        for each in states
        if not each.hypothesis
    ]
    return f"<h2>Recorded states and gates</h2><ul>{''.join(items)}</ul>" if items else ""


def _render_token(token: str) -> str:
    return f"<bdi>{markup.escape(label(token))}</bdi>"


def _to_percent(log_prob: float) -> str:
    percent = 100 * math.exp(log_prob)
    return f"{percent:.1f}%" if percent >= 0.05 or percent == 0 else "&lt;0.1%"
