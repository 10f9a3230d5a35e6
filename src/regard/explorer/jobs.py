"""Work with a model outside the event loop: one thread for each model, and streams of results that can be cancelled."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, Final, TypeVar

from starlette.requests import Request

from regard.decoding.steps import call_before_steps
from regard.explorer.schemas import RequestError
from regard.formatting import to_json

T = TypeVar("T")

MAX_WAITING: Final = 64
"""The maximum number of calls that wait for a model."""

_END: Final = object()

Report = Callable[[dict[str, Any]], None]
"""Sends a value to the client."""


class _DisconnectedError(Exception):
    """The client has disconnected, so nobody reads the result of the call."""


class _Connection:
    """Whether a client still waits for the result of a call in another thread."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()

    def check(self) -> None:
        """If the client has disconnected, raise an exception that stops the call."""
        if self._closed.is_set():
            raise _DisconnectedError


class Worker:
    """A thread in which all computation with one model takes place, one call after the other."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"model-{name}")
        self._waiting = 0

    def close(self) -> None:
        """Do not start any more calls."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[..., T], *arguments: Any, connection: _Connection | None = None) -> T:
        """Call a function in the thread.

        If the caller is cancelled before the call has started, it does not start. If the connection is closed
        meanwhile, the search of the model stops at the next step.
        """
        if self._waiting >= MAX_WAITING:
            raise RequestError(429, f"{MAX_WAITING} requests are waiting for this model. Try again later.")

        def call() -> T:
            with call_before_steps(connection.check) if connection else nullcontext():
                return work(*arguments)

        self._waiting += 1
        try:
            return await asyncio.wrap_future(self._executor.submit(call))
        finally:
            self._waiting -= 1

    async def run_while_connected(self, request: Request, work: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the thread, and stop if the client disconnects."""
        connection = _Connection()
        call = asyncio.ensure_future(self.run(work, *arguments, connection=connection))
        gone = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise RequestError(499, "The client has closed the connection.")
            return call.result()
        finally:
            connection.close()
            gone.cancel()
            call.cancel()

    async def stream_steps(self, steps: Generator[dict[str, Any], None, None]) -> AsyncIterator[str]:
        """Yield the values of a generator as lines of JSON.

        Each step of the generator is a call in the thread, so that other requests are served between two steps. When
        the client disconnects, the server cancels this iteration: the search of the current step stops, and no further
        step is computed.
        """
        connection = _Connection()
        try:
            while (value := await self.run(next, steps, _END, connection=connection)) is not _END:
                yield _to_line(value)
                await asyncio.sleep(0)  # a client that has disconnected meanwhile ends the iteration here
        except Exception as error:  # the status was sent already, so the last line reports the failure
            yield _to_line(RequestError.of(error).document)
        finally:
            connection.close()
            self._executor.submit(steps.close)  # after the current step

    async def stream_reports(self, work: Callable[[Report], None]) -> AsyncIterator[str]:
        """Yield what a function reports as lines of JSON, while it runs in the thread.

        When the client disconnects, the server cancels this iteration, and the next report or the next step of a
        search stops the function.
        """
        loop, reports, connection = asyncio.get_running_loop(), asyncio.Queue[Any](), _Connection()

        def report(value: dict[str, Any]) -> None:
            connection.check()
            loop.call_soon_threadsafe(reports.put_nowait, value)

        call = asyncio.ensure_future(self.run(work, report, connection=connection))
        call.add_done_callback(lambda _: reports.put_nowait(_END))
        try:
            while (value := await reports.get()) is not _END:
                yield _to_line(value)
            await call
        except Exception as error:  # the status was sent already, so the last line reports the failure
            yield _to_line(RequestError.of(error).document)
        finally:
            connection.close()
            call.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _to_line(value: dict[str, Any]) -> str:
    return f"{to_json(value, ensure_ascii=False)}\n"
