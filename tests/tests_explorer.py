"""The explorer in tests: requests without a socket, and its page in a browser."""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from regard.explorer.security import Access
from tests_command import HANG

ACCESS = Access("127.0.0.1", 7866)
ORIGIN = "http://127.0.0.1:7866"

SOURCE = "3 mai 2009"
"""The source that the tests of the page use."""

LOSE_SERVER = (
    "() => { window.connected = fetch; window.fetch = () => Promise.reject(new TypeError('Failed to fetch')); }"
)
FIND_SERVER = "() => { window.fetch = window.connected; }"
LOST = "The server does not respond."


def send(app: FastAPI, method: str, path: str, **options: Any) -> httpx.Response:
    """Send one request through httpx, as a browser on the page would."""

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
            return await client.request(method, path, **options)

    return asyncio.run(run())


def post(app: FastAPI, path: str, body: Any, **headers: str) -> httpx.Response:
    return send(app, "POST", path, json=body, headers={"Origin": ORIGIN, **headers})


def open_page(page: Any, url: str, fragment: str = f"text={SOURCE}") -> None:
    page.goto(f"{url}#{fragment}")
    page.wait_for_selector("main[aria-busy=false] > *", timeout=1_000 * HANG)  # the first result of a server


def wait_for_url(page: Any, part: str) -> None:
    """Wait until the URL contains a text. The page changes the fragment after it has rendered."""
    page.wait_for_url(re.compile(re.escape(part)))


def read_output(page: Any) -> str:
    """Return the tokens of the output."""
    return "".join(page.locator('[aria-label="Output tokens"] button').all_inner_texts())


def has_several_colors(page: Any, selector: str) -> bool:
    """Whether a canvas is painted."""
    return bool(
        page.locator(selector).first.evaluate(
            "canvas => new Set(new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)"
            ".data.buffer)).size > 2"
        )
    )


def save_download(page: Any, path: Path, file_format: str) -> Path:
    page.locator("#export").click()
    with page.expect_download() as download:
        page.locator(f"[data-format={file_format}]").click()
    target = path / f"export.{file_format}"
    download.value.save_as(target)
    return target
