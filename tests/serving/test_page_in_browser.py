"""The page in a browser: what readers see and do, with the keyboard, on a phone, without JavaScript, and on failure."""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests_browser import check_accessibility, needs_axe, tab_to
from tests_documents import pack, unpack

pytestmark = pytest.mark.slow

SOURCE = "the house is very old."
RESULT = "das Haus ist sehr alt."


def open_page(page: Any, url: str, text: str = SOURCE, source: str = "en", target: str = "de") -> None:
    page.goto(f"{url}#source={source}&target={target}&text={quote(text)}")
    page.wait_for_selector("translator-app")
    if text:
        page.wait_for_selector(".result:not(.outdated)[aria-busy=false] .word")


def read_result(page: Any) -> str:
    text: str = page.locator(".result .text").inner_text()
    return text


def wait_for_result(page: Any, text: str) -> None:
    page.locator(".result .text", has_text=re.compile(f"^{re.escape(text)}$")).wait_for()


def read_highlighted(page: Any, selector: str) -> list[str]:
    found: list[str] = page.locator(f"{selector} .lit").all_inner_texts()
    return found


def show_weights(page: Any, word: str) -> dict[str, int]:
    """Select a word of the result, and return the weights of the words of the source, in percent."""
    page.locator(".word", has_text=word).click()
    page.wait_for_selector("#weights .bars")
    names = page.locator("#weights li > :first-child").all_inner_texts()
    values = page.locator("#weights li .number").all_inner_texts()
    return {name: int(value.rstrip("%")) for name, value in zip(names, values, strict=True)}


def test_a_text_is_translated_while_it_is_typed_and_a_link_reproduces_it(page: Any, url: str) -> None:
    open_page(page, url, "")
    page.locator("#text").press_sequentially(SOURCE, delay=20)
    wait_for_result(page, RESULT)
    assert page.locator("#announcement").inner_text() == RESULT
    assert page.locator("#count").inner_text().startswith(f"{len(SOURCE)} / ")
    page.wait_for_url(re.compile("text=the"))
    page.reload()
    wait_for_result(page, RESULT)
    assert page.locator("#text").input_value() == SOURCE


def test_a_translation_is_swapped_and_translated_back(page: Any, url: str) -> None:
    open_page(page, url, "the car is new.\n\nthe book is old.")
    assert read_result(page) == "das Auto ist neu.\n\ndas Buch ist alt."
    page.locator("#swap").click()
    wait_for_result(page, "the car is new.\n\nthe book is old.")
    assert page.locator("#source").input_value() == "de"
    assert page.locator("#text").input_value() == "das Auto ist neu.\n\ndas Buch ist alt."


def test_a_language_is_detected(page: Any, url: str) -> None:
    open_page(page, url, RESULT, source="auto", target="en")
    assert read_result(page) == SOURCE
    assert "Detected: German" in page.locator(".result .bar").inner_text()
    page.locator("#swap").click()
    wait_for_result(page, RESULT)


def test_an_alternative_replaces_the_translation(page: Any, url: str) -> None:
    open_page(page, url)
    alternative = page.locator(".alternatives button").first
    text = alternative.inner_text()
    assert text != RESULT
    alternative.click()
    wait_for_result(page, text)
    page.locator(".alternatives button", has_text=RESULT).first.click()
    wait_for_result(page, RESULT)


def test_aligned_words_are_highlighted_in_both_directions(page: Any, url: str) -> None:
    # Only some links of a model this small are right.
    open_page(page, url)
    links = set()
    for index in range(page.locator(".word").count()):
        page.locator(".word").nth(index).hover()
        page.wait_for_selector(f".word.lit[data-word='{index}']")
        links |= {(index, number) for number in read_numbers(page, ".layer .lit")}
    assert links
    page.mouse.move(0, 0)
    assert read_highlighted(page, ".layer") == read_highlighted(page, ".result") == []
    target, source = min(links)
    box = page.locator(f".layer [data-word='{source}']").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(f".word.lit[data-word='{target}']")
    assert set(read_numbers(page, ".word.lit")) == {each for each, other in links if other == source}


def read_numbers(page: Any, selector: str) -> list[int]:
    return [int(each.get_attribute("data-word")) for each in page.locator(selector).all()]


def test_the_highlighted_words_are_behind_those_of_the_text_field(page: Any, url: str) -> None:
    open_page(page, url, " ".join([SOURCE] * 12) + "\n\n" + SOURCE)
    field, layer = (page.locator(selector).bounding_box() for selector in ("#text", ".layer"))
    assert field == layer
    styles = "each => ['font', 'lineHeight', 'padding', 'whiteSpace', 'overflowWrap', 'letterSpacing', 'direction']"
    styles += ".map(name => getComputedStyle(each)[name])"
    assert page.locator("#text").evaluate(styles) == page.locator(".layer").evaluate(styles)
    assert page.locator("#text").evaluate("each => each.scrollHeight <= each.clientHeight")


def test_the_weights_of_a_selected_word_are_shown(page: Any, url: str) -> None:
    open_page(page, url, f"the car is new. {SOURCE}")
    weights = show_weights(page, "Haus")
    assert list(weights)[:5] == SOURCE.split()
    assert 96 <= sum(weights.values()) <= 104
    shares = page.locator(".layer span").evaluate_all("all => all.map(each => each.style.getPropertyValue('--share'))")
    assert shares == ["0%"] * 4 + [f"{weights[word]}%" for word in SOURCE.split()]
    page.locator("#close").click()
    page.wait_for_selector("#weights", state="detached")
    focused = page.evaluate("document.activeElement.textContent")
    assert focused == "Haus"


def test_the_explorer_opens_with_the_sentence_of_the_selected_word(page: Any, url: str) -> None:
    open_page(page, url, f"the car is new. {SOURCE}")
    show_weights(page, "Haus")
    with page.context.expect_page() as opened:
        page.locator("#explore").click()
    explorer = opened.value
    explorer.wait_for_selector('[aria-label="Output tokens"]')
    assert explorer.locator("textarea").input_value() == SOURCE
    explorer.close()


def test_everything_is_done_with_the_keyboard(page: Any, url: str) -> None:
    open_page(page, url, "")
    page.keyboard.press("/")
    page.keyboard.type(SOURCE)
    page.keyboard.press("Control+Enter")
    wait_for_result(page, RESULT)
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".layer .lit:has-text('old.')")
    tab_to(page, ".word")
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.textContent") == "alt."
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.wait_for_selector("#weights h2:has-text('sehr')")
    page.keyboard.press("Escape")
    page.wait_for_selector("#weights", state="detached")
    assert page.evaluate("document.activeElement.textContent") == "sehr"
    for selector in ("#copy", "#explore", ".alternatives button", "#theme", "#help", "#source", "#swap", "#target"):
        tab_to(page, selector)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    tab_to(page, "#swap")
    page.keyboard.press("s")
    wait_for_result(page, SOURCE)
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    before = page.locator("html").get_attribute("data-theme")
    page.keyboard.press("t")
    assert page.locator("html").get_attribute("data-theme") != before


def test_the_result_is_copied(page: Any, url: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_page(page, url)
    page.locator("#copy").click()
    page.locator("#copy", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == RESULT


def drop_file(page: Any, name: str, content: str | bytes) -> None:
    data = page.evaluate_handle(
        """([name, content]) => {
            const data = new DataTransfer();
            const bytes = Uint8Array.from(atob(content), (each) => each.charCodeAt(0));
            data.items.add(new File([bytes], name));
            return data;
        }""",
        [name, b64encode(content.encode() if isinstance(content, str) else content).decode()],
    )
    page.dispatch_event("main", "dragover", {"dataTransfer": data})
    page.wait_for_selector(".drop")
    page.dispatch_event("main", "drop", {"dataTransfer": data})


def test_a_dropped_document_is_translated_and_downloaded(page: Any, url: str, tmp_path: Path) -> None:
    open_page(page, url)
    drop_file(page, "letter.txt", f"the car is new.\n\n{SOURCE}\n")
    with page.expect_download() as download:
        page.locator(".files a").click()
    assert download.value.suggested_filename == "letter.de.txt"
    download.value.save_as(tmp_path / "letter")
    assert (tmp_path / "letter").read_text("utf-8") == f"das Auto ist neu.\n\n{RESULT}\n"
    drop_file(page, "picture.xyz", "x")
    page.wait_for_selector(".files .bad:has-text('not supported')")


def test_a_dropped_office_document_keeps_its_formats(page: Any, url: str, tmp_path: Path) -> None:
    open_page(page, url)
    drop_file(page, "letter.odt", pack({"content.xml": "<x><p><span>the car is new.</span></p></x>"}))
    with page.expect_download() as download:
        page.locator(".files a").click()
    assert download.value.suggested_filename == "letter.de.odt"
    download.value.save_as(tmp_path / "letter")
    assert unpack((tmp_path / "letter").read_bytes()) == {
        "content.xml": b"<x><p><span>das Auto ist neu.</span></p></x>"
    }


def test_models_that_do_not_translate_can_be_selected(page: Any, url: str) -> None:
    open_page(page, url)
    page.locator("#model").select_option(label=page.locator("#model option").nth(1).inner_text())
    page.locator("#text").fill("3 mai 2009")
    page.wait_for_selector(".result:not(.outdated)[aria-busy=false] .word")
    assert read_result(page) not in ("", RESULT)
    assert page.locator("#source").count() == 0
    page.wait_for_url(re.compile("model="))


def test_a_failure_keeps_the_last_result_and_can_be_repeated(page: Any, url: str) -> None:
    open_page(page, url)
    answer = {"status": 200, "content_type": "text/html", "body": "<html>"}  # 200, because the console reports others
    page.route("**/translate", lambda route: route.fulfill(**answer))
    page.locator("#text").fill("the car is new.")
    page.wait_for_selector("[role=alert] #retry")
    assert read_result(page) == RESULT
    assert page.locator(".result.outdated").count() == 1
    page.unroute("**/translate")
    page.locator("#retry").click()
    wait_for_result(page, "das Auto ist neu.")
    assert page.locator("[role=alert]").count() == 0


def test_a_text_above_the_limit_is_not_sent(page: Any, url: str) -> None:
    open_page(page, url)
    limit = json.loads(page.evaluate("fetch('frontend/settings').then(each => each.text())"))["charLimit"]
    page.locator("#text").fill("a" * (limit + 1))
    page.wait_for_selector(f"[role=alert]:has-text('The limit is {limit}')")
    assert read_result(page) == RESULT


def test_a_newer_request_aborts_the_one_before(page: Any, url: str) -> None:
    open_page(page, url)
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.failure))
    page.route("**/translate", lambda _: None)  # the server does not answer
    page.locator("#text").fill("the book is new.")
    page.wait_for_selector(".result[aria-busy=true]")
    page.unroute("**/translate")
    page.locator("#text").fill("the car is new.")
    wait_for_result(page, "das Auto ist neu.")
    assert failed == ["net::ERR_ABORTED"]


def test_the_page_fits_a_phone(page: Any, url: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_page(page, url, SOURCE + " " + "a" * 200)
    show_weights(page, "Haus")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    source, result = (page.locator(each).bounding_box() for each in ("#text", ".result"))
    assert result["y"] > source["y"] + source["height"]


def test_texts_from_right_to_left_start_at_the_right(page: Any, url: str) -> None:
    open_page(page, url, "")
    page.locator("#text").fill("بيت")
    page.wait_for_selector(".result[aria-busy=false]:not(.outdated)")
    for selector in ("#text", ".layer"):
        assert page.locator(selector).evaluate("each => getComputedStyle(each).direction") == "rtl"


def test_the_colors_of_the_system_are_used_until_others_are_chosen(page: Any, url: str) -> None:
    page.emulate_media(color_scheme="dark")
    open_page(page, url)
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.emulate_media(color_scheme="light")
    page.wait_for_selector("html[data-theme=light]")
    assert page.evaluate(background) != dark
    page.locator("#theme").click()
    assert page.evaluate(background) == dark
    page.reload()
    page.wait_for_selector("html[data-theme=dark]")


@pytest.fixture
def plain_page(browser: Any) -> Iterator[Any]:
    """A page of a browser without JavaScript."""
    context = browser.new_context(java_script_enabled=False, color_scheme="dark")
    yield context.new_page()
    context.close()


def test_the_page_translates_without_javascript(plain_page: Any, url: str) -> None:
    page = plain_page
    page.goto(url)
    page.locator("[name=q]").fill(f"{SOURCE} <b>")
    page.locator("[name=source]").select_option("en")
    page.locator("[name=target]").select_option("de")
    page.locator("button").click()
    page.locator(".result .text", has_text=RESULT.split(".", maxsplit=1)[0]).wait_for()
    assert page.locator("[name=q]").input_value() == f"{SOURCE} <b>"
    assert page.locator("[name=source]").input_value() == "en"
    assert page.locator("[name=target]").input_value() == "de"


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_no_serious_accessibility_problem(page: Any, url: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    open_page(page, url)
    check_accessibility(page)
    show_weights(page, "Haus")
    drop_file(page, "picture.xyz", "x")
    page.route("**/translate", lambda route: route.fulfill(status=200, body="<html>"))
    page.locator("#text").fill("the car is new.")
    page.wait_for_selector("#retry")
    page.wait_for_timeout(300)  # transitions
    check_accessibility(page)
    page.locator("#help").click()
    check_accessibility(page)
