"""What is recorded of a request: one line of the log, and metrics; no keys, addresses or texts."""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from regard.serving.logs import RequestLog, configure_logging
from regard.serving.metrics import Metrics
from regard.serving.settings import RequestLimits
from tests_serving import create_app


@pytest.fixture(autouse=True)
def _restored_loggers() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("regard", "uvicorn")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate, logger.level = handlers, propagate, level


def send(app: ASGIApp, method: str, path: str, **options: Any) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.request(method, path, **options)

    return asyncio.run(run())


def build(folder: Path) -> ASGIApp:
    (folder / "model").write_text("first")
    return create_app(str(folder), RequestLimits())


def test_a_request_is_one_line_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = build(tmp_path)
    configure_logging("json")
    send(app, "POST", "/translate?api_key=secret", json={"q": "text"})
    send(app, "GET", "/a%0Ab")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first.pop("seconds") >= 0
    assert first.pop("time").endswith("+00:00")
    assert first == {"method": "POST", "path": "/translate", "status": 200, "characters": 4}
    assert (second["path"], second["status"]) == ("/a%0Ab", 404)


def test_texts_are_logged_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = RequestLog(build(tmp_path), Metrics(), texts=True)
    configure_logging("text")
    send(app, "POST", "/translate", json={"q": "a\nb"})
    inner, outer = capsys.readouterr().err.splitlines()
    assert "characters=3" in inner
    assert "texts" not in inner
    assert r"200 POST /translate" in outer
    assert outer.endswith(r"characters=3 texts=['a\nb']")


def test_messages_and_tracebacks_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("json")
    try:
        raise ValueError("a bug")
    except ValueError:
        logging.getLogger("regard.serving").exception("It failed.")
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["message"]) == ("error", "It failed.")
    assert line["traceback"].endswith("ValueError: a bug")


def test_requests_are_counted_by_route_method_and_status(tmp_path: Path) -> None:
    app = build(tmp_path)
    for method, path in (
        ("GET", "/stream"), ("GET", "/stream"), ("BREW", "/stream"), ("GET", "/secret-text"), ("GET", "/fail"),
    ):  # fmt: skip
        with suppress(ValueError):
            send(app, method, path)
    text = send(app, "GET", "/metrics").text
    for labels, count in (
        ('endpoint="/stream",method="GET",status="200"', 2),
        ('endpoint="/stream",method="other",status="405"', 1),
        ('endpoint="other",method="GET",status="404"', 1),
        ('endpoint="/fail",method="GET",status="500"', 1),
    ):
        assert f"regard_requests_total{{{labels}}} {count}.0" in text
    assert 'regard_request_seconds_count{endpoint="/stream"} 3.0' in text
    assert "secret" not in text


def test_batches_and_the_queue_are_measured() -> None:
    metrics = Metrics()
    metrics.count_batch(3)
    metrics.count_batch(5)
    metrics.set_queue_length(7)
    text = metrics.render().decode()
    for line in (
        'regard_batch_size_bucket{le="4.0"} 1.0', "regard_batch_size_sum 8.0", "regard_sentences_total 8.0",
        "regard_queue_length 7.0", "process_resident_memory_bytes",
    ):  # fmt: skip
        assert line in text


def test_a_client_that_does_not_wait_is_logged_as_499(capsys: pytest.CaptureFixture[str]) -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        return

    async def run() -> None:
        async def receive() -> Any:
            return {"type": "http.disconnect"}

        async def ignore(message: Any) -> None:
            return

        scope = {"type": "http", "method": "POST", "path": "/translate"}
        await RequestLog(silent, Metrics())(scope, receive, ignore)

    configure_logging("json")
    asyncio.run(run())
    assert json.loads(capsys.readouterr().err)["status"] == 499
