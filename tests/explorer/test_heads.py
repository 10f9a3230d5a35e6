"""The effect of each head: ablations one at a time, in Python, as a stream, and on the page."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi import FastAPI

import regard
from regard.attention.record import find_attentions
from regard.explorer.app import create_app
from regard.explorer.served_model import ServedModel, load_models
from screenshots import serve_app
from tests_browser import check_accessibility, needs_axe
from tests_explorer import ACCESS, SOURCE, open_page, post, read_output, save_download, wait_for_url

GRU, TRANSFORMER = "0", "1"
DEAD = ("decoder.layers.1.cross_attention.attention", 1)
DEAD_NAME = "Cross-attention, layer 2, head 2"


def kill_head(model: regard.Model) -> None:
    """Let the output projection ignore a head."""
    name, head = DEAD
    attention = find_attentions(model.predictor.model)[name]
    weight = dict(model.predictor.model.named_parameters())[name.removesuffix("attention") + "output.weight"]
    width = weight.shape[1] // attention.heads
    with torch.no_grad():
        weight[:, head * width : (head + 1) * width] = 0


@pytest.fixture(scope="module")
def served(runs: list[Path]) -> list[ServedModel]:
    """A GRU, and a Transformer with a dead head whose other weights are large, so that all other heads matter."""
    models = load_models(list(map(str, runs[:2])))
    with torch.no_grad():
        for name, parameter in models[1].model.predictor.model.named_parameters():
            if "attention.output.weight" in name:
                parameter.mul_(4)
    kill_head(models[1].model)
    return models


@pytest.fixture(scope="module")
def dead_app(served: list[ServedModel]) -> FastAPI:
    return create_app(served, ACCESS)


@pytest.fixture(scope="module")
def dead_url(served: list[ServedModel]) -> Iterator[str]:
    with serve_app(partial(create_app, served)) as address:
        yield address


def read_stream(app: FastAPI, **fields: Any) -> list[dict[str, Any]]:
    request = {"model": TRANSFORMER, "source": {"text": SOURCE}, **fields}
    return [json.loads(line) for line in post(app, "/api/heads", request).text.splitlines()]


@pytest.mark.parametrize("edits", [[], [{"kind": "mask_source", "position": 1}]])
def test_effects_are_those_of_single_ablations(served: list[ServedModel], edits: list[dict[str, Any]]) -> None:
    model = served[1].model
    effects = model.ablate_heads(SOURCE, edits=edits, beam=2)
    prediction = model.trace(SOURCE, edits=edits, beam=2).prediction
    assert effects.text == prediction.text
    assert len(effects.heads) == 12
    count = len(prediction.tokens) + (not prediction.truncated)  # with the end token, if the output has one
    for effect in effects.heads:
        ablated = [*edits, {"kind": "ablate_head", "attention": effect.attention, "head": effect.head}]
        forced = model.trace(SOURCE, effects.text, edits=ablated).steps[0][:count]
        assert effect.change == pytest.approx(sum(step.log_prob for step in forced) - effects.score, abs=1e-4)
        assert effect.text == model.trace(SOURCE, edits=ablated, beam=2).prediction.text
    sizes = [abs(effect.change) for effect in effects.heads]
    assert sizes == sorted(sizes, reverse=True)


def test_a_dead_head_has_no_effect(served: list[ServedModel]) -> None:
    *others, last = served[1].model.ablate_heads(SOURCE).heads
    assert (last.attention, last.head) == DEAD
    assert last.change == pytest.approx(0, abs=1e-5)
    assert all(abs(effect.change) > 1e-3 for effect in others)
    assert {effect.role for effect in others} == {"encoder-self", "decoder-self", "cross"}
    assert "cross         layer 2  head 2" in str(served[1].model.ablate_heads(SOURCE)).splitlines()[-1]


def test_effects_are_streamed_with_their_progress(dead_app: FastAPI, served: list[ServedModel]) -> None:
    edits = [{"kind": "ablate_head", "attention": DEAD[0], "head": 0}]
    *progress, last = read_stream(dead_app, search={"beam": 2}, edits=edits)
    assert [line["progress"] for line in progress] == pytest.approx([done / 12 for done in range(13)])
    assert last["result"] == served[1].model.ablate_heads(SOURCE, beam=2, edits=edits).document
    [failure] = read_stream(dead_app, source={"text": ""})
    assert "source is empty" in failure["error"]["message"]


@pytest.mark.slow
def test_the_page_ranks_heads_and_names_the_dead_one(page: Any, dead_url: str, tmp_path: Path) -> None:
    open_page(page, dead_url, f"text={SOURCE}&model=1&tab=attention")
    page.get_by_role("button", name="Heads").click()
    page.get_by_role("button", name="Ablate each head").click()
    rows = page.locator("heads-panel tbody tr")
    rows.nth(11).wait_for()
    assert "1 of 12 heads has no effect on this example: " + DEAD_NAME in page.locator("#idle").inner_text()
    assert "One example is not proof." in page.locator("#idle").inner_text()
    assert rows.count() == 12
    assert DEAD_NAME in rows.last.inner_text()
    assert "no effect" in rows.last.inner_text()
    assert "0.000" in rows.last.inner_text()
    svg = save_download(page, tmp_path, "svg").read_text("utf-8")
    assert svg.count("no effect") == 1
    page.keyboard.press("Escape")
    rows.last.get_by_role("button").click()
    wait_for_url(page, "head=1")
    assert rows.last.get_attribute("aria-current") == "true"
    assert page.locator("aside h3").first.inner_text() == "Layer 2, head 2"
    assert "No effect on this example." in page.locator("aside").inner_text()
    page.get_by_role("button", name="Ablate head 2").click()
    page.wait_for_selector("#changes")
    assert "The edits do not change the output." in page.locator("#changes").inner_text()
    page.get_by_text("All 11 heads have an effect on this example with the edits above.").wait_for()
    assert "ablated" in rows.last.inner_text()
    assert DEAD_NAME in rows.last.inner_text()


@pytest.mark.slow
def test_the_head_of_a_selected_row_is_visible(page: Any, dead_url: str) -> None:
    open_page(page, dead_url, f"text={SOURCE}&model=1&tab=attention&view=grid&ablations=1")
    rows = page.locator("heads-panel tbody tr")
    rows.nth(11).wait_for()
    assert "The grid shows 4 of the 12 heads." in page.locator("#idle").inner_text()
    page.set_viewport_size({"width": 1280, "height": 400})
    button = rows.last.get_by_role("button")
    button.scroll_into_view_if_needed()
    grid = page.locator("attention-view canvas-figure")

    def find_end() -> float:
        box = grid.bounding_box()
        return float(box["y"] + box["height"])

    assert find_end() < 0
    button.click()
    page.wait_for_timeout(200)
    assert find_end() > 0


@pytest.mark.slow
def test_a_head_that_changes_the_output_shows_the_other_output(page: Any, dead_url: str) -> None:
    open_page(page, dead_url, f"text={SOURCE}&model=1&tab=attention&view=grid&ablations=1")
    row = page.locator("heads-panel tbody tr").first
    other = row.locator("td").last.inner_text()
    assert other not in ("same output", "no effect")
    row.get_by_role("button").click()
    page.get_by_role("button", name=re.compile("Ablate head [12]")).click()
    page.wait_for_selector("#changes")
    page.locator("#tab-translate").click()
    assert read_output(page) == other


@pytest.mark.slow
def test_a_model_with_one_attention_has_one_effect(page: Any, dead_url: str) -> None:
    open_page(page, dead_url, f"text={SOURCE}&model=0&tab=attention&view=grid&ablations=1")
    page.locator("#idle").wait_for()
    assert page.locator("heads-panel tbody tr td").first.inner_text() == "Cross-attention"
    assert page.locator("heads-panel tbody tr").count() == 1


@pytest.mark.slow
@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_heads_are_ablated_on_other_examples_and_exported(
    page: Any, dead_url: str, tmp_path: Path, scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme)
    open_page(page, dead_url, f"text={SOURCE}&model=1&tab=attention&view=grid&ablations=1")
    page.get_by_role("button", name="Ablate on 8 more examples").click()
    page.get_by_text("averaged over 9 examples").wait_for()
    assert DEAD_NAME in page.locator("heads-panel tbody tr").last.inner_text()
    check_accessibility(page)
    file = save_download(page, tmp_path, "html")
    saved = [page.locator(f"heads-panel {part}").inner_text() for part in ("#idle", "table")]
    page.goto(file.as_uri())
    page.locator("heads-panel tbody tr").nth(11).wait_for()
    assert [page.locator(f"heads-panel {part}").inner_text() for part in ("#idle", "table")] == saved
