"""The parts that the explorer and the gallery share: static files, access control, and errors as JSON."""

from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, Response

from regard.errors import RegardError
from regard.explorer.schemas import RequestError
from regard.explorer.security import Access, SecurityMiddleware
from regard.inspection.trace.page import STATIC

files = APIRouter()


def create_site(access: Access, **options: Any) -> FastAPI:
    """Return an application that serves the files of the page to those who have access, and reports failures.

    Args:
        access: The address of the server and the token, which every request is checked against.
        options: Options of FastAPI.
    """
    # The pages that FastAPI generates for an API load scripts from elsewhere.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, **options)
    app.include_router(files)
    app.add_middleware(GZipMiddleware, compresslevel=5)
    app.add_middleware(SecurityMiddleware, access=access)
    for kind in (RequestError, RegardError, Exception):
        app.add_exception_handler(kind, _report_error)
    app.add_exception_handler(HTTPException, _report_http_error)
    return app


@files.get("/app.js")
@files.get("/app.css")
async def get_file(request: Request) -> Response:
    return FileResponse(STATIC / request.url.path.lstrip("/"))


async def _report_error(_: Request, error: Exception) -> Response:
    return RequestError.of(error).to_response()


async def _report_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {404: f"There is no {request.url.path}.", 405: f"{request.method} is not possible here."}
    return RequestError(error.status_code, messages.get(error.status_code, str(error.detail))).to_response()
