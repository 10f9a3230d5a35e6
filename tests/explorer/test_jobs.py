"""Work in the thread of a model: how many requests may wait, and what happens to the others."""

import asyncio
import threading

import httpx
from fastapi import FastAPI

from regard.explorer.jobs import MAX_WAITING
from tests_explorer import ORIGIN

BODY = {"model": "0", "source": {"text": "3 mai 2009"}}


def test_requests_beyond_the_limit_are_rejected_until_the_model_is_free(app: FastAPI) -> None:
    served = app.state.session.models["0"]
    release = threading.Event()

    async def run() -> tuple[httpx.Response, list[int], int]:
        waiting = [asyncio.ensure_future(served.worker.run(release.wait, 60))]
        waiting += [asyncio.ensure_future(served.worker.run(lambda: None)) for _ in range(MAX_WAITING - 1)]
        await asyncio.sleep(0)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=ORIGIN) as client:
            rejected = await asyncio.wait_for(client.post("/api/trace", json=BODY), 30)
            others = [
                (await client.post("/api/trace", json={**BODY, "model": "1"})).status_code,
                (await client.get("/")).status_code,
                (await client.get("/api/models")).status_code,
            ]
            release.set()
            await asyncio.gather(*waiting)
            return rejected, others, (await client.post("/api/trace", json=BODY)).status_code

    rejected, others, after = asyncio.run(run())
    assert rejected.status_code == 429
    assert rejected.json()["error"]["message"] == "64 requests are waiting for this model. Try again later."
    assert others == [200, 200, 200]
    assert after == 200
