"""A server with a small application, in another process, for tests of its life."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from regard.cli.failures import report_failures
from regard.errors import ConfigError
from regard.serving.limits import LimitsMiddleware
from regard.serving.logs import RequestLog
from regard.serving.metrics import MEDIA_TYPE, Metrics
from regard.serving.server import run_server
from regard.serving.settings import RequestLimits, ServerOptions
from serving_soak import Server, running

SECONDS = 60
"""A server that takes longer is taken to hang."""


def create_app(folder: str, limits: RequestLimits) -> Starlette:
    """Return an application that writes what it does to a folder. The file `model` there is its model."""

    def load() -> str:
        content = Path(folder, "model").read_text()
        if content == "broken":
            raise ConfigError("The model is broken. Train it again.")
        if content == "killed":
            os._exit(9)
        return content

    metrics = Metrics()

    async def translate(request: Request) -> JSONResponse:
        content = await request.json()
        await asyncio.sleep(content.get("seconds", 0))
        request.state.characters, request.state.texts = len(content["q"]), [content["q"]]
        return JSONResponse({"translatedText": content["q"].upper()})

    async def block(request: Request) -> JSONResponse:
        time.sleep(float(request.query_params["seconds"]))
        return JSONResponse({})

    async def describe(request: Request) -> JSONResponse:
        return JSONResponse({"process": os.getpid(), "model": app.state.model, "scheme": request.url.scheme})

    async def stream(request: Request) -> StreamingResponse:
        async def tokens() -> Any:
            await asyncio.sleep(float(request.query_params.get("first", "0")))
            for number in range(3):
                yield f"data: {number}\n\n"
                await asyncio.sleep(float(request.query_params.get("pause", "0")))

        return StreamingResponse(tokens(), media_type="text/event-stream")

    async def wait(request: Request) -> JSONResponse:
        try:
            await asyncio.sleep(SECONDS)
        except asyncio.CancelledError:
            Path(folder, "cancelled").touch()
            raise
        return JSONResponse({})

    async def fail(request: Request) -> JSONResponse:
        raise ValueError("a bug")

    async def render_metrics(request: Request) -> Response:
        return Response(metrics.render(), media_type=MEDIA_TYPE)

    async def reload() -> None:
        app.state.model = load()

    @asynccontextmanager
    async def start_and_stop(_: Starlette) -> AsyncIterator[None]:
        app.state.model = load()
        yield
        Path(folder, "stopped").touch()

    app = Starlette(
        lifespan=start_and_stop,
        routes=[
            Route("/translate", translate, methods=["POST"]),
            *(Route(f"/{function.__name__}", function) for function in (block, describe, stream, wait, fail)),
            Route("/metrics", render_metrics),
        ],
    )
    app.add_middleware(LimitsMiddleware, limits=limits)
    app.add_middleware(RequestLog, metrics=metrics, texts=False)
    app.state.reload = reload
    return app


@contextmanager
def start(folder: Path, limits: RequestLimits | None = None, **options: Any) -> Iterator[Server]:
    """Start a server whose application writes to a folder. Its messages are written to the file `stderr` there."""
    with (
        (folder / "stderr").open("w") as stderr,
        running(build_command(folder, limits, **options), stderr=stderr, env=build_env()) as server,
    ):
        yield server


def build_command(folder: Path, limits: RequestLimits | None = None, **options: Any) -> list[str]:
    model = folder / "model"
    if not model.exists():
        model.write_text("first")
    words = [str(folder), (limits or RequestLimits()).model_dump_json(), json.dumps({"port": 0, **options})]
    return [sys.executable, "-c", "import tests_serving; tests_serving.main()", *words]


def build_env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def main(words: Sequence[str] | None = None) -> None:
    folder, limits, options = words or sys.argv[1:]
    with report_failures(debug=False):
        run_server(
            partial(create_app, folder, RequestLimits.model_validate_json(limits)),
            ServerOptions.model_validate_json(options),
        )
