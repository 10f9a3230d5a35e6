"""The tab Equation draws the computation from the query and the keys to the context as one diagram."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import explorer_painting
import regard
from regard.inspection.trace.page import render_page
from tests_browser import check_accessibility, needs_axe
from tests_explorer import SOURCE, open_page, wait_for_url
from tests_shared import build_untrained

pytestmark = pytest.mark.slow

LETTERS = "abcdefghijkl"
RECURRENT = {"kind": "recurrent", "embedding": 6, "encoder": {"hidden": 8}, "decoder": {"hidden": 16}}
TRANSFORMER = {"kind": "transformer", "size": 16, "heads": 2, "layers": 2, "feedforward": 12}
LONG = "Donnerstag, den 23. September 2021"

STAGES = "flow => flow.figure.stages.map(stage => stage.name)"
SLOTS = "flow => flow.figure.lines.map(line => line.slot)"
WEIGHTS = "flow => flow.figure.options.lanes.map(lane => [...lane.row.weights])"
PLACES = """flow => {
    const { figure } = flow;
    const bounds = flow.shadowRoot.querySelector('canvas').getBoundingClientRect();
    const points = figure.lines.map(() => figure.stages.map(() => []));
    for (let y = 0; y < figure.height; y += 3) for (let x = 0; x < figure.width; x += 3) {
        const cell = figure.find(x, y);
        if (cell) points[cell.row][cell.column].push([bounds.x + x, bounds.y + y]);
    }
    return points.map(row => row.map(cell => cell[Math.floor(cell.length / 2)]));
}"""
"""A point on the page in each row and stage."""
COLORS = """(flow, points) => {
    const canvas = flow.shadowRoot.querySelector('canvas');
    const bounds = canvas.getBoundingClientRect();
    const scale = canvas.width / bounds.width;
    const context = canvas.getContext('2d');
    return points.map(([x, y]) => [...context.getImageData((x - bounds.x) * scale, (y - bounds.y) * scale, 1, 1).data]);
}"""
"""The colors of the diagram at points of the page."""
LETTERS_OF = """view => [...view.querySelectorAll('mi')]
    .filter(name => !name.closest('msub > :nth-child(2), munder > :nth-child(2)'))
    .map(name => name.textContent)
    .filter(name => name.length === 1)"""
"""The one-letter symbols of formulas, without subscripts."""


def open_equation(page: Any, url: str, fragment: str = "", source: str = SOURCE) -> Any:
    """Open the tab, and return the diagram."""
    open_page(page, url, f"text={source}&tab=equation{fragment}")
    page.wait_for_selector("#check")
    return page.locator("canvas-figure")


def write_page(path: Path, *documents: dict[str, Any]) -> str:
    """Write a page that works offline, with a model for each document, and return its URL."""
    names = [str(index) for index in range(len(documents))]
    models = [explorer_painting.describe_model(name, name, LETTERS) for name in names]
    requests = [explorer_painting.make_request(name, LETTERS) for name in names]
    traces = [{"request": request, "document": each} for request, each in zip(requests, documents, strict=True)]
    path.write_text(render_page({"models": models, "traces": traces}), "utf-8")
    return path.as_uri()


def decode(array: dict[str, Any]) -> Any:
    return np.frombuffer(base64.b64decode(array["data"]), array["dtype"]).reshape(array["shape"])


def trace_untrained(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = build_untrained(base, changes).trace(LETTERS, min_length=4, queries=True).document
    return document


def test_a_hovered_key_lights_up_through_all_stages(page: Any, url: str, runs: list[Path]) -> None:
    flow = open_equation(page, url, "&row=1")
    places = flow.evaluate(PLACES)
    line, stage = 2, flow.evaluate(STAGES).index("Weight")
    column = [[(x, y + offset) for offset in range(-12, 13)] for x, y in places[line]]
    before = [flow.evaluate(COLORS, points) for points in column]
    page.mouse.move(*places[line][stage])
    wait_for_url(page, "column=2")
    assert all(flow.evaluate(COLORS, points) != old for points, old in zip(column, before, strict=True))
    weights = regard.load(runs[0]).trace(SOURCE, beam=4).document["attention"][0]
    note = page.locator("#stage-note").inner_text()
    assert note.startswith(f"Weight of “{SOURCE[line]}”: {100 * decode(weights)[1, line]:.1f} %.")


def test_the_arrow_keys_move_between_keys_and_stages(page: Any, url: str) -> None:
    flow = open_equation(page, url, "&column=0")
    flow.locator("[role=application]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    wait_for_url(page, "stage=1")
    wait_for_url(page, "column=1")
    assert page.locator("#stage-note b").inner_text() == flow.evaluate(STAGES)[1]


def test_the_term_of_the_active_stage_is_highlighted(page: Any, url: str) -> None:
    flow = open_equation(page, url, "&stage=3")
    assert flow.evaluate(STAGES)[3] == "tanh"
    assert page.locator("math .active").all_text_contents() == ["tanh(Wq+Ukj)"]


def test_the_largest_weight_of_a_long_source_is_visible_without_scrolling(page: Any, url: str) -> None:
    flow = open_equation(page, url, "&row=1", LONG)
    slots, [weights] = flow.evaluate(SLOTS), flow.evaluate(WEIGHTS)
    assert slots[-1] is None
    shown = slots[:-1]
    assert shown == sorted(range(len(weights)), key=lambda slot: -weights[slot])[: len(shown)]
    x, y = flow.evaluate(PLACES)[0][-1]
    assert 0 < x < page.viewport_size["width"]
    assert 0 < y < page.viewport_size["height"]
    assert flow.evaluate("flow => flow.scrollHeight <= flow.clientHeight && flow.scrollWidth <= flow.clientWidth")


def test_the_keys_with_little_weight_are_shown_on_request(page: Any, url: str) -> None:
    flow = open_equation(page, url, source=LONG)
    few = flow.evaluate(SLOTS)
    page.locator("#tail").click()
    wait_for_url(page, "tail=true")
    assert len(flow.evaluate(SLOTS)) == len(LONG) > len(few)
    page.locator("#tail").click()
    assert flow.evaluate(SLOTS) == few
    page.mouse.click(*flow.evaluate(PLACES)[len(few) - 1][0])
    wait_for_url(page, "tail=true")


def test_the_order_of_the_keys_is_part_of_the_url(page: Any, url: str) -> None:
    flow = open_equation(page, url)
    assert flow.evaluate(SLOTS) == list(range(len(SOURCE)))
    page.get_by_role("button", name="By weight").click()
    wait_for_url(page, "order=weight")
    sorted_by_weight = flow.evaluate(SLOTS)
    [weights] = flow.evaluate(WEIGHTS)
    assert sorted_by_weight == sorted(range(len(SOURCE)), key=lambda slot: -weights[slot])
    page.reload()
    page.wait_for_selector("#check")
    assert flow.evaluate(SLOTS) == sorted_by_weight


def test_there_is_a_mask_only_where_something_is_masked(page: Any, url: str) -> None:
    flow = open_equation(page, url)
    assert "Mask" not in flow.evaluate(STAGES)
    page.locator("#mask-key").select_option("1")
    page.wait_for_selector("#effect")
    assert "Mask" in flow.evaluate(STAGES)
    flow = open_equation(page, url, "&model=1&role=decoder-self&row=1&head=0")
    assert "Mask" in flow.evaluate(STAGES)
    last = page.locator("#query option").count() - 1
    page.locator("#query").select_option(str(last))
    wait_for_url(page, f"row={last}")
    assert "Mask" not in flow.evaluate(STAGES)


def test_the_toggles_of_the_equation_change_the_weights(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=equation&model=1")
    page.locator("#no-scaling").check()
    assert "of the attention" in page.locator("#effect").inner_text()
    page.get_by_role("button", name="Reset").click()
    assert page.locator("#effect").count() == 0


def sample_largest_weight(page: Any) -> list[float]:
    """Choose hard weights, and return the largest weight in each frame that is drawn, for 600 ms."""
    samples: list[float] = page.evaluate("""async () => {
        const view = document.querySelector('explorer-app').shadowRoot.querySelector('equation-view').shadowRoot;
        const largest = () => Math.max(...view.querySelector('canvas-figure').figure.options.lanes[0].row.weights);
        view.querySelector('#hard').click();
        const [samples, start] = [[], performance.now()];
        while (performance.now() - start < 600) {
            await new Promise(requestAnimationFrame);
            samples.push(largest());
        }
        return samples;
    }""")
    return samples


def test_hard_weights_move_to_their_values(page: Any, url: str) -> None:
    flow = open_equation(page, url)
    [before] = flow.evaluate(WEIGHTS)
    samples = sample_largest_weight(page)
    assert samples[-1] == 1
    assert any(max(before) < value < 1 for value in samples)
    assert samples == sorted(samples)


def test_weights_do_not_move_with_reduced_motion(page: Any, url: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    flow = open_equation(page, url)
    [before] = flow.evaluate(WEIGHTS)
    assert set(sample_largest_weight(page)) <= {max(before), 1}


def test_a_high_temperature_makes_the_weights_more_equal(page: Any, url: str) -> None:
    flow = open_equation(page, url)
    [before] = flow.evaluate(WEIGHTS)
    page.locator("#temperature").fill("2")
    page.wait_for_selector("#effect")
    page.wait_for_timeout(600)
    [after] = flow.evaluate(WEIGHTS)
    assert max(after) < max(before)
    assert sum(after) == pytest.approx(1)


def test_play_walks_through_the_stages_and_then_through_the_steps(page: Any, url: str) -> None:
    page.clock.install(time="2030-01-01")
    flow = open_equation(page, url, "&row=1")
    stages = flow.evaluate(STAGES)
    page.clock.pause_at("2030-01-02")
    page.locator("#play").click()
    names = [page.locator("#stage-note b").inner_text()]
    for _ in stages[1:]:
        page.clock.run_for(2_500)
        names.append(page.locator("#stage-note b").inner_text())
    assert names == stages
    assert page.locator("#query").input_value() == "1"
    page.clock.run_for(2_500)
    assert page.locator("#query").input_value() == "2"
    assert page.locator("#stage-note b").inner_text() == stages[0]
    page.locator("#play").click()
    page.clock.run_for(5_000)
    assert page.locator("#stage-note b").inner_text() == stages[0]


def test_heads_are_lanes_that_end_in_their_concatenation(page: Any, url: str) -> None:
    flow = open_equation(page, url, "&model=1")
    assert len(flow.evaluate(WEIGHTS)) == 2
    assert page.locator(".formulas math").last.text_content() == "c=[c1;…;c2]"
    lines = flow.evaluate("flow => flow.figure.lines.map(line => line.lane)")
    assert set(lines) == {0, 1}
    stages = flow.evaluate(STAGES)
    page.mouse.click(*flow.evaluate(PLACES)[lines.index(1)][0])
    wait_for_url(page, "head=1")
    assert len(flow.evaluate(WEIGHTS)) == 1
    assert len(flow.evaluate(STAGES)) > len(stages)
    page.locator("#head").select_option("mean")
    assert len(flow.evaluate(WEIGHTS)) == 2


def list_configurations() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every mechanism, except those that plugins of other tests register; every score with two heads; every scope and
    selection; a Transformer.
    """
    for mechanism in regard.mechanisms():
        if not mechanism.citation.startswith("registered by"):
            yield mechanism.name, RECURRENT, {"attention": mechanism.name}
    for score in ("dot", "general", "additive", "concat", "cosine", "location", "projected", "location_aware"):
        yield f"{score} with heads", RECURRENT, {"attention": {"score": score, "heads": 2}}
    for select in ("hard", "hard_exact", "hard_monotonic", "straight_through", "sparsemax", "entmax15"):
        yield select, RECURRENT, {"attention": {"score": "general", "select": select}}
    windows = ({"kind": "local_m", "window": 4}, {"kind": "local_p", "window": 4})
    scope = {"kind": "all_of", "scopes": list(windows)}
    yield "all_of", RECURRENT, {"attention": {"score": "general", "scope": scope}, "decoder.order": "luong"}
    normalized = {"kind": "local_p", "window": 4, "normalize": True, "scaled": False}
    yield "normalized local_p", RECURRENT, {"attention": {"score": "general", "scope": normalized}}
    yield "transformer", TRANSFORMER, {"positions": "rotary"}


CONFIGURATIONS = {name: (base, changes) for name, base, changes in list_configurations()}


def test_the_page_recomputes_the_weights_of_every_mechanism_and_explains_its_symbols(page: Any, tmp_path: Path) -> None:
    documents = [trace_untrained(base, changes) for base, changes in CONFIGURATIONS.values()]
    address = write_page(tmp_path / "mechanisms.html", *documents)
    for index, name in enumerate(CONFIGURATIONS):
        page.goto("about:blank")  # another fragment alone does not load the page again
        page.goto(f"{address}#text={LETTERS}&tab=equation&model={index}")
        assert float(page.locator("#error").get_attribute("data-value")) < 1e-5, name
        stages = page.locator("canvas-figure").evaluate(STAGES)
        assert len(stages) >= 4, name
        assert stages[-1] == "Weighted", name
        letters, explained = (set(page.locator(part).evaluate(LETTERS_OF)) for part in (".formulas", "#symbols"))
        assert {"a", "e", "q"} <= letters, name
        assert letters <= explained, name


def test_the_arrow_keys_reach_every_row_of_every_head(page: Any, url: str) -> None:
    flow = open_equation(page, url, "&model=1")
    flow.locator("[role=application]").focus()
    rows = len(flow.evaluate(SLOTS))
    for _ in range(rows):
        page.keyboard.press("ArrowUp")  # from the largest weight
    for row in range(1, rows):
        page.keyboard.press("ArrowDown")
        page.wait_for_function("([flow, row]) => flow.focused.row === row", arg=[flow.element_handle(), row])
    page.keyboard.press("Enter")
    wait_for_url(page, "head=1")


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_diagram_is_accessible(page: Any, url: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    for fragment in ("&stage=3&column=1&order=weight", "&model=1&stage=1"):
        open_equation(page, url, fragment)
        page.locator("#hard").check()
        page.wait_for_selector("#effect")
        check_accessibility(page)


SCOPES = {
    "local_p": ({"score": "general", "scope": {"kind": "local_p", "window": 4}}, {"decoder.order": "luong"}),
    "normalized": (
        {"score": "general", "scope": {"kind": "local_p", "window": 4, "normalize": True}},
        {"decoder.order": "luong"},
    ),
}


@pytest.mark.parametrize("name", SCOPES)
def test_a_predicted_position_is_a_gaussian_over_the_keys(page: Any, tmp_path: Path, name: str) -> None:
    attention, options = SCOPES[name]
    document = trace_untrained(RECURRENT, {"attention": attention, **options})
    page.goto(f"{write_page(tmp_path / 'page.html', document)}#text={LETTERS}&tab=equation")
    flow = page.locator("canvas-figure")
    assert flow.evaluate(SLOTS) == sorted(flow.evaluate(SLOTS))
    values, curve, center = flow.evaluate("""flow => {
        const { values, curve, inputs } = flow.figure.stages.find(stage => stage.name === 'Gaussian');
        return [[...values.data], [...values.data.keys()].map(curve), inputs[0].values[0]];
    }""")
    assert values == pytest.approx(curve)
    assert values.index(max(values)) == min(range(len(values)), key=lambda slot: abs(slot - center))
    assert float(page.locator("#error").get_attribute("data-value")) < 1e-5


def test_every_stage_is_inside_a_narrow_page(page: Any, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    documents = [trace_untrained(RECURRENT, {}), trace_untrained(TRANSFORMER, {})]
    address = write_page(tmp_path / "page.html", *documents)
    for index in range(len(documents)):
        page.goto("about:blank")
        page.goto(f"{address}#text={LETTERS}&tab=equation&model={index}")
        flow = page.locator("canvas-figure")
        page.wait_for_function("flow => flow.clientWidth <= 390", arg=flow.element_handle())
        assert flow.evaluate("flow => flow.scrollWidth <= flow.clientWidth")
        assert all(0 < x < 390 for row in flow.evaluate(PLACES) for x, _ in row)
        page.wait_for_function(
            "flow => flow.getBoundingClientRect().right <= flow.closest('section').getBoundingClientRect().right",
            arg=flow.element_handle(),
        )
