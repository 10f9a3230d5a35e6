"""Limits of every request: the length of its URL, the size of its body, and the time until its response starts."""

import asyncio
from typing import Final, final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.formatting import format_bytes, quantity
from regard.serving.errors import RequestError
from regard.serving.settings import RequestLimits

MAX_URL: Final = 32_768
"""The maximum number of characters of a path and its query."""

MAX_FIELDS: Final = 100
"""The maximum number of fields of a query or a form."""


RETRY_AFTER: Final = 5
"""The header Retry-After of a server that stops: after this many seconds, it may have been restarted."""


@final
class LimitsMiddleware:
    """Rejects requests that exceed a limit: 400, 413, 414; 504 if the response does not start in time; 503 if the
    server is stopping and does not wait any longer.

    When a limit is exceeded, the work of the application is cancelled, or it sees that the client has disconnected. A
    stream may take any time after its first byte.

    Args:
        app: The application.
        limits: The limits.
    """

    def __init__(self, app: ASGIApp, limits: RequestLimits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check_head(scope)
            await self._run(scope, receive, send)
        except RequestError as error:
            await error.to_response()(scope, receive, send)

    def _check_head(self, scope: Scope) -> None:
        query = scope["query_string"]
        if len(scope["raw_path"]) + len(query) > MAX_URL:
            raise RequestError(414, f"The URL has more than {MAX_URL:,} characters. Send the text in a POST request.")
        if query.count(b"&") >= MAX_FIELDS:
            raise RequestError(400, f"Invalid request: the URL has more than {quantity(MAX_FIELDS, 'field')}.")
        length = Headers(scope=scope).get("content-length", "0")
        if int(length[:20]) > self._limits.max_body:  # the server has checked that it consists of digits
            raise self._too_large()

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application. Raise RequestError if it exceeds a limit before the response has started."""
        failure: RequestError | None = None
        first: Message | None = None
        received, arrived, started = 0, False, False
        clock = asyncio.get_running_loop().time

        async def receive_limited() -> Message:
            """Receive a part of the body. The time that a slow client takes does not count."""
            nonlocal received, arrived, failure
            if failure is not None or deadline.expired():
                return {"type": "http.disconnect"}
            if arrived or started:
                return await receive()
            deadline.reschedule(None)
            message = await receive()
            if not started:
                deadline.reschedule(clock() + self._limits.timeout)
            arrived = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self._limits.max_body:
                failure = self._too_large()
                return {"type": "http.disconnect"}
            return message

        async def send_held(message: Message) -> None:
            """Send a response. Its head is sent with its first byte: until then, it can be replaced by an error."""
            nonlocal first, started
            if failure is not None or deadline.expired():
                return
            if message["type"] == "http.response.start":
                first = message
                return
            if not started:
                if message.get("more_body", False) and not message.get("body"):
                    return
                started = True
                deadline.reschedule(None)
                if first is not None:
                    await send(first)
            await send(message)

        try:
            async with asyncio.timeout(self._limits.timeout) as deadline:
                await self._app(scope, receive_limited, send_held)
        except TimeoutError:
            if not deadline.expired():
                raise
            failure = RequestError(
                504, f"No result within {self._limits.timeout:g} s. Send a shorter text, or try again later."
            )
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:  # the server has no more time to wait for requests that are not finished
            failure = RequestError(503, "The server is stopping. Try again later.", retry_after=RETRY_AFTER)
        if failure is not None and not started:
            raise failure

    def _too_large(self) -> RequestError:
        return RequestError(
            413, f"The request is larger than {format_bytes(self._limits.max_body)}. Send a shorter text or file."
        )
