"""Figures for papers, and the page as a file: what they contain, and that they show the same as the page."""

import json
import xml.etree.ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests_explorer import SOURCE, open_page, save_download

pytestmark = pytest.mark.slow

SVG = "{http://www.w3.org/2000/svg}"

WORD = json.dumps([{"kind": "force_token", "step": 0, "token": 5}])
"""An edit: the captioner is hardly trained, so its caption would be empty."""

FIGURES = {
    "translate": (f"text={SOURCE}", "translate-view", {"source", "output", "0.1", "0.5", "1"}),
    "matrix": (f"text={SOURCE}&tab=attention", "canvas-figure", {"source →", "output ↓", "0", "0.5", "1"}),
    "rows": (f"text={SOURCE}&tab=attention&colors=row", "canvas-figure", {"source →", "output ↓", "0", "row maximum"}),
    "grid": (
        f"text={SOURCE}&tab=attention&model=1&view=grid",
        "canvas-figure",
        {"Cross-attention", "Layer 2", "Head 2", "output ↓ source →", "0", "1"},
    ),
    "lines": (f"text={SOURCE}&tab=attention&view=lines", "canvas-figure", {"source", "output", "0.1", "1"}),
    "attribution": (
        f"text={SOURCE}&tab=attention&method=occlusion",
        "#agreement",
        {"Cross-attention", "Occlusion", "−1", "0", "1"},
    ),
    "steps": (f"text={SOURCE}&tab=steps", "#beam", {"Step 1", "probability", "Beam search", "kept", "pruned"}),
    "compare": (f"text={SOURCE}&tab=compare", "#change", {"Difference", "source →", "output ↓", "−1", "0.5", "1"}),
    "model": ("tab=model", "model-view pre", {"loss", "step"}),
    "image": (f"model=2&tab=image&edits={WORD}", "image-view canvas", {"0", "maximum"}),
}
"""For each figure: the URL, the element that shows that the view is complete, and some texts of the figure."""


def read_svg(path: Path) -> xml.etree.ElementTree.Element:
    return xml.etree.ElementTree.parse(path).getroot()


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_has_names_and_numbers_as_text_in_the_chosen_size(
    page: Any, url: str, tmp_path: Path, figure: str
) -> None:
    fragment, complete, texts = FIGURES[figure]
    open_page(page, url, fragment)
    page.wait_for_selector(complete)
    page.locator("#export").click()
    page.locator("#font-size").fill("19")
    page.locator("#close").click()
    root = read_svg(save_download(page, tmp_path, "svg"))
    background = root[0]
    assert (background.get("fill"), background.get("width")) == ("#ffffff", root.get("width"))
    drawn = root.findall(f"{SVG}text")
    assert texts <= {"".join(each.itertext()) for each in drawn}
    assert Counter(each.get("font-size") for each in drawn).keys() >= {"19"}
    assert bool(root.findall(f"{SVG}image")) == (figure == "image")


@pytest.mark.parametrize("figure", ["translate", "matrix", "lines", "grid", "attribution", "compare"])
def test_a_figure_depends_neither_on_the_cursor_nor_on_the_window(
    page: Any, url: str, tmp_path: Path, figure: str
) -> None:
    fragment, complete, _ = FIGURES[figure]
    open_page(page, url, fragment)
    page.wait_for_selector(complete)
    expected = save_download(page, tmp_path, "svg").read_bytes()
    page.set_viewport_size({"width": 900, "height": 600})
    page.goto("about:blank")
    open_page(page, url, f"{fragment}&row=2&column=3&rows={json.dumps([1, 2])}")
    page.wait_for_selector(complete)
    assert save_download(page, tmp_path, "svg").read_bytes() == expected


COUNT_COLORS_OF_LINE = """canvas => {
    const scale = canvas.width / canvas.clientWidth;
    const {data} = canvas.getContext("2d").getImageData(0, Math.round(6 * scale), canvas.width, 1);
    return new Set(new Uint32Array(data.buffer)).size;
}"""


@pytest.mark.parametrize("figure", ["matrix", "rows", "grid", "attribution", "compare"])
def test_every_map_has_a_color_scale(page: Any, url: str, figure: str) -> None:
    fragment, complete, _ = FIGURES[figure]
    open_page(page, url, fragment)
    page.wait_for_selector(complete)
    for canvas in page.locator("canvas-figure canvas").all():
        assert canvas.evaluate(COUNT_COLORS_OF_LINE) > 30


def test_labels_grow_with_the_cells(page: Any, url: str) -> None:
    sizes = []
    for text in (SOURCE, SOURCE * 8):
        open_page(page, url, f"text={text}&tab=attention&words=false")
        page.goto("about:blank")
        open_page(page, url, f"text={text}&tab=attention&words=false")
        page.wait_for_selector("canvas-figure canvas")
        sizes.append(page.locator("canvas-figure").evaluate("element => element.figure.fontSize"))
    assert sizes[0] > sizes[1]
