"""Limits of requests, without a socket: every rejection is JSON with the key `error`, and the work is cancelled."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serving.limits import MAX_URL, LimitsMiddleware
from regard.serving.settings import RequestLimits
from tests_serving import create_app


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").write_text("first")
    return tmp_path


def send(folder: Path, method: str, path: str, limits: RequestLimits | None = None, **options: Any) -> httpx.Response:
    """Send a request to the application."""

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(str(folder), limits or RequestLimits()), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.request(method, path, **options)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        (f"/describe?q={'a' * MAX_URL}", 414, "The URL has more than 32,768 characters. Send the text in a POST"),
        (f"/describe?{'a=b&' * 100}", 400, "Invalid request: the URL has more than 100 fields."),
        ("/wait", 504, "No result within 0.05 s. Send a shorter text, or try again later."),
        ("/stream?first=60", 504, "No result within 0.05 s."),
    ],
)
def test_a_request_that_exceeds_a_limit_is_rejected(folder: Path, path: str, status: int, message: str) -> None:
    response = send(folder, "GET", path, RequestLimits(timeout=0.05))
    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert message in response.json()["error"]


def test_the_work_of_a_request_is_cancelled_at_the_deadline(folder: Path) -> None:
    assert send(folder, "GET", "/wait", RequestLimits(timeout=0.05)).status_code == 504
    assert (folder / "cancelled").exists()


def run(app: ASGIApp, timeout: float, receive: Receive) -> list[Message]:
    """Run an application behind the middleware, and return what it sends."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "raw_path": b"/", "query_string": b"", "headers": []}
    asyncio.run(LimitsMiddleware(app, RequestLimits(timeout=timeout))(scope, receive, send))
    return sent


def test_a_stream_may_take_longer_than_the_deadline_after_its_first_byte() -> None:
    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(3):
            await send({"type": "http.response.body", "body": b"%d" % number, "more_body": number < 2})
            await asyncio.sleep(0.1)

    async def receive() -> Message:
        return {"type": "http.request"}

    assert [message.get("body") for message in run(stream, 0.05, receive)] == [None, b"0", b"1", b"2"]


def test_the_time_in_which_the_body_arrives_does_not_count() -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        bodies = [(await receive())["body"] for _ in range(2)]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"".join(bodies)})

    parts = iter((b"a", b"b"))

    async def receive() -> Message:
        await asyncio.sleep(0.1)
        return {"type": "http.request", "body": (part := next(parts)), "more_body": part == b"a"}

    assert run(echo, 0.05, receive)[1]["body"] == b"ab"


def test_a_body_that_is_too_large_is_rejected_whether_it_declares_its_length_or_not(folder: Path) -> None:
    limits = RequestLimits(max_body=20)

    async def chunks() -> Any:
        for _ in range(3):
            yield b'{"q": "a"}'

    for body in (b'{"q": "aaaaaaaaaaaaaa"}', chunks()):
        response = send(folder, "POST", "/translate", limits, content=body)
        assert response.status_code == 413
        assert "Send a shorter text or file." in response.json()["error"]
    assert send(folder, "POST", "/translate", limits, content=b'{"q": "aaaaaaaaaa"}').status_code == 200
