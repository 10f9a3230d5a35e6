"""The application: its endpoints, which `docs/explorer-api.md` describes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse

from regard.explorer import schemas
from regard.explorer.corpus import check_same_pairs, choose_metrics, compare_rows
from regard.explorer.documents import DocumentCache
from regard.explorer.schemas import RequestError
from regard.explorer.security import Access
from regard.explorer.served_model import ServedModel
from regard.explorer.site import create_site
from regard.formatting import did_you_mean, to_json
from regard.inspection.trace.page import STATIC, render_empty_page

Schema = TypeVar("Schema", bound=BaseModel)

LINES: Final = "application/x-ndjson"

router = APIRouter()


@dataclass(frozen=True)
class Session:
    """The models that were given on the command line, by id, and a cache of the computed documents."""

    models: dict[str, ServedModel]
    cache: DocumentCache

    async def describe_models(self) -> list[dict[str, Any]]:
        """Return the descriptions of all models, computed outside the threads of the models, which may be busy."""
        return await asyncio.gather(*(asyncio.to_thread(served.describe) for served in self.models.values()))

    def find(self, model: str) -> ServedModel:
        """Return a model. Raise RequestError if there is none with this id."""
        if model not in self.models:
            raise RequestError(404, f"There is no model '{model}'.{did_you_mean(model, self.models)}", "model")
        return self.models[model]


def create_app(models: Sequence[ServedModel], access: Access) -> FastAPI:
    """Return the application that serves the page and the API.

    Args:
        models: The models that can be used. No request can load another.
        access: The address of the server and the token, which every request is checked against.
    """
    session = Session({served.id: served for served in models}, DocumentCache())

    @asynccontextmanager
    async def prepare_and_close(_: FastAPI) -> AsyncIterator[None]:
        # The page asks for the descriptions first, and their examples are read from files.
        described = asyncio.create_task(session.describe_models())
        yield
        described.cancel()
        for served in models:
            served.worker.close()

    app = create_site(access, lifespan=prepare_and_close)
    app.state.session = session
    app.include_router(router)
    return app


@router.get("/")
async def get_page(_: Request) -> Response:
    return FileResponse(STATIC / "index.html")


@router.get("/api/models")
async def list_models(request: Request) -> Response:
    return _send_json(await _session(request).describe_models())


@router.get("/api/models/{model}/card")
async def get_card(request: Request, model: str) -> Response:
    served = _session(request).find(model)
    return _send_json(await served.worker.run(lambda: served.card))


@router.post("/api/trace")
async def trace(request: Request) -> Response:
    wanted, session = await _parse(request, schemas.TraceRequest), _session(request)
    served = session.find(wanted.model)
    content = await served.worker.run_while_connected(request, served.answer_trace, wanted, session.cache)
    return Response(content, media_type="application/json")


@router.post("/api/attention")
async def get_attention(request: Request) -> Response:
    wanted, session = await _parse(request, schemas.AttentionRequest), _session(request)
    served, names = session.find(wanted.model), set(wanted.names)
    content = await served.worker.run_while_connected(request, served.answer_trace, wanted, session.cache, names)
    return Response(content, media_type="application/json")


@router.post("/api/corpus")
async def stream_corpus(request: Request) -> Response:
    wanted = await _parse(request, schemas.CorpusRequest)
    served = _session(request).find(wanted.model)
    corpus = await served.worker.run(lambda: served.corpus)
    rows = corpus.stream(wanted.limit, wanted.search.options)
    return StreamingResponse(served.worker.stream_steps(rows), media_type=LINES)


@router.post("/api/corpus/metrics")
async def evaluate_corpus(request: Request) -> Response:
    wanted, session = await _parse(request, schemas.MetricsRequest), _session(request)
    models = {each: session.find(each) for each in wanted.models}
    corpora = {name: await each.worker.run(lambda each=each: each.corpus) for name, each in models.items()}
    check_same_pairs(corpora)
    rows_of = {name: corpus.read(wanted.indices, wanted.search.options) for name, corpus in corpora.items()}
    metrics = choose_metrics([served.model for served in models.values()])
    return _send_json(await asyncio.to_thread(compare_rows, rows_of, metrics))


@router.post("/api/neighbors")
async def stream_neighbors(request: Request) -> Response:
    wanted = await _parse(request, schemas.NeighborsRequest)
    served = _session(request).find(wanted.model)
    return StreamingResponse(served.worker.stream_steps(served.find_neighbors(wanted)), media_type=LINES)


@router.post("/api/attribution")
async def stream_attribution(request: Request) -> Response:
    wanted = await _parse(request, schemas.AttributionRequest)
    served = _session(request).find(wanted.model)
    reports = served.worker.stream_reports(lambda report: served.attribute(wanted, report))
    return StreamingResponse(reports, media_type=LINES)


@router.post("/api/heads")
async def stream_heads(request: Request) -> Response:
    wanted = await _parse(request, schemas.HeadsRequest)
    served = _session(request).find(wanted.model)
    reports = served.worker.stream_reports(lambda report: served.ablate_heads(wanted, report))
    return StreamingResponse(reports, media_type=LINES)


@router.get("/api/page")
async def get_empty_page(_: Request) -> Response:
    return HTMLResponse(await asyncio.to_thread(render_empty_page))


def _session(request: Request) -> Session:
    session: Session = request.app.state.session
    return session


async def _parse(request: Request, schema: type[Schema]) -> Schema:
    """Validate the body. Only JSON is accepted: a form of another site cannot send it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, "The body must be JSON, with the header Content-Type: application/json.")
    try:
        return schema.model_validate_json(await request.body())
    except ValidationError as error:
        raise RequestError.from_validation(error, schema) from None


def _send_json(value: Any) -> Response:
    return Response(to_json(value, ensure_ascii=False), media_type="application/json")
