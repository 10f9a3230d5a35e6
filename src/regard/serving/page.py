"""The page of `regard serve`: its files, and the form that works without JavaScript."""

from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final, NamedTuple

from regard.regular_files import read_regular
from regard.serving.schemas import AUTO

STATIC: Final = Path(__file__).parent / "static"
"""The folder of the bundle, which `web/` is built into."""

CONTENT_TYPES: Final = {
    "translate.js": "text/javascript; charset=utf-8",
    "translate.css": "text/css; charset=utf-8",
}
"""The files that the page loads, and their types."""

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""The headers of the page and of its files. The page makes no request to another server."""


class Form(NamedTuple):
    """What was entered into the form, and the answer.

    Attributes:
        text: The source text.
        source: The code of its language, or auto.
        target: The code of the target language.
        translation: The translation; empty if there is none.
        alternatives: Other translations.
        detected: The code of the detected language; empty if it was not detected.
        error: Why there is no translation.
    """

    text: str = ""
    source: str = AUTO
    target: str = ""
    translation: str = ""
    alternatives: Sequence[str] = ()
    detected: str = ""
    error: str = ""


@cache
def read_static(name: str) -> bytes:
    """Return the content of a file of the page, which is one of `CONTENT_TYPES`."""
    return read_regular(STATIC / name)


def render(
    languages: Sequence[Mapping[str, Any]],
    models: Sequence[str],
    limit: int,
    form: Form | None = None,
    *,
    key_required: bool = False,
) -> str:
    """Return the page with a form, which a script replaces if the browser has JavaScript.

    Args:
        languages: The languages as in GET /languages: mappings of code, name and targets.
        models: The names of the models that do not translate. The form does not offer them.
        limit: The maximum number of characters of a text; -1 for any number.
        form: What was entered, and the answer.
        key_required: Whether the form has a field for an API key.
    """
    form = form or Form()
    names = {language["code"]: language["name"] for language in languages}
    sources = {language["code"]: language["name"] for language in languages if language["targets"]}
    targets = {code: names.get(code, code) for language in languages for code in language["targets"]}
    source = form.source if form.source in sources or form.source == AUTO else next(iter(sources), AUTO)
    items = _render_list('<li dir="auto">{}</li>', form.alternatives)
    return _template().substitute(
        sources=_render_options({AUTO: "Detect language", **sources}, source),
        targets=_render_options(targets, form.target),
        text=escape(form.text),
        limit=f"Up to {limit:,} characters" if limit >= 0 else "",
        result=escape(form.translation),
        language=escape(form.target),
        key=_KEY if key_required else "",
        error=_render_list(_ERROR, [form.error] if form.error else []),
        detected=_render_list(_DETECTED, [names.get(form.detected, form.detected)] if form.detected else []),
        alternatives=_ALTERNATIVES.format(items) if items else "",
        note=_render_list(_NOTE, [", ".join(models)] if models else []),
    )


_KEY: Final = '<label class="field">API key <input name="api_key" type="password" autocomplete="off" /></label>'
_ERROR: Final = '<p class="panel error" role="alert">{}</p>'
_DETECTED: Final = '<span class="muted small detected">Detected: {}</span>'
_ALTERNATIVES: Final = '<section class="panel stack"><h2>Alternatives</h2><ul class="alternatives">{}</ul></section>'
_NOTE: Final = '<noscript class="muted">These models need JavaScript: {}.</noscript>'


def _render_list(markup: str, texts: Sequence[str]) -> str:
    return "".join(markup.format(escape(text)) for text in texts)


def _render_options(names: Mapping[str, str], selected: str) -> str:
    return "".join(
        f'<option value="{escape(code)}"{" selected" if code == selected else ""}>{escape(name)}</option>'
        for code, name in names.items()
    )


@cache
def _template() -> Template:
    return Template(read_regular(STATIC / "translate.html").decode())
