"""The keyboard, the focus, small screens, and the tour."""

from typing import Any

import pytest

from tests_explorer import SOURCE, open_page, wait_for_url

pytestmark = pytest.mark.slow

TABS = {0: ("translate", "attention", "steps", "equation", "compare", "corpus", "model"), 2: ("image",)}
"""By model: the tabs that are tested with it."""

FOCUSED = """() => {
    let active = document.activeElement;
    while (active?.shadowRoot?.activeElement) active = active.shadowRoot.activeElement;
    return active?.id || active?.getAttribute('role') || active?.tagName.toLowerCase();
}"""


def enter(page: Any, text: str) -> None:
    page.get_by_label("Source", exact=True).first.fill(text)
    page.keyboard.press("Enter")


def wait_for_focus(page: Any, name: str) -> None:
    """Wait until the element with this id, role or tag has the focus."""
    page.wait_for_function(f"name => ({FOCUSED})() === name", arg=name)


def test_digits_open_tabs_after_a_text_was_entered(page: Any, url: str) -> None:
    open_page(page, url)
    enter(page, "4 juin 2011")
    wait_for_focus(page, "view")
    page.keyboard.press("3")
    page.wait_for_selector("steps-view")
    page.keyboard.press("/")
    wait_for_focus(page, "textarea")
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    page.wait_for_selector("attention-view")
    assert page.get_by_label("Source", exact=True).first.input_value() == "4 juin 2011"


@pytest.mark.parametrize("model", [0, 2])
def test_the_number_of_a_key_is_the_position_of_a_tab(page: Any, url: str, model: int) -> None:
    open_page(page, url, f"model={model}")
    tabs = page.locator("[role=tab]")
    assert tabs.count() == (8 if model == 2 else 7)
    for index in range(tabs.count()):
        page.keyboard.press(str(index + 1))
        page.wait_for_selector(f"[role=tab][aria-keyshortcuts='{index + 1}'][aria-selected=true]")


@pytest.mark.parametrize("tab", ["attention", "compare"])
def test_the_matrix_is_at_most_five_stops_from_the_start_of_the_page(page: Any, url: str, tab: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab={tab}&model=1")
    page.wait_for_selector("canvas-figure")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    wait_for_focus(page, "view")
    stops = 1
    while page.evaluate(FOCUSED) != "application":
        page.keyboard.press("Tab")
        stops += 1
        assert stops <= 5


def test_arrow_keys_reach_every_control_of_a_toolbar(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=attention&model=1")
    page.locator("#tab-attention").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")  # the view is focusable by scripts only
    assert page.evaluate(FOCUSED) == "application"
    page.keyboard.press("Shift+Tab")
    count = page.locator("attention-view tool-bar :is(button, select)").count()
    reached = set()
    for _ in range(count):
        page.keyboard.press("ArrowRight")
        reached.add(
            page.evaluate(
                f"() => ({FOCUSED})() + document.querySelector('explorer-app').shadowRoot"
                ".querySelector('attention-view').shadowRoot.activeElement?.textContent"
            )
        )
    assert len(reached) == count
    assert page.locator("attention-view tool-bar [tabindex='0']").count() == 1
    assert page.locator("[role=tab][aria-selected=true]").inner_text() == "Attention"


def test_the_focus_is_kept_after_an_edit(page: Any, url: str) -> None:
    open_page(page, url)
    page.locator("#mask-source").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#changes")
    assert page.evaluate(FOCUSED) == "mask-source"
    page.keyboard.press("2")
    page.locator("#uniform-row").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".edit >> nth=1")
    assert page.evaluate(FOCUSED) == "uniform-row"


def test_the_focus_moves_to_what_is_near_a_control_that_disappears(page: Any, url: str) -> None:
    open_page(page, url)
    page.locator("#mask-source").click()
    page.wait_for_selector("#changes")
    page.locator(".edit").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".edit", state="detached")
    wait_for_focus(page, "view")
    page.locator("#undo").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    page.wait_for_selector("#undo[disabled]")
    wait_for_focus(page, "redo")


def test_the_url_is_written_once_after_the_pointer_has_crossed_the_matrix(page: Any, url: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab=attention")
    page.evaluate("""() => {
        window.writes = 0;
        const write = history.replaceState.bind(history);
        history.replaceState = (...parameters) => { window.writes++; write(...parameters); };
    }""")
    box = page.locator("canvas-figure").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 30, box["y"] + box["height"] - 30)
    page.mouse.move(box["x"] + 80, box["y"] + 120, steps=60)
    page.mouse.move(box["x"] + box["width"] - 30, box["y"] + box["height"] - 30, steps=60)
    wait_for_url(page, "column=")
    page.wait_for_timeout(500)
    assert page.evaluate("window.writes") == 1


@pytest.mark.parametrize(("model", "tab"), [(model, tab) for model, tabs in TABS.items() for tab in tabs])
def test_every_tab_fits_on_a_small_screen(page: Any, url: str, model: int, tab: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    source = "" if model == 2 else f"text={SOURCE}&"
    open_page(page, url, f"{source}model={model}&tab={tab}{'&sort=score' if tab == 'corpus' else ''}")
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    outside = page.evaluate("""() => {
        const controls = [], collect = root => {
            controls.push(...root.querySelectorAll('button, select, input, textarea'));
            root.querySelectorAll('*').forEach(each => each.shadowRoot && collect(each.shadowRoot));
        };
        collect(document);
        const isScrolled = each => each && (/auto|scroll/.test(getComputedStyle(each).overflowX)
            || isScrolled(each.parentElement));
        return controls.filter(each => each.getBoundingClientRect().right > 390 && !isScrolled(each))
            .map(each => each.outerHTML);
    }""")
    assert outside == []


@pytest.mark.parametrize("model", [0, 1, 2])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_tour_highlights_what_it_speaks_of(page: Any, url: str, model: int, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    open_page(page, url, f"text={SOURCE}&model={model}" if model < 2 else "model=2")
    page.locator("#tour").click()
    for number in range(1, 7):
        page.wait_for_selector(f"guided-tour h2:has-text('{number}. ')")
        page.wait_for_timeout(400)
        light = page.locator("guided-tour .spotlight").bounding_box()
        view = page.locator("main").bounding_box()
        if model < 2:  # the output of the captioner is empty
            assert light["width"] * light["height"] < 0.8 * view["width"] * view["height"]
        assert light["width"] > 20
        assert light["height"] > 20
        assert light["y"] < 800
        assert light["y"] + light["height"] > 0
        text = page.locator("guided-tour p").inner_text()
        assert "undefined" not in text
        assert "“”" not in text
        page.locator("guided-tour button.primary").click()
    page.wait_for_selector("guided-tour", state="detached")
