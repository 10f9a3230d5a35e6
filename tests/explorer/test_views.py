"""The tabs Steps, Compare, Attention (attribution), Model and Image: what they show and what can be selected."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from screenshots import serve
from tests_explorer import SOURCE, has_several_colors, open_page, read_output, wait_for_url

pytestmark = pytest.mark.slow

MASKED = json.dumps([{"kind": "mask_source", "position": 1, "unit": "word"}])


def test_the_tree_shows_scores_and_continues_from_a_selected_token(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=steps&beam=3")
    nodes = page.locator("#beam .node")
    scores = [text.replace("−", "-") for text in page.locator("#beam .score").all_text_contents()]
    assert len(scores) == nodes.count()
    assert all(float(score) <= 0 for score in scores if score != "-∞")
    column = page.locator("#beam svg > g").nth(1).locator(".node")
    other = column.filter(has_not=page.locator("[tabindex='0']")).last
    label = other.locator("title").text_content().removeprefix("Step 2: ").partition(",")[0]
    other.click()
    page.wait_for_selector(".edit")
    page.wait_for_selector("main[aria-busy=false]")
    assert page.locator(".prefix button").nth(1).inner_text() == label
    assert page.locator(".prefix [aria-current=step]").inner_text() == label


def test_a_token_of_another_hypothesis_fixes_all_tokens_before_it(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=steps&beam=4&model=1")
    found = page.evaluate("""() => {
        const { trace } = document.querySelector('explorer-app').store;
        const best = trace.steps[0].map(step => step.id);
        let slots = new Map();
        for (const [step, nodes] of trace.beam.entries()) {
            const next = new Map();
            for (const [index, node] of nodes.entries()) {
                const path = [...(slots.get(node.parent) ?? []), node];
                const first = path.findIndex((each, position) => each.id !== best[position]);
                if (first >= 0 && step > first + 1) return { step, index, tokens: path.map(each => each.token) };
                if (node.slot !== null) next.set(node.slot, path);
            }
            slots = next;
        }
    }""")
    page.locator("#beam svg > g").nth(found["step"]).locator(".node").nth(found["index"]).click()
    page.wait_for_selector(".edit")
    page.wait_for_selector("main[aria-busy=false]")
    written = page.evaluate("() => document.querySelector('explorer-app').store.trace.steps[0].map(step => step.token)")
    assert written[: found["step"] + 1] == found["tokens"]


def test_arrow_keys_move_in_the_tree(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=steps&beam=3&row=1")
    page.locator("#beam [tabindex='0']").focus()
    focused = "document.querySelector('explorer-app').shadowRoot.querySelector('steps-view').shadowRoot.activeElement"
    page.keyboard.press("ArrowDown")
    assert page.evaluate(f"{focused}.querySelector('title').textContent").startswith("Step 2: ")
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"{focused}.querySelector('title').textContent.startsWith('Step 3: ')")
    assert page.locator("#beam [tabindex='0']").count() == 1


def test_a_tree_that_is_wider_than_the_page_is_scrolled_to_the_step(page: Any, url: str) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    open_page(page, url, f"text={SOURCE}&tab=steps&beam=2&row=0")
    beam = page.locator("steps-view #beam")
    assert beam.evaluate("each => each.scrollWidth > each.clientWidth")
    assert beam.evaluate("each => each.scrollLeft") == 0
    page.locator(".prefix button").last.click()
    page.wait_for_function("() => document.querySelector('explorer-app').store.state.row > 3")
    page.wait_for_timeout(200)
    box, shown = page.locator("#beam [tabindex='0']").bounding_box(), beam.bounding_box()
    assert shown["x"] <= box["x"]
    assert box["x"] + box["width"] <= shown["x"] + shown["width"]


def read_rows(page: Any, pane: str) -> int:
    return int(page.locator(f"[aria-label='{pane}'] canvas-figure").evaluate("each => each.size.rows"))


def test_only_rows_of_common_tokens_are_subtracted(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&beam=1")
    page.locator("[aria-label='Output tokens'] button").nth(2).click()
    page.locator("#force-token").wait_for()
    present = page.evaluate("() => document.querySelector('explorer-app').store.trace.steps[0][2]")
    token = next(each["token"] for each in present["top"] if each["id"] != present["id"] and len(each["token"]) == 1)
    page.locator("#other-token").fill(token)
    page.locator("#force-token").click()
    page.wait_for_selector(".edit")
    page.locator("#tab-compare").click()
    page.wait_for_selector("#average")
    before, after = (read_rows(page, pane) for pane in ("Without edits", "With edits"))
    common = read_rows(page, "Difference")
    assert common < max(before, after)
    assert f"{common} token" in page.locator("#average").inner_text()
    marked = page.locator("#change mark").count()
    assert marked == before + after - 2 * common


def test_the_focus_of_a_comparison_is_on_the_same_token(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=compare&edits={MASKED}&row=1&column=2")
    page.wait_for_selector("#average")
    page.locator("[aria-label='Without edits'] [role=application]").focus()
    page.keyboard.press("ArrowDown")
    wait_for_url(page, "row=")
    focused = page.evaluate("""() => [...document.querySelector('explorer-app').shadowRoot
        .querySelector('compare-view').shadowRoot.querySelectorAll('.pane p')].map(each => each.textContent)""")
    assert len(focused) == 3
    labels = {text.partition(":")[0] for text in focused if "no such token" not in text}
    assert len(labels) == 1


def test_the_maps_of_a_comparison_start_at_the_same_height(page: Any, url: str) -> None:
    page.set_viewport_size({"width": 1200, "height": 900})
    open_page(page, url, f"text={SOURCE}&tab=compare&edits={MASKED}&row=1&column=2")
    page.wait_for_selector("#average")
    maps = [figure.bounding_box() for figure in page.locator(".pane canvas-figure").all()]
    titles = [title.bounding_box() for title in page.locator(".pane > div > p").all()]
    assert len({box["height"] for box in titles}) == 2, "one title wraps"
    assert len({box["x"] for box in maps}) == 3
    assert len({box["y"] for box in maps}) == 1


def test_a_comparison_has_words(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=compare&model=0&other=1")
    page.wait_for_selector("#average")
    columns = "each => each.size.columns"
    assert page.locator("[aria-label=Difference] canvas-figure").evaluate(columns) == len(SOURCE)
    page.get_by_role("button", name="Words").click()
    page.wait_for_function("""() => document.querySelector('explorer-app').shadowRoot.querySelector('compare-view')
        .shadowRoot.querySelector('[aria-label=Difference] canvas-figure').size.columns === 3""")
    assert read_output(page) == ""


def test_a_row_of_an_attribution_is_as_strong_as_its_total_effect(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=attention&method=occlusion")
    page.wait_for_selector("#agreement")
    assert page.locator("#agreement th").all_inner_texts()[-1] == "Overlap"
    overlap = float(page.locator("#agreement tbody td").last.inner_text())
    assert 0 <= overlap <= 1
    drawn = page.evaluate("""() => {
        const view = document.querySelector('explorer-app').shadowRoot.querySelector('attention-view').shadowRoot;
        const panel = view.querySelector('attribution-panel');
        const { weights } = panel.shadowRoot.querySelector('canvas-figure').figure.options;
        const sums = Array.from({ length: weights.rows }, (_, row) =>
            weights.row(row).reduce((sum, value) => sum + Math.abs(value), 0));
        return { sums, effects: panel.map.effects };
    }""")
    largest = max(drawn["effects"])
    assert drawn["sums"] == pytest.approx([(effect / largest) ** 0.5 for effect in drawn["effects"]], abs=1e-6)
    score, total = (
        float(page.locator(f"#attribution #{name}").inner_text().split(" nats")[0].replace("−", "-"))
        for name in ("score", "effect")
    )
    sentence = page.locator("#attribution p").first.inner_text()
    [share] = re.findall(r"([\d.]+) % of the total", sentence)
    assert abs(score) == pytest.approx(total * float(share) / 100, rel=0.1)


def test_the_pointer_does_not_change_the_selection_of_a_comparison(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=compare&row=1&column=1")
    page.wait_for_selector("#average")
    labels = page.locator(".pane p")
    before = labels.all_inner_texts()
    canvas = page.locator("compare-view canvas").nth(1)
    corner = {"x": canvas.bounding_box()["width"] - 20, "y": canvas.bounding_box()["height"] - 20}
    canvas.hover(position=corner)
    page.wait_for_timeout(200)
    assert labels.all_inner_texts() == before
    canvas.click(position=corner)
    page.wait_for_timeout(200)
    assert labels.all_inner_texts() != before


@pytest.mark.parametrize("model", [0, 1])
def test_learning_curves_have_different_names(page: Any, url: str, model: int) -> None:
    open_page(page, url, f"text={SOURCE}&model={model}&tab=model")
    page.wait_for_selector("pre")
    names = page.locator("figcaption").all_inner_texts()
    assert {"loss, training", "loss, dev set"} <= set(names)
    assert len(set(names)) == len(names)


def test_heads_that_do_not_use_their_input_are_reported(page: Any, runs: list[Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs[1], run)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text("utf-8").splitlines()]
    for event in events:
        for attention in event.get("attentions", ()):
            attention["heads"][0].update(top_position=0, top_weight=1.0)
            attention["heads"][1].update(top_weight=0.5, entropy=0.5)
    (run / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events), "utf-8")
    with serve([str(run)]) as address:
        open_page(page, address, f"text={SOURCE}&tab=model")
        page.wait_for_selector("pre")
        assert "heads attend to one position only" in page.locator(".warnings").inner_text()


def test_the_image_is_beside_its_weights_and_fills_the_window(page: Any, url: str) -> None:
    widths = []
    for width in (1000, 1600):
        page.set_viewport_size({"width": width, "height": 900})
        open_page(page, url, "model=2&tab=image")
        page.wait_for_timeout(200)
        image, weights = (
            page.locator("image-view img").bounding_box(),
            page.locator("image-view canvas[tabindex]").bounding_box(),
        )
        assert image["y"] == pytest.approx(weights["y"])
        assert (image["width"], image["height"]) == pytest.approx((weights["width"], weights["height"]))
        assert image["x"] + image["width"] < weights["x"]
        assert has_several_colors(page, "image-view canvas")
        widths.append(image["width"])
    assert widths[0] < widths[1]
    page.locator("image-view img").click(position={"x": 5, "y": 5})
    assert "the brushed cell" in page.locator("#mask-region").inner_text()


def test_another_model_without_the_selected_attention_shows_one_that_it_has(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&model=1&tab=attention&role=encoder-self&layer=1&head=1")
    page.locator("#model").select_option("0")
    page.wait_for_selector("attention-view h2:has-text('Cross-attention')")
    page.locator("#tab-compare").click()
    page.wait_for_selector("compare-view #change")
    page.locator("#tab-equation").click()
    page.wait_for_selector("equation-view #error")


def test_an_edited_prediction_has_attributions(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=attention&method=occlusion")
    page.wait_for_selector("#agreement")
    page.get_by_role("group", name="Mask a key").get_by_role("button", name="at all steps").click()
    page.wait_for_selector("#changes")
    page.wait_for_selector("text=The scores explain the model without the masks and the edits of attention.")
    page.wait_for_selector("#agreement")
    assert page.locator(".failure").count() == 0


def test_a_word_that_was_replaced_stays_selected(page: Any, url: str) -> None:
    open_page(page, url, "text=3 mai 2009&column=4")
    page.locator("#replacement").fill("m")
    page.locator("#replace-source").click()
    page.wait_for_selector("form[aria-label='Edit the source'] b:text-is('m')")
    assert page.locator("#replacement").input_value() == ""
