"""The page of the explorer as one HTML file: its bundle inlined, with the documents of traces. It makes no network
requests.
"""

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from regard.formatting import parse_json, to_json
from regard.inspection.views.pictures import Style
from regard.yaml_reader import dump_yaml

if TYPE_CHECKING:
    from regard.inspection.trace.document import Document

STATIC: Final = Path(__file__).parent / "static"
"""The folder of the bundle, which `web/` is built into."""

_STYLE, _SCRIPT = '<link rel="stylesheet" href="app.css" />', '<script src="app.js" defer></script>'

_OPEN_TAG, _CLOSE_TAG = '<script type="application/json" id="{name}">', "</script>"
_DATA: Final = "explorer-data"

_ID: Final = "0"
_MAX_BEAM: Final = 20
"""The largest beam that the page shows in its controls."""


def render_empty_page() -> str:
    """Return the page as one file whose element for data is empty. The page itself fills it when it is exported.

    The Content-Security-Policy allows the inlined script and style by their hashes, and nothing else.
    """
    page, script, style = ((STATIC / name).read_text("utf-8") for name in ("index.html", "app.js", "app.css"))
    # Both are code of the package. Within them, these characters can only occur in strings.
    script, style = script.replace("</script", r"<\/script"), style.replace("</style", r"<\/style")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    for tag in (_STYLE, _SCRIPT, "<head>", "</body>"):
        assert page.count(tag) == 1, tag
    head = f'<head><meta http-equiv="Content-Security-Policy" content="{policy}">'
    return (
        page.replace("<head>", head)
        .replace(_SCRIPT, "")
        .replace(_STYLE, f"<style>{style}</style>")
        .replace("</body>", f"{_embed(_DATA)}<script>{script}</script></body>")
    )


def render_page(data: dict[str, Any], trace: "Document | None" = None) -> str:
    """Return the page as one file, with data that it reads instead of the server's; see `EmbeddedData` in `web/`.

    Args:
        data: The models and traces that the page shows.
        trace: The document of the first trace, if the page is the file of this trace.
    """
    embedded = _embed(_DATA, data) + ("" if trace is None else _embed("trace", trace))
    return render_empty_page().replace(_embed(_DATA), embedded, 1)


def render_linked_page(data: dict[str, Any]) -> str:
    """Return the page with data, but with links to its script and style instead of their code."""
    page = (STATIC / "index.html").read_text("utf-8")
    return page.replace("</body>", f"{_embed(_DATA, data)}</body>")


def render_trace(trace: "Document", style: Style) -> str:
    """Return the page of one trace, with its document."""
    model, source, edits = trace["model"], trace["source"], trace["edits"]
    architecture = model.get("architecture", "model")
    text, is_text = source["text"], source["grid"] is None
    beam = min(trace["settings"].get("beam", 1), _MAX_BEAM)
    summary = {
        "id": _ID,
        "name": architecture,
        "architecture": architecture,
        "source_kind": "text" if is_text else "image",
        "step": model.get("step"),
        "metrics": None,
        "attentions": [
            {"name": name, **{key: mechanism[key] for key in ("role", "layer", "heads", "equation")}}
            for name, mechanism in trace["mechanisms"].items()
        ],
        "split": None,
        "examples": [text],
    }
    request = {"model": _ID, "source": {"text": text} if is_text else {"image": text}, "search": {"beam": beam}}
    state = {"text": text, "beam": beam, "edits": to_json(edits), "smooth": to_json(style == "smooth")}
    data = {
        "models": [summary],
        "traces": [{"request": {**request, "edits": edits}}],
        "cards": {_ID: {"settings": dump_yaml(model["settings"])}} if "settings" in model else {},
        "fragment": urlencode(state),
    }
    return render_page(data, trace)


def parse_document(text: str) -> "Document":
    """Return the document in the text of a JSON file, or of an HTML page that contains it."""
    _, opened, rest = text.partition(_OPEN_TAG.format(name="trace"))
    embedded, closed, _ = rest.partition(_CLOSE_TAG)
    document = parse_json(embedded if opened and closed else text)
    if not isinstance(document, dict) or "format" not in document:
        raise ValueError("it contains no document with a format number")
    return document


def _embed(name: str, data: dict[str, Any] | None = None) -> str:
    """Return data as an element of a page. No text in it can end the element."""
    text = "" if data is None else to_json(data, ensure_ascii=False).replace("<", r"\u003c")
    return f"{_OPEN_TAG.format(name=name)}{text}{_CLOSE_TAG}"


def _hash(code: str) -> str:
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"
