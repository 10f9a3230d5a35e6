"""Figures for papers, and the page as a file: what they contain, and that they show the same as the page."""

import io
import json
import re
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import PIL.Image
import PIL.ImageChops
import pytest

from tests_browser import new_page
from tests_explorer import SOURCE, has_several_colors, open_page, save_download

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
    "steps": (f"text={SOURCE}&tab=steps&row=0", "#beam", {"Step 1", "probability", "Beam search", "kept", "pruned"}),
    "compare": (f"text={SOURCE}&tab=compare", "#change", {"Difference", "source →", "output ↓", "−1", "0.5", "1"}),
    "model": ("tab=model", "model-view pre", {"loss, dev set", "step"}),
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


@pytest.mark.parametrize("unit", ["false", "true"])
def test_the_figure_of_a_text_has_the_ribbons_and_words_of_the_page(
    page: Any, url: str, tmp_path: Path, unit: str
) -> None:
    open_page(page, url, f"text={SOURCE}&words={unit}")
    page.wait_for_selector(".weak path", state="attached")
    root = read_svg(save_download(page, tmp_path, "svg"))
    ribbons = [each for each in root.findall(f"{SVG}path") if "C" in each.get("d", "")]
    assert len(ribbons) == page.locator(".weak path").count() > 0
    texts = ["".join(each.itertext()) for each in root.findall(f"{SVG}text")]
    assert ("mai" in texts) == (unit == "true")


def test_the_figure_of_a_caption_has_its_pictures(page: Any, url: str, tmp_path: Path) -> None:
    open_page(page, url, f"model=2&edits={WORD}")
    words = page.locator("[aria-label='Output tokens'] button").count()
    assert len(read_svg(save_download(page, tmp_path, "svg")).findall(f"{SVG}image")) == words > 0


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


@pytest.mark.parametrize(
    ("fragment", "ticks"),
    [
        (f"text={SOURCE}&tab=attention&view=text&colors=row", "0, row maximum"),
        (f"model=2&tab=image&edits={WORD}", "0, maximum"),
    ],
)
def test_colors_that_are_not_on_a_figure_have_a_scale(page: Any, url: str, fragment: str, ticks: str) -> None:
    open_page(page, url, fragment)
    page.wait_for_selector(f"scale-legend [aria-label='Color scale: {ticks}']")
    assert has_several_colors(page, "scale-legend canvas")


def test_labels_grow_with_the_cells(page: Any, url: str) -> None:
    sizes = []
    for text in (SOURCE, SOURCE * 8):
        open_page(page, url, f"text={text}&tab=attention&words=false")
        page.goto("about:blank")
        open_page(page, url, f"text={text}&tab=attention&words=false")
        page.wait_for_selector("canvas-figure canvas")
        sizes.append(page.locator("canvas-figure").evaluate("element => element.figure.fontSize"))
    assert sizes[0] > sizes[1]


FORCED = json.dumps([{"kind": "force_token", "step": 1, "token": "7"}])

PAGES = {
    "matrix": (
        f"text={SOURCE}&tab=attention&row=3&column=4",
        "canvas-figure",
        ["canvas-figure", "attention-view aside ol"],
    ),
    "comparison": (
        f"text={SOURCE}&tab=compare",
        "#change",
        ["#change", ".pane:nth-of-type(1)", ".pane:nth-of-type(2)", ".pane:nth-of-type(3)"],
    ),
    "edit": (
        f"text={SOURCE}&tab=attention&edits={FORCED}",
        "#changes",
        ["#changes", "canvas-figure"],
    ),
    "attribution": (
        f"text={SOURCE}&tab=attention&method=occlusion",
        "#agreement",
        ["attention-view .plot canvas", "attribution-panel canvas", "#agreement"],
    ),
    "picture": (
        f"model=2&tab=image&smooth=false&edits={WORD}",
        "image-view canvas",
        ["#changes", "image-view canvas", ".words"],
    ),
}  #
"""For each page: the URL, the element that shows that it is complete, and the regions that are compared."""


HIDE_CONTROLS = """app => app.shadowRoot.querySelectorAll("header, source-bar")
    .forEach(element => element.style.display = "none")"""
"""An exported page has other controls above the tabs. Where they end is between two pixels."""


def photograph(page: Any, complete: str, regions: list[str]) -> list[PIL.Image.Image]:
    """Return what the regions of a complete page show, without a pointer on them."""
    page.wait_for_selector(complete)
    page.mouse.move(0, 0)
    page.locator("explorer-app").evaluate(HIDE_CONTROLS)
    page.wait_for_timeout(500)  # transitions, and drawings that are adapted to the width of the view
    shots = [page.locator(region).first.screenshot(animations="disabled") for region in regions]
    return [PIL.Image.open(io.BytesIO(shot)).convert("RGB") for shot in shots]


SHOW_CONTROLS = HIDE_CONTROLS.replace("none", "")


@pytest.fixture
def offline(browser: Any) -> Iterator[Any]:
    """A page without a network, in a browser that knows nothing of the explorer. A request or an error fails it."""
    with new_page(browser, offline=True) as (opened, problems):
        opened.on("request", lambda request: problems.append(request.url) if request.url.startswith("http") else None)
        yield opened


@pytest.mark.parametrize("case", PAGES)
def test_an_exported_page_shows_the_same_pixels_without_a_network(
    page: Any, offline: Any, url: str, tmp_path: Path, case: str
) -> None:
    fragment, complete, regions = PAGES[case]
    open_page(page, url, fragment)
    expected = photograph(page, complete, regions)
    page.locator("explorer-app").evaluate(SHOW_CONTROLS)
    offline.goto(save_download(page, tmp_path, "html").as_uri())
    for region, before, after in zip(regions, expected, photograph(offline, complete, regions), strict=True):
        assert len(set(before.get_flattened_data())) > 2, region
        assert after.size == before.size, region
        # Chromium draws round corners with a difference of 1 of 255 from time to time.
        assert max(PIL.ImageChops.difference(before, after).tobytes()) <= 1, region


UNFINISHED = re.compile("Computing|Predicting|Reading|Nothing to compare with|[Tt]ry again|Retry")

NEEDS_MODEL = "#run, select#beam, #mask-source, #force-token, button#mask-key, #mask-region, #set-row, #examples, #read"


@pytest.mark.parametrize("source", [f"text={SOURCE}", f"model=2&edits={WORD}"])
def test_an_exported_page_is_complete_and_has_no_controls_that_need_the_model(
    page: Any, offline: Any, url: str, tmp_path: Path, source: str
) -> None:
    open_page(page, url, source)
    tabs = page.get_by_role("tab").all_inner_texts()
    offline.goto(save_download(page, tmp_path, "html").as_uri())
    offline.wait_for_selector("main[aria-busy=false] > *")
    shown = offline.get_by_role("tab").all_inner_texts()
    assert shown == [name for name in tabs if name != "Corpus"]  # the file does not contain the test set
    for name in shown:
        offline.get_by_role("tab", name=name, exact=True).click()
        offline.wait_for_timeout(200)
        assert offline.get_by_text(UNFINISHED).count() == 0, name
        assert offline.locator("[role=alert]").count() == 0, name
        assert offline.locator(NEEDS_MODEL).count() == 0, name
    assert "run regard explore" in offline.locator("#saved").inner_text()


def test_the_tour_of_an_exported_page_works_without_a_network(
    page: Any, offline: Any, url: str, tmp_path: Path
) -> None:
    open_page(page, url)
    offline.goto(save_download(page, tmp_path, "html").as_uri())
    offline.locator("#tour").click()
    titles = set()
    while offline.locator("guided-tour h2").count():
        titles.add(offline.locator("guided-tour h2").inner_text())
        assert offline.locator("[role=alert]").count() == 0
        offline.locator("guided-tour button.primary").click()
        offline.wait_for_timeout(100)
    assert len(titles) == 6


def test_the_examples_of_an_exported_page_are_its_predictions(
    page: Any, offline: Any, url: str, tmp_path: Path
) -> None:
    open_page(page, url)
    page.get_by_label("Source", exact=True).first.fill("4 juin 2011")
    page.locator("#run").click()
    page.wait_for_selector("main[aria-busy=false]")
    page.locator("#export").click()
    page.locator("[data-example]").check()
    page.locator("#page-title").fill("Two dates")
    page.locator("#caption").fill("<b>Figure 1</b>")
    page.locator("#close").click()
    offline.goto(save_download(page, tmp_path, "html").as_uri())
    assert offline.title() == "Two dates"
    assert "<b>Figure 1</b>" in offline.locator("[aria-label='About this page']").inner_text()
    for label, text in ((SOURCE, SOURCE), ("4 juin 2011", "4 juin 2011")):
        offline.locator("#examples").select_option(label=f"{label} (small)")
        offline.wait_for_selector("main[aria-busy=false]")
        assert offline.get_by_label("Source", exact=True).first.input_value() == text
        assert offline.locator("[role=alert]").count() == 0
    assert offline.locator("#examples option").count() == 3


def test_a_copied_link_says_that_it_is_local(page: Any, url: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_page(page, url)
    page.locator("#export").click()
    assert "save the HTML file" in page.locator("#link-reach").inner_text()
    page.locator("[data-format=link]").click()
    page.wait_for_selector("text=Link copied. It opens on this computer only")
    assert page.evaluate("navigator.clipboard.readText()") == page.url


def test_a_png_has_the_chosen_number_of_pixels_per_pixel_of_the_figure(page: Any, url: str, tmp_path: Path) -> None:
    open_page(page, url, f"text={SOURCE}&tab=attention")
    width = int(read_svg(save_download(page, tmp_path, "svg")).get("width", ""))
    sizes = []
    for scale in ("2", "3"):
        page.locator("#export").click()
        page.locator("#scale").select_option(scale)
        page.locator("#close").click()
        with PIL.Image.open(save_download(page, tmp_path, "png")) as image:
            sizes.append(image.width)
            assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert sizes == [pytest.approx(2 * width, abs=2), pytest.approx(3 * width, abs=3)]
