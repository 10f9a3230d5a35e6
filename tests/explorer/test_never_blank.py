"""What the page shows while something fails, and what it says about sources that the model does not read completely."""

from pathlib import Path
from typing import Any

import pytest

import regard
from screenshots import serve
from tests_explorer import FIND_SERVER, LOSE_SERVER, LOST, SOURCE, open_page, read_output
from tests_shared import SMALL

pytestmark = pytest.mark.slow

READY = {"equation": "#check", "compare": "#change", "model": "pre"}
"""For some tabs, the element that appears when the view is complete."""

TABS = ("translate", "attention", "steps", "equation", "compare", "model")


def enter(page: Any, text: str) -> None:
    page.get_by_label("Source", exact=True).first.fill(text)
    page.keyboard.press("Enter")


@pytest.mark.parametrize("tab", TABS)
def test_the_last_result_stays_while_the_server_is_lost(page: Any, url: str, tab: str) -> None:
    open_page(page, url, f"text={SOURCE}&tab={tab}")
    page.wait_for_selector(READY.get(tab, f"{tab}-view"))
    view = page.locator(f"{tab}-view")
    page.wait_for_timeout(300)  # the drawings are adapted to the size of the view
    before = view.inner_text()
    page.evaluate(LOSE_SERVER)
    enter(page, "4 juin 2011")
    page.wait_for_selector("[role=alert]")
    assert LOST in page.locator("[role=alert]").inner_text()
    assert view.inner_text() == before
    page.evaluate(FIND_SERVER)
    page.locator(".retry").click()
    page.wait_for_selector("[role=alert]", state="detached")
    page.wait_for_selector("main[aria-busy=false]")
    page.locator("#tab-translate").click()
    page.wait_for_selector("[aria-label=Source] >> text=/4.juin.2011/")


@pytest.mark.parametrize("tab", READY)
def test_what_a_tab_needs_is_requested_again_where_it_failed(page: Any, url: str, tab: str) -> None:
    open_page(page, url)
    page.evaluate(LOSE_SERVER)
    page.locator(f"#tab-{tab}").click()
    page.locator(f"{tab}-view .retry").wait_for()
    page.evaluate(FIND_SERVER)
    page.locator(f"{tab}-view .retry").click()
    page.wait_for_selector(READY[tab])
    assert page.locator(f"text={LOST}").count() == 0


def test_a_first_visit_without_a_server_can_be_retried(page: Any, url: str) -> None:
    page.add_init_script(f"({LOSE_SERVER})()")
    page.goto(url)
    page.locator(".retry").wait_for()
    page.evaluate(FIND_SERVER)
    page.locator(".retry").click()
    page.wait_for_selector("translate-view")


def test_a_text_that_is_too_long_is_kept_and_reported(page: Any, url: str) -> None:
    open_page(page, url)
    before = read_output(page)
    text = "3 mai 2009 " * 200
    enter(page, text)
    page.wait_for_selector("text=The source has 2,200 characters")
    assert page.get_by_label("Source", exact=True).first.input_value() == text
    assert read_output(page) == before


def test_characters_without_a_token_are_reported(page: Any, url: str) -> None:
    open_page(page, url)
    assert page.locator("#notes").count() == 0
    enter(page, "☃")
    page.wait_for_selector("#notes")
    assert "“☃” as the unknown token" in page.locator("source-bar #notes").inner_text()
    page.evaluate(LOSE_SERVER)
    enter(page, "4 juin 2011")
    page.wait_for_selector("[role=alert]")
    assert page.locator("#notes").count() == 0


def test_a_masked_word_is_not_reported_as_a_character_without_a_token(page: Any, url: str) -> None:
    open_page(page, url)
    page.locator("#mask-source").click()
    page.wait_for_selector("#changes")
    assert page.locator("#notes").count() == 0


def test_a_source_that_is_cut_is_reported(page: Any, tmp_path: Path) -> None:
    regard.train("dates", {**SMALL, "tokenizer.max_length": 16}, out=tmp_path / "run", quiet=True)
    with serve([str(tmp_path / "run")]) as address:
        open_page(page, address, "text=3 mai 2009, 4 juin 2011")
        assert "the first 16 of 23 characters" in page.locator("#notes").inner_text()
