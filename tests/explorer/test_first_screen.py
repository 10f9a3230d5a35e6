"""The first screen: ribbons between words, which start at an informative token, and the alternatives to a token."""

import base64
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

import explorer_painting
from regard.inspection.trace.page import render_page
from tests_explorer import SOURCE, open_page, read_output, wait_for_url

pytestmark = pytest.mark.slow

OUTPUT = '[aria-label="Output tokens"] button'
LONG = "Mittwoch, den 3. Mai 2009, um 12 Uhr in dem kleinen Haus am Ende der Strasse. " * 4


def fetch_trace(url: str, **request: Any) -> dict[str, Any]:
    body = {"model": "0", "source": {"text": SOURCE}, "search": {"beam": 4, "nbest": 4}, **request}
    trace: dict[str, Any] = httpx.post(f"{url}api/trace", json=body).json()
    return trace


def average_weights(trace: dict[str, Any]) -> NDArray[np.float64]:
    """Return the cross-attention of the first hypothesis, averaged over layers and heads."""
    weights = [
        np.frombuffer(base64.b64decode(entry["data"]), entry["dtype"]).reshape(-1, *entry["shape"][-2:])
        for entry in trace["attention"]
        if entry["role"] == "cross" and entry["hypothesis"] == 0
    ]
    averaged: NDArray[np.float64] = np.concatenate(weights).astype(float).mean(0)
    return averaged


def read_ribbons(page: Any) -> list[tuple[int, int, float]]:
    """Return the row, the column and the width of each strong ribbon."""
    found: list[tuple[int, int, float]] = page.locator(".strong path").evaluate_all(
        "paths => paths.map(path => [+path.dataset.row, +path.dataset.column, +path.getAttribute('stroke-width')])"
    )
    return found


@pytest.mark.parametrize("model", ["0", "1"])
def test_the_widths_of_ribbons_are_the_average_weights(page: Any, url: str, model: str) -> None:
    weights = average_weights(fetch_trace(url, model=model))
    open_page(page, url, f"text={SOURCE}&model={model}&row=1")
    ribbons = read_ribbons(page)
    assert {(row, column) for row, column, _ in ribbons} == {
        (1, int(column)) for column in np.flatnonzero(weights[1] >= 0.04)
    }
    row, column, width = max(ribbons, key=lambda ribbon: ribbon[2])
    unit = width / weights[row, column]
    for row, column, width in ribbons:
        assert width == pytest.approx(unit * weights[row, column], abs=0.1)


def test_a_layer_and_a_head_of_a_transformer_can_be_chosen(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&model=1&row=1")
    before = read_ribbons(page)
    page.locator("#layer").select_option(label="1")
    page.locator("#head").select_option(label="2")
    wait_for_url(page, "head=1")
    assert read_ribbons(page) != before


def test_a_link_to_the_first_token_opens_it_and_a_link_without_a_token_opens_an_informative_one(
    page: Any, url: str
) -> None:
    open_page(page, url, f"text={SOURCE}&row=0")
    assert page.locator(OUTPUT).first.get_attribute("aria-current") == "true"
    page.goto("about:blank")
    open_page(page, url)
    assert "row" not in page.url
    current = page.locator(f"{OUTPUT}[aria-current=true]").inner_text()
    output = read_output(page)
    translated = [token for token in output if token.isalnum() and token not in SOURCE]
    assert current in (translated or output)


def test_the_ribbons_of_the_word_under_the_pointer_or_with_the_focus_are_strong(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&row=0")
    assert {row for row, _, _ in read_ribbons(page)} == {0}
    page.locator(OUTPUT).nth(2).hover()
    assert {row for row, _, _ in read_ribbons(page)} == {2}
    page.locator("[aria-label=Source] button").nth(2).hover()
    assert {column for _, column, _ in read_ribbons(page)} <= {2}
    page.mouse.move(5, 5)
    page.locator(OUTPUT).first.focus()
    page.keyboard.press("ArrowRight")
    assert {row for row, _, _ in read_ribbons(page)} == {1}
    wait_for_url(page, "row=1")


def open_long(page: Any, folder: Path, text: str) -> None:
    """Open an exported page with random weights between the characters of a text and an output of as many tokens."""
    document = explorer_painting.create_document(1, 1, len(text))
    document["source"] |= {"text": text, "tokens": list(text)}
    exported = folder / "long.html"
    traces = [{"request": explorer_painting.make_request("0", text), "document": document}]
    models = [explorer_painting.describe_model("0", "long", text)]
    exported.write_text(render_page({"models": models, "traces": traces}), "utf-8")
    page.goto(f"{exported.as_uri()}#text={quote(text)}&row=1&words=false")


def check_ribbons(page: Any, width: int) -> None:
    """Check that the lines are inside the window, and that each strong ribbon ends at its two words."""
    page.wait_for_selector(".strong path", state="attached")
    lines = page.locator(".lines").bounding_box()
    assert lines["x"] >= 0
    assert lines["x"] + lines["width"] <= width
    assert page.locator(".lines").evaluate("lines => lines.scrollWidth <= lines.clientWidth")
    for path in page.locator(".strong path").all():
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.get_attribute("d"))]
        ends = {"source": numbers[:2], "output": numbers[-2:]}
        tokens = {"source": path.get_attribute("data-column"), "output": path.get_attribute("data-row")}
        for side, (x, y) in ends.items():
            box = page.locator(f".{side} [data-index='{tokens[side]}']").bounding_box()
            assert box["x"] - 1 <= lines["x"] + x <= box["x"] + box["width"] + 1
            assert box["y"] - 1 <= lines["y"] + y <= box["y"] + box["height"] + 1


@pytest.mark.parametrize("width", [1280, 390])
def test_ribbons_end_at_their_words(page: Any, url: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    open_page(page, url, f"text={SOURCE}&row=0")
    check_ribbons(page, width)
    page.set_viewport_size({"width": width - 60, "height": 800})
    check_ribbons(page, width - 60)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("text", [LONG, "a" * 300])
def test_long_lines_wrap_with_the_ribbons_of_one_word(page: Any, tmp_path: Path, width: int, text: str) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    open_long(page, tmp_path, text)
    check_ribbons(page, width)
    assert page.locator(".weak path").count() == 0
    page.locator(OUTPUT).nth(len(text) - 1).hover()
    assert {row for row, _, _ in read_ribbons(page)} == {len(text) - 1}
    check_ribbons(page, width)


def test_a_word_is_one_box_whose_letters_can_be_selected(page: Any, url: str) -> None:
    open_page(page, url)
    words = page.locator("[aria-label=Source] .word:not(.space)")
    assert words.evaluate_all("words => words.map(word => word.textContent)") == SOURCE.split()
    words.nth(1).locator("button").nth(2).click()
    wait_for_url(page, "column=4")
    assert "mai" in page.locator('[aria-label="Edit the source"]').inner_text()


def test_a_chosen_alternative_is_forced_and_what_is_before_it_is_kept(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&row=0")
    before = page.locator(OUTPUT).all_inner_texts()
    page.locator(OUTPUT).nth(2).click()
    page.wait_for_selector(f"text=Alternatives to “{before[2]}”")
    rows = page.locator(".choices button")
    strongest = page.locator(".choices [aria-pressed=true]")
    assert strongest.locator("bdi").inner_text() == before[2]
    assert strongest.evaluate("row => getComputedStyle(row).opacity") == "1"
    other = rows.and_(page.locator(":not([disabled])")).first
    chosen = other.locator("bdi").inner_text()
    other.click()
    page.wait_for_selector("#changes")
    page.wait_for_selector("main[aria-busy=false]")
    assert page.locator(OUTPUT).all_inner_texts()[:3] == [*before[:2], chosen]


def test_tokens_that_are_never_predicted_are_hidden_and_unlikely_ones_are_collapsed(page: Any, url: str) -> None:
    steps = fetch_trace(url)["steps"][0]
    listed = {token["token"] for step in steps for token in step["top"]}
    assert listed & {"<pad>", "<unk>", "<s>"}, "the model of this test gives them no probability"
    open_page(page, url, f"text={SOURCE}&row=0")
    for row, step in enumerate(steps[:3]):
        page.locator(OUTPUT).nth(row).click()
        possible = [each for each in step["top"] if each["token"] not in ("<pad>", "<unk>", "<s>")]
        likely = [each for each in possible if each["id"] == step["id"] or np.exp(each["log_prob"]) >= 0.001]
        assert page.locator("section > .choices button").count() == len(likely)
        assert page.locator("details .choices button").count() == len(possible) - len(likely)
    page.locator("#tab-steps").click()
    assert page.locator("[aria-label='Most likely tokens'] ol li").count() == len(possible)


def test_the_words_of_a_caption_show_their_weights_over_the_picture(page: Any, url: str) -> None:
    open_page(page, url, "model=2&hypothesis=1&row=0")
    read = "canvas => canvas.toDataURL()"
    canvas = page.locator("translate-view canvas")
    first = canvas.evaluate(read)
    page.locator(OUTPUT).nth(1).hover()
    assert canvas.evaluate(read) != first
    page.mouse.move(5, 5)
    assert canvas.evaluate(read) == first


def test_a_single_letter_has_its_own_weight_and_edits(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&row=0&column=3")
    reading = page.locator("#reading")
    assert "reads “mai”" in reading.inner_text()
    page.get_by_role("button", name="Letter", exact=True).click()
    assert "reads “a”" in reading.inner_text()
    weight = page.locator("[aria-label=Source] button").nth(3).get_attribute("aria-label").split("weight ")[1]
    assert weight in reading.inner_text()
    page.get_by_role("button", name="Hide", exact=True).click()
    page.wait_for_selector(".edit")
    assert page.locator(".edit").inner_text().startswith("“a” (source token 4) hidden")
    assert page.locator("[aria-label=Source] button.masked").all_inner_texts() == ["a"]
    page.get_by_role("button", name="Next source token").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.wait_for_selector(".edit >> nth=1")
    assert "".join(page.locator("[aria-label=Source] button").all_inner_texts()).replace("␣", " ") == "3 ma 2009"


def test_the_ribbons_name_their_layer_and_head(page: Any, url: str) -> None:
    off = {"kind": "ablate_head", "attention": "decoder.layers.1.cross_attention.attention", "head": 0}
    open_page(page, url, f"text={SOURCE}&model=1")
    legend = page.locator(".legend")
    assert legend.inner_text().startswith("Cross-attention, average of 2 layers, average of 2 heads.")
    page.locator("#layer").select_option(label="2")
    page.locator("#head").select_option(label="2")
    assert legend.inner_text().startswith("Cross-attention, layer 2, head 2.")
    page.goto("about:blank")  # another fragment alone does not load the page again
    open_page(page, url, f"text={SOURCE}&model=1&edits={json.dumps([off])}")
    assert "average of 2 heads, 1 of them off." in legend.inner_text()
