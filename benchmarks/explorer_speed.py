"""How fast the page of the explorer is: `python benchmarks/explorer_speed.py RUN`, for a model of dates.

Prints medians: until the page is painted first, from Enter until the new output is drawn, and from an edit (a hidden
word) until its output is drawn. Needs the extras `explorer` and `test`, and Chromium.
"""

import argparse
import gzip
import shutil
import statistics
from typing import Any, Final

from regard.inspection.trace.page import STATIC
from screenshots import serve

TEXTS: Final = tuple(f"{day} May {year}" for day, year in zip(range(10, 20), range(1990, 2000), strict=True))

FIND: Final = """const root = main.getRootNode();
    const isDrawn = () => main.getAttribute("aria-busy") === "false";
    const frame = () => new Promise(requestAnimationFrame);"""

RUN: Final = f"""async (main) => {{
    {FIND}
    const start = performance.now();
    root.querySelector("source-bar").shadowRoot.querySelector("form").requestSubmit();
    do await frame(); while (!isDrawn());
    return performance.now() - start;
}}"""

EDIT: Final = f"""async (main) => {{
    {FIND}
    const view = root.querySelector("translate-view").shadowRoot;
    const start = performance.now();
    [...view.querySelectorAll("button")].find((button) => button.textContent.trim() === "Hide").click();
    do await frame(); while (!isDrawn());
    return performance.now() - start;
}}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="run folder of a model of dates")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with serve([arguments.run]) as url, sync_playwright() as playwright:
        options = ["--headless", "--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        times = [measure(browser, f"{url}#text=3 mai 2009", text) for text in TEXTS]
        browser.close()
    for name, values in zip(
        ("first paint", "Enter until drawn", "edit until drawn"), zip(*times, strict=True), strict=True
    ):
        print(f"{name}: {statistics.median(values) / 1000:.3f} s (slowest {max(values) / 1000:.3f} s)")
    size = sum(len(gzip.compress((STATIC / name).read_bytes())) for name in ("index.html", "app.js", "app.css"))
    print(f"page, compressed: {size / 1000:.1f} kB")


def measure(browser: Any, url: str, text: str) -> tuple[float, float, float]:
    """Return the milliseconds until the first paint, until a text is predicted, and until an edit is."""
    context = browser.new_context(viewport={"width": 1366, "height": 768})
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("main[aria-busy=false] > *")
    first = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.locator("source-bar textarea").fill(text)
    predicted = page.locator("main").evaluate(RUN)
    edited = page.locator("main").evaluate(EDIT)
    context.close()
    return first, predicted, edited


if __name__ == "__main__":
    main()
