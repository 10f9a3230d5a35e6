"""The application: routes, security, and errors as JSON."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from regard.errors import RegardError
from regard.explorer.cache import MAX_BYTES, DocumentCache
from regard.explorer.failures import RequestError
from regard.explorer.routes import Session, router
from regard.explorer.security import Access, SecurityMiddleware
from regard.explorer.served_model import ServedModel


def create_app(models: Sequence[ServedModel], access: Access, *, cache_bytes: int = MAX_BYTES) -> FastAPI:
    """Return the application that serves the page and the API.

    Args:
        models: The models that can be used. No request can load another.
        access: The address of the server and the token, which every request is checked against.
        cache_bytes: The maximum size of the cache of traces.
    """
    session = Session({served.id: served for served in models}, DocumentCache(cache_bytes))

    @asynccontextmanager
    async def prepare_and_close(_: FastAPI) -> AsyncIterator[None]:
        # The page asks for the descriptions first, and their examples are read from files.
        described = asyncio.create_task(session.describe_models())
        yield
        described.cancel()
        for served in models:
            served.worker.close()

    # The pages that FastAPI generates for an API load scripts from elsewhere.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=prepare_and_close)
    app.state.session = session
    app.include_router(router)
    app.add_middleware(SecurityMiddleware, access=access)
    for kind in (RequestError, RegardError, Exception):
        app.add_exception_handler(kind, _report_error)
    app.add_exception_handler(HTTPException, _report_http_error)
    return app


async def _report_error(_: Request, error: Exception) -> Response:
    return RequestError.of(error).to_response()


async def _report_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {404: f"There is no {request.url.path}.", 405: f"{request.method} is not possible here."}
    return RequestError(error.status_code, messages.get(error.status_code, str(error.detail))).to_response()
