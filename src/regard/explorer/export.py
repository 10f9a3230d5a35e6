"""The bundle of the page, and a self-contained HTML file: the bundle inlined, with documents. It makes no request."""

import base64
import hashlib
from pathlib import Path
from typing import Any, Final

from regard.formatting import to_json

STATIC: Final = Path(__file__).parent / "static"
"""The folder of the bundle, which `web/` is built into."""

_STYLE, _SCRIPT = '<link rel="stylesheet" href="app.css" />', '<script src="app.js" defer></script>'


def render_export(data: dict[str, Any]) -> str:
    """Return the page as one file, with data that it reads instead of the server's.

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
        .replace("</body>", f"{_embed(data)}<script>{script}</script></body>")
    )


def _embed(data: dict[str, Any]) -> str:
    """Return data as an element of a page. No text in it can end the element."""
    text = to_json(data, ensure_ascii=False).replace("<", r"\u003c")
    return f'<script type="application/json" id="explorer-data">{text}</script>'


def _hash(code: str) -> str:
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"
