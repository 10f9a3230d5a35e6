"""Requests to the explorer in tests, without a socket."""

import asyncio
from typing import Any

import httpx
from fastapi import FastAPI

from regard.explorer.security import Access

ACCESS = Access("127.0.0.1", 7866)
ORIGIN = "http://127.0.0.1:7866"


def send(app: FastAPI, method: str, path: str, **options: Any) -> httpx.Response:
    """Send one request through httpx, as a browser on the page would."""

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
            return await client.request(method, path, **options)

    return asyncio.run(run())


def post(app: FastAPI, path: str, body: Any, **headers: str) -> httpx.Response:
    return send(app, "POST", path, json=body, headers={"Origin": ORIGIN, **headers})
