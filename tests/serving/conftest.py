"""A server of two translation models and a model that does not translate, and a browser that opens its page."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from regard.explorer.server import listen
from regard.runs.folder import RunFolder
from regard.serving.app import create_app
from regard.serving.settings import AppOptions, Loading, ModelAddress, RequestLimits
from tests_browser import browser, page
from tests_translators import train_translators

__all__ = ["browser", "page"]


@pytest.fixture(scope="session")
def translators(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return train_translators(tmp_path_factory.mktemp("translators"))


@pytest.fixture(scope="module")
def url(translators: list[Path], small_run: RunFolder) -> Iterator[str]:
    """The URL of the server."""
    models = tuple(ModelAddress(path=str(path)) for path in (*translators, small_run.path))
    options = AppOptions(loading=Loading(models=models), limits=RequestLimits(characters=1_000))
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app(options), log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join(10)
    listener.close()
