"""A headless Chromium for the tests of the pages, and checks of what it shows."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

ACTION = 60
"""The seconds after which a missing element fails a test. A loaded machine needs a part of them."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
AXE = Path(__file__).parents[1] / "web/node_modules/axe-core/axe.min.js"

needs_axe = pytest.mark.skipif(not AXE.is_file(), reason="axe-core is missing; install Node 20 and run: make web")


# Not longer than a module: while a browser is open, its thread has a running event loop, and `asyncio.run` fails.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium: an installed one, or the one that Playwright has downloaded."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is missing; install it with: pip install -e '.[test]'"
    )
    with ExitStack() as stack:
        try:
            driver = stack.enter_context(playwright.sync_playwright())
        except Exception as error:  # Playwright raises no class of its own if a library of its Node.js is missing
            pytest.skip(f"Playwright does not start ({error}); on Debian, install its library: apt install libatomic1")
        path = next(filter(None, map(shutil.which, BROWSERS)), driver.chromium.executable_path)
        if not Path(path).is_file():
            pytest.skip("Chromium is missing; install it with: apt install chromium, or: playwright install chromium")
        opened = driver.chromium.launch(executable_path=path, args=["--headless", "--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of the browser. An error in the console, such as a violated Content-Security-Policy, fails the test."""
    with new_page(browser, accept_downloads=True) as (opened, _):
        yield opened


@contextmanager
def new_page(browser: Any, **options: Any) -> Iterator[tuple[Any, list[str]]]:
    """Open a page in a context of its own. At the end, its problems must be none: errors, and what the caller adds."""
    context = browser.new_context(viewport={"width": 1280, "height": 720}, **options)
    opened = context.new_page()
    problems: list[str] = []
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.set_default_timeout(1_000 * ACTION)
    yield opened, problems
    context.close()
    assert problems == []


def check_accessibility(page: Any) -> None:
    """Fail if axe-core reports a serious problem of the page."""
    # Evaluated by the browser's debugger: the Content-Security-Policy of the page does not apply.
    page.evaluate(AXE.read_text("utf-8"))
    result = page.evaluate("axe.run(document, {resultTypes: ['violations'], preload: false})")
    serious = [each for each in result["violations"] if each["impact"] in ("serious", "critical")]
    problems = [(each["id"], [node["target"] for node in each["nodes"]][:5]) for each in serious]
    assert problems == [], problems


def tab_to(page: Any, selector: str) -> None:
    """Move the focus with the tabulator key until it is on an element."""
    move_to(page, selector, "Tab")


def move_to(page: Any, selector: str, key: str) -> None:
    """Press a key until the focus is on an element."""
    focused = """selector => {
        let active = document.activeElement;
        while (active?.shadowRoot?.activeElement) active = active.shadowRoot.activeElement;
        return active?.matches(selector) ?? false;
    }"""
    for _ in range(80):
        if page.evaluate(focused, selector):
            return
        page.keyboard.press(key)
    raise AssertionError(f"The keyboard does not reach {selector}")
