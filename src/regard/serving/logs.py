"""Logs on stderr, and what is recorded of each request: one line, and metrics.

Texts are logged only with `--log-texts`. Addresses, keys and the query of a URL, which may contain texts and keys, are
never logged.
"""

import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any, Final, final
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.formatting import to_json
from regard.serving.metrics import Metrics
from regard.serving.settings import LogFormat

CLIENT_GONE: Final = 499
"""The status of a request whose client did not wait for the response."""

_requests = logging.getLogger("regard.serving.requests")


def configure_logging(log_format: LogFormat) -> None:
    """Write messages of regard and uvicorn to stderr: as JSON, or on a terminal as text."""
    plain = sys.stderr.isatty() if log_format == "auto" else log_format == "text"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_TextFormatter() if plain else _JsonFormatter())
    for name, level in (("regard", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


@final
class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        content = {"time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")}
        request = getattr(record, "request", None)
        content |= {"level": record.levelname.lower(), "message": record.getMessage()} if request is None else request
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return to_json(content)


@final
class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        start = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        request = getattr(record, "request", None)
        if request is None:
            trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
            return f"{start} {record.levelname.lower()}: {record.getMessage()}{trace}"
        details = "".join(f" {name}={request[name]!r}" for name in ("characters", "texts") if name in request)
        return f"{start} {request['status']} {request['method']} {request['path']} {request['seconds']:.3f} s{details}"


@final
class RequestLog:
    """Middleware that records each request in the log and in the metrics. It is the outermost one.

    The application stores the number of characters of a request in `request.state.characters`, and its texts in
    `request.state.texts`.

    Args:
        app: The application.
        metrics: The metrics.
        texts: Whether texts are logged.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, *, texts: bool = False) -> None:
        self._app, self._metrics, self._texts = app, metrics, texts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        start, status, completed = time.perf_counter(), 0, False

        async def send_and_note(message: Message) -> None:
            nonlocal status, completed
            if message["type"] == "http.response.start":
                status = message["status"]
            completed = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception:
            status = status or 500
            raise
        finally:
            if not completed and status != 500:
                status = 408 if state.get("timed_out") else CLIENT_GONE
            self._record(scope, state, status, time.perf_counter() - start)

    def _record(self, scope: Scope, state: dict[str, Any], status: int, seconds: float) -> None:
        endpoint = getattr(scope.get("route"), "path", "other")
        self._metrics.count_request(endpoint, scope["method"], status, seconds)
        request = {
            "method": scope["method"],
            "path": quote(scope["path"]),
            "status": status,
            "seconds": round(seconds, 4),
        }
        if "characters" in state:
            request["characters"] = state["characters"]
        if self._texts and "texts" in state:
            request["texts"] = state["texts"]
        _requests.info("request", extra={"request": request})
