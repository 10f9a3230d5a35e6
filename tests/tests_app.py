"""Requests to the application of `regard serve` in tests, without a socket."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, final

import httpx
from fastapi import FastAPI

from regard.serving.app import Load, create_app
from regard.serving.models import load_catalog
from regard.serving.settings import AppOptions

T = TypeVar("T")


@final
class Client:
    """Sends requests to an application, whose event loop runs in a thread. All threads may use it."""

    def __init__(self, app: FastAPI, loop: asyncio.AbstractEventLoop) -> None:
        self.app, self._loop = app, loop
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=None)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self._run(self._client.get(path, **options))

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self._run(self._client.post(path, **options))

    def reload(self) -> bool:
        return bool(self._run(self.app.state.reload()))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


@contextmanager
def open_client(options: AppOptions, load: Load = load_catalog) -> Iterator[Client]:
    """Start an application, and stop it at the end of the block."""
    app, loop = create_app(options, load), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    lifespan = app.router.lifespan_context(app)
    try:
        asyncio.run_coroutine_threadsafe(lifespan.__aenter__(), loop).result()
        yield Client(app, loop)
        asyncio.run_coroutine_threadsafe(lifespan.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
