"""The page in a browser: what readers see and do, with the keyboard too, and what an exported file contains."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

import explorer_painting
import regard
from regard.data.images.scenes import sample
from regard.data.images.settings import ScenesData
from screenshots import serve
from tests_browser import check_accessibility, move_to, needs_axe, tab_to
from tests_explorer import (
    FIND_SERVER,
    LOSE_SERVER,
    LOST,
    SOURCE,
    has_several_colors,
    open_page,
    read_output,
    save_download,
    wait_for_url,
)  # fmt: skip

pytestmark = pytest.mark.slow

TABS = ("translate", "attention", "steps", "equation", "compare", "corpus", "model")
LETTERS = "abcdefghijkl"
RECURRENT = {"kind": "recurrent", "embedding": 6, "encoder": {"hidden": 8}, "decoder": {"hidden": 16}}
TRANSFORMER = {"kind": "transformer", "size": 16, "heads": 2, "layers": 2, "feedforward": 12}


def test_a_forced_token_changes_the_output_and_the_url_and_a_reload_reproduces_it(page: Any, url: str) -> None:
    open_page(page, url)
    before = read_output(page)
    page.locator('[aria-label="Alternatives"] li button:not([disabled])').first.click()
    page.wait_for_selector('[aria-label="Edits"]')
    page.wait_for_selector("main[aria-busy=false] > *")
    after = read_output(page)
    assert after != before
    wait_for_url(page, "force_token")
    page.reload()
    page.wait_for_selector('[aria-label="Output tokens"]')
    assert read_output(page) == after
    page.wait_for_selector("#changes")


def test_edits_can_be_undone_and_redone(page: Any, url: str) -> None:
    open_page(page, url)
    before = read_output(page)
    page.locator('[aria-label="Alternatives"] li button:not([disabled])').first.click()
    page.wait_for_selector("#changes")
    after = read_output(page)
    page.locator("#undo").click()
    page.wait_for_selector("#changes", state="detached")
    assert read_output(page) == before
    page.locator("#redo").click()
    page.wait_for_selector("#changes")
    assert read_output(page) == after


def apply(page: Any, selector: str) -> str:
    """Apply an edit, and return what the page says about its effect. Then undo it."""
    page.locator(selector).click()
    page.wait_for_selector("#changes")
    page.wait_for_selector("main[aria-busy=false]")
    effect: str = page.locator("#changes p").inner_text()
    assert re.search(r"Log-probability −[\d.]+ → −[\d.]+ \(([+−][\d.]+|0\.000)\)", effect)
    page.locator("#undo").click()
    page.wait_for_selector("#changes", state="detached")
    return effect


def test_edits_of_the_source_are_decoded_again(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&column=3")
    for selector, chip in (("#mask-source", "“mai” hidden"), ("#delete-source", "“mai” deleted")):
        page.locator(selector).click()
        page.wait_for_selector(f"[aria-label='Remove the edit: {chip}']")
        page.locator("#undo").click()
        page.wait_for_selector("#changes", state="detached")
    assert "The attention changes most at output step" in apply(page, "#mask-source")
    assert "The source has another length" in apply(page, "#delete-source")
    page.locator("#replacement").fill("juin")
    apply(page, "#replace-source")


def test_a_token_of_the_vocabulary_can_be_forced(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&row=0")
    page.locator("#other-token").fill("7")
    page.locator("#force-token").click()
    page.wait_for_selector("#changes")
    assert read_output(page).startswith("7")
    page.locator("#remove-edits").click()
    page.wait_for_selector("#changes", state="detached")
    page.locator('[aria-label="Output tokens"] button').nth(2).click()
    page.locator("#force-end").click()
    page.wait_for_selector("#changes")
    assert page.locator('[aria-label="Output tokens"] button').count() == 2


def test_edits_of_attention_are_decoded_again(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=attention&model=1&head=1&row=1")
    for selector in ("#mask-key", "#mask-key-everywhere", "#uniform-row", "#uniform-everywhere", "#ablate-head"):
        apply(page, selector)
    page.locator("row-editor summary").click()
    slider = page.get_by_role("slider", name="key 3")
    slider.focus()
    slider.press("End")
    page.locator("#set-row").click()
    page.wait_for_selector("#changes")
    wait_for_url(page, "set_row")
    assert "step 2 (" in page.locator("#changes p").inner_text()
    page.reload()
    page.wait_for_selector("[aria-label='Remove the edit: weights set at step 2, cross-attention layer 2, head 2']")


def test_brushed_cells_of_an_image_are_decoded_again(page: Any, url: str) -> None:
    open_page(page, url, "model=2&tab=image")
    page.locator("image-view canvas[tabindex]").focus()
    for key in ("ArrowRight", " ", "ArrowDown", " "):
        page.keyboard.press(key)
    apply(page, "#mask-region")


def test_an_opened_image_survives_a_reload_with_a_short_url(page: Any, url: str, tmp_path: Path) -> None:
    image = tmp_path / "blue.png"
    PIL.Image.new("RGB", (64, 64), "blue").save(image)
    open_page(page, url, "model=2&tab=image")
    before = page.locator("image-view canvas").first.evaluate("canvas => canvas.toDataURL()")
    page.locator("input[type=file]").set_input_files(image)
    wait_for_url(page, "text=blue.png")
    page.wait_for_selector("main[aria-busy=false] > *")
    after = page.locator("image-view canvas").first.evaluate("canvas => canvas.toDataURL()")
    assert after != before
    page.reload()
    page.wait_for_selector("image-view canvas")
    assert page.locator("image-view canvas").first.evaluate("canvas => canvas.toDataURL()") == after
    assert len(page.url) < 100


def test_two_models_are_compared_by_a_difference(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=compare")
    page.wait_for_selector("#change")
    panes = page.locator("compare-view .pane")
    assert panes.count() == 3
    assert "Difference" in panes.nth(2).inner_text()
    assert has_several_colors(page, "compare-view .pane:nth-of-type(3) canvas")


@pytest.mark.parametrize("model", [0, 1])
def test_the_last_layers_of_two_models_are_compared(page: Any, url: str, model: int) -> None:
    """The GRU has one layer, the Transformer two. The selected model is the second one."""
    open_page(page, url, f"text={SOURCE}&tab=compare&model={model}")
    page.wait_for_selector("#change")
    titles = page.locator("compare-view .pane div > span").all_inner_texts()[:2]
    assert titles[model] == "Cross-attention, layer 2, average of 2 heads"
    assert titles[1 - model] == "Cross-attention"


def test_the_keyboard_moves_through_the_matrix_and_the_cell_is_announced(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=attention&row=0&column=0")
    page.locator("canvas-figure [tabindex]").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    wait_for_url(page, "row=1")
    wait_for_url(page, "column=1")
    announced = page.locator("#announcement").inner_text()
    assert re.search(r"output .+, source .+: .+%", announced)
    page.keyboard.press(" ")
    wait_for_url(page, "rows=")
    for view in ("Lines", "Text", "Matrix"):
        page.get_by_role("button", name=view, exact=True).press("Enter")
        assert page.get_by_role("button", name=view, exact=True).get_attribute("aria-pressed") == "true"


METHODS = ("gradient_x_input", "integrated_gradients", "occlusion", "value_zeroing")


def test_attributions_are_drawn_beside_the_weights_with_their_agreement(page: Any, url: str, tmp_path: Path) -> None:
    open_page(page, url, f"text={SOURCE}&tab=attention")
    for count, method in enumerate(METHODS, start=1):
        page.locator("#method").select_option(method)
        page.wait_for_selector(f"#agreement tbody tr:nth-child({count})")
        assert has_several_colors(page, "attribution-panel canvas"), method
    wait_for_url(page, "method=value_zeroing")
    cells = page.locator("#agreement tbody td.number").all_inner_texts()
    assert len(cells) == 3 * len(METHODS)
    assert all(cell == "–" or -1 <= float(cell.replace("−", "-")) <= 1 for cell in cells)
    document = json.loads(save_download(page, tmp_path, "json").read_text("utf-8"))
    assert [each["method"] for each in document["attributions"]] == ["value_zeroing"]
    assert "not by themselves an explanation" in page.locator("attention-view aside").inner_text()
    page.reload()
    page.wait_for_selector("#agreement")
    assert page.locator("attribution-panel h2").inner_text() == "Value zeroing"


def test_an_attribution_is_cancelled_when_the_page_moves_on(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=attention")
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.route("**/api/attribution", lambda _: None)  # the server does not answer
    page.locator("#method").select_option("occlusion")
    page.wait_for_selector("attribution-panel progress")
    page.keyboard.press("Escape")
    page.locator("#tab-steps").click()
    page.wait_for_selector("steps-view")
    page.wait_for_timeout(100)
    assert [each.rpartition("/")[2] for each in failed] == ["attribution"]


def test_a_card_that_arrives_late_does_not_replace_that_of_another_model(page: Any, url: str) -> None:
    delayed: list[Any] = []
    page.route("**/api/models/0/card", lambda route: delayed.append(route))
    open_page(page, url, f"text={SOURCE}&tab=model")
    page.locator("#model").select_option("1")
    settings = page.locator("model-view pre")
    settings.wait_for()
    expected = settings.inner_text()
    with page.expect_response("**/api/models/0/card"):
        delayed[0].continue_()
    page.wait_for_timeout(100)
    assert settings.inner_text() == expected
    assert "kind: transformer" in expected


def test_arrow_keys_walk_through_the_steps(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=steps&row=0")
    page.locator("#next").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("text=Step 3 of")
    page.keyboard.press("Home")
    page.wait_for_selector("text=Step 1 of")


@pytest.mark.parametrize("text", ["</script><img src=x onerror=alert(1)>", "😀 ٣ مايو ٢٠٠٩", "2009年5月3日"])
def test_tokens_are_text(page: Any, url: str, text: str) -> None:
    open_page(page, url)
    page.get_by_label("Source", exact=True).first.fill(text)
    page.keyboard.press("Enter")
    page.wait_for_selector("main[aria-busy=false] > *")
    for tab in ("translate", "attention", "steps"):
        page.locator(f"#tab-{tab}").click()
        page.wait_for_selector(f"{tab}-view")
    assert page.locator("img").count() == 0


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("tab", [*TABS, "image"])
def test_no_tab_has_a_serious_accessibility_problem(page: Any, url: str, tab: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    edit = '[{"kind":"mask_source","position":1}]'
    open_page(page, url, "model=2&tab=image" if tab == "image" else f"text={SOURCE}&tab={tab}&model=1&edits={edit}")
    page.wait_for_selector(READY.get(tab, f"{tab}-view") if tab != "corpus" else "corpus-view")
    page.wait_for_timeout(300)  # transitions
    check_accessibility(page)


def test_every_edit_is_reached_by_the_keyboard(page: Any, url: str) -> None:
    open_page(page, url)
    for selector in ("#mask-source", "#delete-source", "#replacement", "#other-token", "#force-end"):
        tab_to(page, selector)
    page.keyboard.press("2")
    page.wait_for_selector("attention-view")
    tab_to(page, "[aria-label='What is shown'] button")
    move_to(page, "#method", "ArrowRight")
    for selector in ("#mask-key", "#uniform-row", "#ablate-head", "row-editor summary, summary"):
        tab_to(page, selector)
    page.keyboard.press("Enter")
    tab_to(page, "input[type=range]")
    page.keyboard.press("End")
    tab_to(page, "#set-row")
    page.keyboard.press("Enter")
    page.wait_for_selector("#changes")
    page.keyboard.press("Control+z")
    page.wait_for_selector("#changes", state="detached")
    page.keyboard.press("Control+Shift+z")
    page.wait_for_selector("#changes")


EXPORTS = {
    "translate": ("", ">m</text>"),
    "attention": ("", ">m</text>"),
    "steps": ("&row=1", "Beam search"),
    "equation": ("", "tanh"),
    "compare": ("", "Difference"),
    "corpus": ("&sort=-length", "Coverage"),
    "image": ("&model=2", "<image"),
    "model": ("", "Parameters"),
}
"""For each tab: a part of the URL, and a part of the SVG file."""


@pytest.mark.parametrize("tab", EXPORTS)
def test_every_tab_is_exported_as_png_svg_and_json(page: Any, url: str, tmp_path: Path, tab: str) -> None:
    fragment, part = EXPORTS[tab]
    source = "" if tab == "image" else f"text={SOURCE}&"
    open_page(page, url, f"{source}tab={tab}{fragment}")
    page.locator("#export").click()
    page.wait_for_selector("[data-format=svg]:not([disabled])")
    page.keyboard.press("Escape")
    assert save_download(page, tmp_path, "png").read_bytes().startswith(b"\x89PNG")
    svg = save_download(page, tmp_path, "svg").read_text("utf-8")
    assert svg.startswith("<svg")
    assert part in svg
    assert json.loads(save_download(page, tmp_path, "json").read_text("utf-8"))


def test_a_link_to_every_tab_is_copied(page: Any, url: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_page(page, url)
    for tab in TABS:
        page.locator(f"#tab-{tab}").click()
        page.wait_for_selector(f"{tab}-view")
        page.locator("#export").click()
        page.locator("[data-format=link]").click()
        page.wait_for_selector("text=Link copied.")
        assert page.evaluate("navigator.clipboard.readText()") == page.url


def test_an_exported_page_makes_no_request(page: Any, url: str, tmp_path: Path) -> None:
    open_page(page, url, f"text={SOURCE}&row=2")
    output = read_output(page)
    exported = save_download(page, tmp_path, "html")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(exported.as_uri())
    page.wait_for_selector('[aria-label="Output tokens"]')
    assert read_output(page) == output
    page.keyboard.press("4")
    assert float(page.locator("#error").get_attribute("data-value")) < 1e-5
    assert [each for each in requests if not each.startswith(("file:", "data:", "blob:"))] == []


def test_an_exported_comparison_contains_both_models(page: Any, url: str, tmp_path: Path) -> None:
    open_page(page, url, f"text={SOURCE}&tab=compare")
    page.wait_for_selector("#change")
    change = page.locator("#change").inner_text()
    exported = save_download(page, tmp_path, "html")
    page.goto(exported.as_uri())
    page.wait_for_selector("#change")
    assert page.locator("#change").inner_text() == change
    assert page.locator("compare-view .pane").count() == 3
    page.locator("#model").select_option("1")  # the other direction
    page.wait_for_selector("main[aria-busy=false] #change")
    assert page.locator("[role=alert]").count() == 0


def test_an_exported_comparison_contains_the_output_without_edits(page: Any, url: str, tmp_path: Path) -> None:
    edits = json.dumps([{"kind": "force_token", "step": 0, "token": "1"}])
    open_page(page, url, f"text={SOURCE}&tab=compare&edits={edits}")
    page.wait_for_selector("#change")
    change = page.locator("#change").inner_text()
    page.goto(save_download(page, tmp_path, "html").as_uri())
    page.wait_for_selector("#change")
    assert page.locator("#change").inner_text() == change


def test_run_asks_again_after_a_lost_server(page: Any, url: str) -> None:
    open_page(page, url)
    page.evaluate(LOSE_SERVER)
    page.get_by_label("Source", exact=True).first.fill("4 juin 2011")
    page.locator("#run").click()
    assert LOST in page.locator("[role=alert]").inner_text()
    page.locator("#run").click()
    assert LOST in page.locator("[role=alert]").inner_text()
    page.evaluate(FIND_SERVER)
    page.locator("#run").click()
    page.wait_for_selector('[aria-label="Output tokens"]')
    assert page.locator("[role=alert]").count() == 0


@pytest.mark.parametrize("tab", ["equation", "compare", "model"])
def test_run_asks_again_for_what_a_tab_needs(page: Any, url: str, tab: str) -> None:
    open_page(page, url)
    page.evaluate(LOSE_SERVER)
    page.locator(f"#tab-{tab}").click()
    page.wait_for_selector(f"text={LOST}")
    page.evaluate(FIND_SERVER)
    page.locator("#run").click()
    page.wait_for_selector(READY[tab])
    assert page.locator(f"text={LOST}").count() == 0


def test_run_asks_again_for_an_attribution(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=attention")
    page.evaluate(LOSE_SERVER)
    page.locator("#method").select_option("gradient_x_input")
    page.wait_for_selector(f"text={LOST}")
    page.evaluate(FIND_SERVER)
    page.locator("#run").click()
    page.wait_for_selector("#agreement")


def test_a_request_that_is_repeated_while_it_is_pending_is_sent_again(page: Any, url: str) -> None:
    """Undo cancels the request, and redo sends it again."""
    open_page(page, url)
    before = read_output(page)
    page.get_by_label("Source", exact=True).first.fill("4 juin 2011")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.locator("source-bar").evaluate(
        "bar => { bar.shadowRoot.querySelector('#run').click(); bar.store.undo(); bar.store.redo(); }"
    )
    page.wait_for_selector("main[aria-busy=false] > *")
    assert page.locator("[role=alert]").count() == 0
    assert len(sent) == 2
    assert read_output(page)
    page.locator("#undo").click()
    page.wait_for_selector("main[aria-busy=false] > *")
    assert read_output(page) == before


def test_a_captioner_without_a_test_set_shows_dev_images(page: Any, captioners_without_test_set: list[Path]) -> None:
    with serve(list(map(str, captioners_without_test_set))) as address:
        open_page(page, address, "tab=image")
        assert page.locator(".image span").inner_text() == "Image 1 of the dev set"
        assert has_several_colors(page, "image-view canvas")
        page.locator("#tab-corpus").click()
        page.wait_for_selector("text=3 of 3 pairs")
        open_page(page, address, "model=1&tab=image")
        page.reload()
        page.wait_for_selector("text=Open an image to describe it")
        assert page.locator("[role=alert]").count() == 0
        assert page.locator("#next-image").is_disabled()
        page.locator("#tab-corpus").click()
        assert "open an image above" in page.locator("corpus-view p").inner_text()


def format_number(value: float | None) -> str:
    """Format a number as the page does."""
    return f"{value:.3f}".replace("-", "−")


def list_traces(runs: list[Path]) -> Iterator[tuple[str, regard.Trace]]:
    """Traces of every kind, by name."""
    small, transformer, captioner = map(regard.load, runs)
    edits = [{"kind": "force_token", "step": 1, "token": "7"}, {"kind": "mask_source", "position": 0, "unit": "token"}]
    yield "beam", small.trace(SOURCE, beam=2, nbest=2, states=True)
    yield "edits", small.trace(SOURCE, edits=edits)
    yield "target", transformer.trace(SOURCE, "2009-05-03", queries=True)
    yield "large beam", transformer.trace(SOURCE, beam=25)
    yield "markup", transformer.trace("</script><img src=x onerror=alert(1)>", "<b>&")
    yield "empty", small.trace("", "")
    yield "weights only", regard.Trace(transformer.predict(SOURCE))
    image = sample(ScenesData(test=1), "test")[0].pixels
    yield "image", replace(captioner.trace(image), style="grid")


def test_the_file_of_a_trace_shows_everything_that_the_trace_contains(
    page: Any, runs: list[Path], tmp_path: Path
) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    for name, trace in list_traces(runs):
        path = tmp_path / f"{name}.html"
        trace.save(path)
        assert regard.Trace.load(path) == trace
        page.goto("about:blank")
        page.goto(path.as_uri())
        page.wait_for_selector("main[aria-busy=false] > *")
        assert not page.locator("[role=alert]").count(), name
        prediction = trace.prediction
        assert page.locator('[aria-label="Output tokens"] button').count() == len(prediction.tokens), name
        assert page.get_by_text(f"Log-probability {format_number(prediction.score)}").count(), name
        for tab in ("attention", "steps", "equation", "compare", "model"):
            page.click(f"#tab-{tab}")
            page.wait_for_selector(f"{tab}-view")
        page.click("#tab-model")
        page.wait_for_selector("model-view h2")
        assert page.get_by_text(trace.model.get("architecture", "Attention")).count(), name
        page.click("#tab-attention")
        page.wait_for_selector("attention-view")
        if prediction.attentions:
            assert page.locator("attention-view canvas-figure, attention-view p").count(), name
        if trace.steps and trace.steps[0]:
            page.click("#tab-steps")
            page.get_by_text(re.compile(rf"Step \d+ of {len(trace.steps[0])}\b")).wait_for()
            assert page.locator("#beam svg").count() == (trace.beam is not None), name
    assert not [url for url in requests if not url.startswith(("file:", "about:", "data:", "blob:"))]


def test_the_file_of_a_trace_shows_hypotheses_states_and_edits(page: Any, runs: list[Path], tmp_path: Path) -> None:
    traces = dict(list_traces(runs))
    beam, path = traces["beam"], tmp_path / "trace.html"
    beam.save(path)
    page.goto(path.as_uri())
    page.wait_for_selector("translate-view")
    shown = page.inner_text('[aria-label="Hypotheses"]')
    for each in (beam.prediction, *beam.prediction.alternatives):
        assert each.text in shown
        assert f"ranking score {format_number(each.ranking_score)}" in shown
    page.click("#tab-steps")
    states = page.inner_text('[aria-label="Recorded states and gates"]')
    for recorded in beam.states:
        assert recorded.name in states
        assert ", ".join((*recorded.states, *recorded.gates)) in states
    traces["edits"].save(path)
    page.goto("about:blank")
    page.goto(path.as_uri())
    page.wait_for_selector("#changes")
    assert traces["edits"].changes is not None
    assert traces["edits"].changes.text in page.inner_text("#changes")


def test_a_matrix_of_many_tokens_is_painted_as_one_image(page: Any, tmp_path: Path) -> None:
    """What is drawn and the elements of the page do not grow with the cells; see `benchmarks/explorer_painting.py`."""
    few = explorer_painting.paint(page, tmp_path, "matrix", layers=1, heads=1, tokens=100)
    many = explorer_painting.paint(page, tmp_path, "matrix", layers=1, heads=1, tokens=300)
    assert has_several_colors(page, "canvas-figure canvas")
    labels = 2 * 300
    assert 0 < many["operations"] < few["operations"] + 2 * labels
    assert many["elements"] == few["elements"]


def test_a_grid_of_many_heads_is_painted_as_one_image_per_head(page: Any, tmp_path: Path) -> None:
    few = explorer_painting.paint(page, tmp_path, "grid", layers=1, heads=8, tokens=120)
    many = explorer_painting.paint(page, tmp_path, "grid", layers=6, heads=8, tokens=120)
    assert has_several_colors(page, "canvas-figure canvas")
    assert 48 <= many["operations"] <= 6 * few["operations"]
    assert many["elements"] <= few["elements"] + 10  # a control for the layers


def test_the_tour_has_six_steps_on_the_sentence_of_the_visitor(page: Any, url: str) -> None:
    open_page(page, url)
    page.locator("#tour").focus()
    page.keyboard.press("Enter")
    titles, tabs = [], []
    for number in range(1, 7):
        page.wait_for_selector(f"guided-tour h2:has-text('{number}. ')")
        titles.append(page.locator("guided-tour h2").inner_text())
        tabs.append(page.locator("[role=tab][aria-selected=true]").inner_text())
        if number == 1:
            assert SOURCE in page.locator("guided-tour p").inner_text()
        page.keyboard.press("Enter")
    assert len(set(titles)) == 6
    assert tabs == ["Translate", "Translate", "Attention", "Steps", "Equation", "Translate"]
    page.wait_for_selector("guided-tour", state="detached")
    page.keyboard.press("Enter")  # the focus is on the button again
    page.wait_for_selector("guided-tour section")
    page.keyboard.press("Escape")
    page.wait_for_selector("guided-tour", state="detached")


READY = {"equation": "#check", "compare": "#change", "corpus": "corpus-metrics table", "model": "pre"}
"""For some tabs, the element that appears when the view is complete."""


@pytest.mark.parametrize("tab", TABS)
def test_a_reload_reproduces_every_tab(page: Any, url: str, tab: str) -> None:
    sort = "&sort=-length" if tab == "corpus" else ""
    open_page(page, url, f"text={SOURCE}&tab={tab}&row=2&column=3&beam=2{sort}")
    read = "view => view.shadowRoot.textContent.replace(/computed in .* s/, '')"
    ready = READY.get(tab, f"{tab}-view")
    page.wait_for_selector(ready)
    page.wait_for_timeout(300)
    before = page.locator(f"{tab}-view").evaluate(read)
    page.reload()
    page.wait_for_selector(ready)
    page.wait_for_timeout(300)
    assert page.locator(f"{tab}-view").evaluate(read) == before


def test_the_attention_starts_at_the_largest_weight_of_its_row(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=attention&row=2")
    value = page.locator("attention-view .value").inner_text()
    assert value == page.locator("attention-view li .number").first.inner_text()
    page.locator("attention-view [role=application]").focus()
    page.keyboard.press("Home")
    wait_for_url(page, "column=0")
    assert page.locator("attention-view .value + p").inner_text().endswith("attends to 3")
