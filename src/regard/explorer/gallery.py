"""The gallery: every mechanism on a prepared example, for the page without a model."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response

from regard.explorer.security import Access
from regard.explorer.site import create_site
from regard.inspection.trace.page import render_linked_page

FILE: Final = Path(__file__).with_name("gallery.json.gz")
"""The predictions of small models, which `benchmarks/mechanisms.py` writes."""


@cache
def read_gallery() -> dict[str, Any]:
    """Return the data of the gallery, see `EmbeddedData` in `web/`."""
    data: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))
    return {**data, "fragment": f"tab=gallery&{data['fragment']}"}


def create_gallery(access: Access) -> FastAPI:
    """Return the application that serves the page with the data of the gallery. It computes nothing."""
    app = create_site(access)
    page = render_linked_page(read_gallery())

    @app.get("/")
    async def get_page() -> Response:
        return HTMLResponse(page)

    return app
