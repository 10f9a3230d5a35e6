"""Take the screenshots of docs/explorer/: `python benchmarks/screenshots.py RUN RUN`; the second is a Transformer.

Needs the extras `explorer` and `test`, and Chromium. The pictures have a palette of 256 colors, so they are small.
"""

import argparse
import io
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import PIL.Image
import uvicorn
from starlette.types import ASGIApp

from regard.explorer.app import create_app
from regard.explorer.gallery import create_gallery
from regard.explorer.security import Access
from regard.explorer.served_model import load_models
from regard.explorer.server import listen

OUTPUT: Final = Path(__file__).parents[1] / "docs" / "explorer"

MASKED: Final = json.dumps([{"kind": "mask_source", "position": 1, "unit": "word"}])

SHOTS: Final = {
    "translate": ("light", f"edits={MASKED}", "#changes"),
    "attention": ("light", "tab=attention&method=occlusion&row=6&column=3", "#agreement"),
    "heads": ("light", "model=1&tab=attention&view=grid&layer=0&head=2&role=decoder-self&ablations=1", "tbody"),
    "equation": ("dark", "tab=equation&row=6&stage=6&column=2", "#check"),
    "steps": ("light", "tab=steps&row=6", "#beam"),
    "corpus": ("light", "tab=corpus", "corpus-metrics table"),
}
"""For each file: the colors, the fragment of the URL, and the element that shows that the page is complete."""


def serve(runs: Sequence[str]) -> AbstractContextManager[str]:
    """Serve the page of some runs, and yield its URL."""
    return serve_app(partial(create_app, load_models(runs)))


@contextmanager
def serve_app(create: Callable[[Access], ASGIApp]) -> Iterator[str]:
    """Serve an application, and yield its URL."""
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(create(Access("127.0.0.1", port)), log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(10)
    listener.close()


def take(browser: Any, url: str, scheme: str, complete: str) -> PIL.Image.Image:
    """Open a page, wait until it is complete, and return what a laptop shows."""
    context = browser.new_context(viewport={"width": 1366, "height": 768}, color_scheme=scheme)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("main[aria-busy=false] > *")
    page.wait_for_selector(complete)
    page.wait_for_timeout(500)  # transitions
    image = PIL.Image.open(io.BytesIO(page.screenshot()))
    context.close()
    return image.convert("RGB").quantize(256, dither=PIL.Image.Dither.NONE)


def save(image: PIL.Image.Image, name: str, folder: Path) -> None:
    file = folder / f"{name}.png"
    image.save(file, optimize=True)
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--text", default="3 mai 2009", help="the source")
    parser.add_argument("--out", type=Path, default=OUTPUT, help="the folder of the pictures")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    from playwright.sync_api import sync_playwright  # the tests use `serve` without it

    with serve(arguments.runs) as url, serve_app(create_gallery) as gallery, sync_playwright() as driver:
        path = shutil.which("chromium") or driver.chromium.executable_path
        browser = driver.chromium.launch(executable_path=path, args=["--headless", "--no-sandbox", "--disable-gpu"])
        for name, (scheme, fragment, complete) in SHOTS.items():
            save(take(browser, f"{url}#text={arguments.text}&{fragment}", scheme, complete), name, arguments.out)
        save(take(browser, gallery, "light", "gallery-view canvas"), "gallery", arguments.out)
        browser.close()


if __name__ == "__main__":
    main()
