"""The form that works without JavaScript: it contains what was entered and the answer, as text."""

import re
from html import unescape

from regard.serving.page import CONTENT_TYPES, HEADERS, STATIC, Form, read_static, render

LANGUAGES = [
    {"code": "en", "name": "English", "targets": ["de", "fr"]},
    {"code": "de", "name": "German", "targets": []},
    {"code": "fr", "name": "French", "targets": ["en"]},
]
HOSTILE = "</textarea><script>alert(1)</script> $text & \"quoted\" 'x' \u202e"


def find_options(page: str, name: str) -> list[tuple[str, bool]]:
    """Return the values of the options of a field, and whether each is selected."""
    field = re.search(rf'<select name="{name}".*?</select>', page, re.DOTALL)
    assert field is not None
    return [(value, bool(chosen)) for value, chosen in re.findall(r'<option value="(.*?)"( selected)?>', field[0])]


def test_the_form_offers_the_languages_and_the_limit() -> None:
    page = render(LANGUAGES, [], 5_000)
    assert find_options(page, "source") == [("auto", True), ("en", False), ("fr", False)]
    assert find_options(page, "target") == [("de", False), ("fr", False), ("en", False)]
    assert "Up to 5,000 characters" in page
    assert "api_key" not in page
    assert "$" not in page


def test_the_form_keeps_what_was_entered_and_shows_the_answer() -> None:
    form = Form("\n a text", "en", "fr", "un texte", ["le texte"])
    page = render(LANGUAGES, [], -1, form)
    assert find_options(page, "source") == [("auto", False), ("en", True), ("fr", False)]
    assert ("fr", True) in find_options(page, "target")
    # HTML ignores a line break after the tag, and the text may start with another.
    assert ">\n\n a text</textarea>" in page
    assert 'lang="fr">un texte</div>' in page
    assert "le texte</li>" in page


def test_all_values_are_text() -> None:
    form = Form(HOSTILE, HOSTILE, HOSTILE, HOSTILE, [HOSTILE], HOSTILE, HOSTILE)
    languages = [{"code": HOSTILE, "name": HOSTILE, "targets": [HOSTILE]}]
    page = render(languages, [HOSTILE], 10, form, key_required=True)
    empty = render([], [], 10, Form(alternatives=["x"], detected="x", error="x"), key_required=True)
    assert page.count("<script") == empty.count("<script") == 1
    assert page.count("</textarea") == 1
    assert HOSTILE not in page
    assert unescape(page).count(HOSTILE) >= 9


def test_an_error_a_detected_language_and_models_that_need_javascript_are_named() -> None:
    page = render(
        LANGUAGES, ["dates", "scenes"], 10, Form(error="The queue is full.", detected="de"), key_required=True
    )
    assert 'role="alert">The queue is full.' in page
    assert "Detected: German" in page
    assert "These models need JavaScript: dates, scenes." in page
    assert 'name="api_key" type="password"' in page


def test_the_page_contains_nothing_that_its_policy_blocks() -> None:
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert (policy["default-src"], policy["script-src"], policy["style-src"]) == ("'none'", "'self'", "'self'")
    page = render(LANGUAGES, ["dates"], 10, Form("a", translation="b", alternatives=["c"], error="d"))
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]* src=)", page)
    assert set(CONTENT_TYPES) == {path.name for path in STATIC.iterdir()} - {"translate.html"}
    assert all(read_static(name) for name in CONTENT_TYPES)
