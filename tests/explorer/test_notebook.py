"""The explorer in a notebook: the widget shows the page with the traces, and makes no request."""

import importlib
from typing import Any

import pytest

import regard
from regard.errors import ConfigError
from regard.runs.folder import RunFolder

pytest.importorskip("anywidget", reason="anywidget is missing; install it with: pip install -e '.[test]'")
notebook = importlib.import_module("regard.explorer.notebook")

ORIGIN = "http://notebook.test/"
RENDER = """async ({ esm, state }) => {
    const url = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
    const widget = (await import(url)).default;
    widget.render({ model: { get: (name) => state[name] }, el: document.body });
}"""
"""Do what anywidget does in a notebook: import the module, and render the widget."""


@pytest.mark.slow
def test_the_widget_shows_the_page_in_a_browser(page: Any, small_run: RunFolder) -> None:
    model = regard.load(small_run.path)
    texts = ["3 mai 2009", "4 & juin = 2011"]
    widget = notebook.explore(model, texts, beam=2, height=500)
    requests: list[str] = []
    page.route(ORIGIN, lambda route: route.fulfill(body="<!doctype html><body>", content_type="text/html"))
    page.goto(ORIGIN)
    page.on("request", lambda request: requests.append(request.url))
    page.evaluate(RENDER, {"esm": str(widget._esm), "state": {"page": widget.page, "height": widget.height}})
    frame = page.frame_locator("iframe")
    for index, text in enumerate(texts, start=1):
        if index > 1:
            frame.locator("#examples").select_option(str(index))
        expected = model.predict(text, beam=2).tokens
        output = frame.locator('[aria-label="Output tokens"] button')
        output.nth(len(expected) - 1).wait_for()
        assert "".join(output.all_inner_texts())[: len("".join(expected))] == "".join(expected)
    assert page.locator("iframe").bounding_box()["height"] == 500
    assert [each for each in requests if not each.startswith(("blob:", "data:"))] == []


def test_a_widget_without_texts_is_rejected(small_run: RunFolder) -> None:
    with pytest.raises(ConfigError, match="at least one text"):
        notebook.explore(regard.load(small_run.path), [])
