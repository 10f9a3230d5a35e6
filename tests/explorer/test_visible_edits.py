"""Edits are seen where they act, and a failed edit leaves the page as it was."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests_browser import check_accessibility, needs_axe
from tests_explorer import FIND_SERVER, LOSE_SERVER, LOST, SOURCE, open_page, read_output, save_download, wait_for_url

pytestmark = pytest.mark.slow

OUTPUT = '[aria-label="Output tokens"] button'
CROSS = "decoder.layers.1.cross_attention.attention"


def open_edited(page: Any, url: str, *edits: dict[str, Any], fragment: str = "") -> None:
    open_page(page, url, f"text={SOURCE}&edits={json.dumps(edits)}{fragment}")
    page.wait_for_selector(".edit")


def read_chips(page: Any) -> list[str]:
    texts: list[str] = page.locator(".edit").all_inner_texts()
    return [text.removesuffix(" ×") for text in texts]


def test_masked_words_are_struck_through(page: Any, url: str) -> None:
    open_edited(page, url, {"kind": "mask_source", "position": 1, "unit": "word"})
    masked = page.locator("[aria-label=Source] button.masked")
    assert "".join(masked.all_inner_texts()) == "mai"
    assert "line-through" in masked.first.evaluate("token => getComputedStyle(token).textDecorationLine")
    assert masked.first.get_attribute("aria-label").endswith("hidden")


def test_the_page_does_not_scroll_after_run_and_shows_what_an_edit_changed(page: Any, url: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 500})
    open_page(page, url)
    page.get_by_role("textbox", name="Source").fill("4 mai 2009")
    page.keyboard.press("Enter")
    wait_for_url(page, "text=4")
    page.wait_for_selector("main[aria-busy=false]")
    page.wait_for_timeout(200)
    assert page.evaluate("scrollY") == 0
    page.mouse.wheel(0, 5_000)
    page.wait_for_function("() => scrollY > 200")
    page.locator("#mask-source").click()
    page.wait_for_selector("#changes")
    page.wait_for_timeout(200)
    top = page.locator(".edit").bounding_box()["y"]
    bottom = page.locator("#changes").bounding_box()
    assert 0 <= top < bottom["y"] + bottom["height"] <= 500
    assert "reads the hidden “" in page.locator("#reading").inner_text()


def test_forced_tokens_are_marked(page: Any, url: str) -> None:
    open_edited(page, url, {"kind": "force_token", "step": 1, "token": "7"})
    marked = page.locator("button.forced")
    assert marked.all_inner_texts() == ["7"]
    assert "forced" in marked.get_attribute("aria-label")
    page.locator("#tab-steps").click()
    assert page.locator("steps-view button.forced").all_inner_texts() == ["7"]


def test_the_previous_output_is_a_ghost_line_with_its_differences(page: Any, url: str) -> None:
    open_page(page, url)
    before = read_output(page)
    assert page.locator("#ghost").count() == 0
    open_edited(page, url, {"kind": "force_token", "step": 1, "token": "7"})
    page.reload()
    page.wait_for_selector("#ghost")
    ghost = page.locator("#ghost").evaluate(
        "line => [...line.querySelectorAll('span:not(.small)')].map(word => word.textContent)"
    )
    assert "".join(ghost) == before
    after = read_output(page)
    changed = page.locator(f"{OUTPUT}.changed").count()
    assert len(after) - changed == len(before) - len("".join(page.locator("#ghost del").all_inner_texts()))
    assert changed > 0


def test_chips_name_the_layer_and_the_head(page: Any, url: str) -> None:
    open_edited(
        page,
        url,
        {"kind": "ablate_head", "attention": CROSS, "head": 1},
        {"kind": "uniform_row", "attention": CROSS, "head": None, "step": 1},
        fragment="&model=1",
    )
    assert read_chips(page) == [
        "cross-attention layer 2, head 2 off",
        "uniform weights at step 2, cross-attention layer 2, all heads",
    ]


EDIT_COLOR = "#a34e00"


def export_svg(page: Any, folder: Path) -> str:
    return save_download(page, folder, "svg").read_text("utf-8")


@pytest.mark.parametrize("tab", ["attention", "attention&view=lines", "equation", "compare"])
def test_masked_words_are_struck_through_in_every_drawing(page: Any, url: str, tmp_path: Path, tab: str) -> None:
    open_edited(page, url, {"kind": "mask_source", "position": 1, "unit": "word"}, fragment=f"&tab={tab}")
    page.wait_for_selector("canvas")
    page.wait_for_timeout(500)  # the second document of a comparison
    struck = re.findall(r"<text [^>]*line-through[^>]*>([^<]*)</text>", export_svg(page, tmp_path))
    assert set(struck) == set("mai")


def test_heads_that_are_off_are_hatched_and_named_in_the_picker(page: Any, url: str, tmp_path: Path) -> None:
    off = {"kind": "ablate_head", "attention": CROSS, "head": 1}
    open_edited(page, url, off, fragment="&model=1&tab=attention&head=1")
    assert page.locator("#head option").all_inner_texts()[:2] == ["1", "2 (off)"]
    assert page.locator(".plot h2").inner_text().endswith("head 2, off")
    assert EDIT_COLOR in export_svg(page, tmp_path)
    page.locator("#head").select_option(label="1")
    assert EDIT_COLOR not in export_svg(page, tmp_path)
    page.get_by_role("button", name="Heads").click()
    assert EDIT_COLOR in export_svg(page, tmp_path)


def test_rows_that_were_set_are_outlined_and_masked_keys_are_hatched(page: Any, url: str, tmp_path: Path) -> None:
    target = {"attention": "decoder.attention", "head": None, "step": 1}
    open_edited(page, url, {"kind": "uniform_row", **target}, fragment="&tab=attention")
    outline = rf'<rect [^>]*fill="none" stroke="{EDIT_COLOR}"'
    svg = export_svg(page, tmp_path)
    assert len(re.findall(outline, svg)) == 1
    assert not re.findall(rf'<path [^>]*stroke="{EDIT_COLOR}"', svg)
    page.goto("about:blank")  # another fragment alone does not load the page again
    open_edited(page, url, {"kind": "mask_keys", **target, "keys": [2]}, fragment="&tab=attention")
    svg = export_svg(page, tmp_path)
    assert not re.findall(outline, svg)
    assert re.findall(rf'<path [^>]*stroke="{EDIT_COLOR}"', svg)


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("tab", ["translate", "attention", "steps"])
def test_marked_edits_have_no_serious_accessibility_problem(page: Any, url: str, scheme: str, tab: str) -> None:
    page.emulate_media(color_scheme=scheme)
    edits = ({"kind": "mask_source", "position": 1, "unit": "word"}, {"kind": "force_token", "step": 1, "token": "7"})
    open_edited(page, url, *edits, fragment=f"&tab={tab}")
    page.wait_for_timeout(300)  # transitions
    check_accessibility(page)


def test_the_same_edit_twice_is_one_edit(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&column=3")
    page.locator("#mask-source").click()
    page.wait_for_selector("#changes")
    page.wait_for_selector("main[aria-busy=false]")
    page.locator("#mask-source").click()
    page.wait_for_timeout(200)
    assert read_chips(page) == ["“mai” hidden"]
    page.locator("#undo").click()
    page.wait_for_selector("#changes", state="detached")


def test_an_edit_without_a_server_leaves_the_page_as_it_was(page: Any, url: str) -> None:
    open_page(page, url)
    before, address = read_output(page), page.url
    page.evaluate(LOSE_SERVER)
    for panel, button in (("Edit the source", "#mask-source"), ("Alternatives", "#force-end")):
        page.locator(button).click()
        page.wait_for_selector(f"section:has([aria-label='{panel}']) .refusal, [aria-label='{panel}'] .refusal")
        [message] = page.locator("[role=alert]").all_inner_texts()
        assert message.startswith(LOST)
        assert page.locator("#undo").is_disabled()
        assert read_chips(page) == []
        assert read_output(page) == before
        page.wait_for_timeout(500)  # a changed state is written to the URL after 300 ms
        assert page.url == address
    page.evaluate(FIND_SERVER)
    page.locator("#force-end").click()
    page.wait_for_selector("#changes")
    assert page.locator("[role=alert]").count() == 0


def test_an_edit_that_the_model_cannot_apply_is_explained_beside_its_control(browser: Any, url: str) -> None:
    # The browser reports the status of the response in the console, which the fixture `page` does not accept.
    page = browser.new_page()
    open_page(page, url, f"text={SOURCE}&row=0")
    before = read_output(page)
    page.locator("#other-token").fill("☃")
    page.locator("#force-token").click()
    page.wait_for_selector("[aria-label=Alternatives] .refusal")
    message = page.locator(".refusal").inner_text()
    assert message.startswith("Edit 1: ")
    assert "☃" in message
    assert read_output(page) == before
    page.locator("#other-token").fill("7")
    page.locator("#force-token").click()
    page.wait_for_selector("#changes")
    assert page.locator(".refusal").count() == 0
    wait_for_url(page, "force_token")
    page.close()


@pytest.mark.parametrize(
    "tab", ["attention", "attention&view=lines", "attention&method=occlusion", "attention&model=1&role=decoder-self"]
)
def test_forced_tokens_are_marked_in_the_labels_of_rows(page: Any, url: str, tmp_path: Path, tab: str) -> None:
    open_edited(page, url, {"kind": "force_token", "step": 1, "token": "7"}, fragment=f"&tab={tab}")
    page.wait_for_selector("attention-view canvas")
    if "method" in tab:
        page.wait_for_selector("#agreement")
    marked = re.findall(r"<text [^>]*overline[^>]*>([^<]*)</text>", export_svg(page, tmp_path))
    # The self-attention of the decoder also reads the token; an attribution is beside the weights.
    assert marked == ["7"] * (1 if tab in ("attention", "attention&view=lines") else 2)


def test_forced_tokens_are_marked_where_rows_are_chosen(page: Any, url: str) -> None:
    open_edited(page, url, {"kind": "force_token", "step": 1, "token": "7"}, fragment="&tab=attention&view=text")
    assert page.locator("attention-view button.forced").all_inner_texts() == ["7"]
    page.locator("#tab-equation").click()
    assert page.locator("#query option").nth(1).inner_text() == "2. 7 (forced)"


def test_hiding_a_word_and_masking_a_key_are_two_edits(page: Any, url: str) -> None:
    open_page(page, url)
    help_text = page.get_by_role("form", name="Edit the source").locator("+ p").inner_text()
    assert help_text.startswith("Hide: the model reads the unknown token in its place.")
    page.locator("#mask-source").click()
    page.wait_for_selector(".edit")
    page.locator("#tab-attention").click()
    group = page.get_by_role("group", name="Mask a key")
    assert "Its weight is 0" in group.inner_text()
    group.get_by_role("button", name="here").click()
    page.wait_for_selector(".edit >> nth=1")
    hidden, masked = read_chips(page)
    assert hidden.endswith("hidden")
    assert " masked at step " in masked


def test_the_banner_names_the_source_position_of_an_encoder(page: Any, url: str) -> None:
    weights = [1] + 9 * [0]
    row = {"attention": "encoder.layers.0.attention.attention", "head": None, "step": 3, "weights": weights}
    open_edited(page, url, {"kind": "set_row", **row}, fragment="&model=1")
    changes = page.locator("#changes").inner_text()
    assert "The attention changes most at source position 4 (“a”): " in changes
    assert "of its weight moves to other positions (encoder self-attention, layer 1)." in changes
