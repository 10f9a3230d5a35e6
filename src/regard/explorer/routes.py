"""The endpoints of the explorer; `docs/explorer-api.md` describes them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse

from regard.explorer import schemas
from regard.explorer.attribution import attribute
from regard.explorer.cache import DocumentCache
from regard.explorer.corpus import predict_rows
from regard.explorer.documents import Answer, select_attention, summarize, trace_document
from regard.explorer.export import STATIC, has_bundle, render_export
from regard.explorer.failures import RequestError
from regard.explorer.jobs import run_while_connected, stream_reports, stream_steps
from regard.explorer.served_model import ServedModel
from regard.formatting import did_you_mean, to_json

Schema = TypeVar("Schema", bound=BaseModel)

router = APIRouter()


@dataclass(frozen=True)
class Session:
    """The models that were given on the command line, by id, and a cache of the computed documents."""

    models: dict[str, ServedModel]
    cache: DocumentCache = field(default_factory=DocumentCache)

    async def describe_models(self) -> list[dict[str, Any]]:
        """Return the descriptions of all models, computed outside the threads of the models, which may be busy."""
        return await asyncio.gather(*(asyncio.to_thread(served.describe) for served in self.models.values()))

    def find(self, model: str) -> ServedModel:
        """Return a model. Raise RequestError if there is none with this id."""
        if model not in self.models:
            raise RequestError(404, f"There is no model '{model}'.{did_you_mean(model, self.models)}", "model")
        return self.models[model]


@router.get("/")
async def get_page() -> Response:
    return _send_file("index.html")


@router.get("/app.js")
async def get_script() -> Response:
    return _send_file("app.js")


@router.get("/app.css")
async def get_style() -> Response:
    return _send_file("app.css")


@router.get("/api/models")
async def list_models(request: Request) -> Response:
    return _send_json(await _session(request).describe_models())


@router.get("/api/models/{model}/card")
async def get_card(request: Request, model: str) -> Response:
    served = _session(request).find(model)
    return _send_json(await served.worker.run(lambda: served.card))


@router.post("/api/trace")
async def trace(request: Request) -> Response:
    wanted = await _parse(request, schemas.TraceRequest)
    return _send_answer(await _trace(request, wanted, summarize if wanted.summary else _keep))


@router.post("/api/attention")
async def get_attention(request: Request) -> Response:
    wanted = await _parse(request, schemas.AttentionRequest)
    return _send_answer(await _trace(request, wanted, lambda answer: select_attention(answer, set(wanted.names))))


@router.post("/api/corpus")
async def stream_corpus(request: Request) -> Response:
    wanted = await _parse(request, schemas.CorpusRequest)
    served = _session(request).find(wanted.model)
    pairs = (await served.worker.run(lambda: served.test_set)).first(wanted.limit)
    rows = predict_rows(served.model, pairs, wanted.search.options)
    return StreamingResponse(stream_steps(served.worker, rows), media_type="application/x-ndjson")


@router.post("/api/attribution")
async def stream_attribution(request: Request) -> Response:
    wanted = await _parse(request, schemas.AttributionRequest)
    served = _session(request).find(wanted.model)
    reports = stream_reports(served.worker, lambda report: attribute(served, wanted, report))
    return StreamingResponse(reports, media_type="application/x-ndjson")


@router.post("/api/export")
async def export(request: Request) -> Response:
    wanted = await _parse(request, schemas.ExportRequest)
    served = _session(request).find(wanted.model)
    page = await run_while_connected(request, served.worker, _render, served, wanted)
    return HTMLResponse(page, headers={"Content-Disposition": 'attachment; filename="regard.html"'})


def _render(served: ServedModel, wanted: schemas.ExportRequest) -> str:
    """Return the self-contained page of a trace; without the bundle, the page of `Trace.to_html`."""
    trace = served.trace(wanted)
    if not has_bundle():
        return trace.to_html()
    traced = wanted.model_dump(mode="json", exclude={"fragment"})
    return render_export(
        {
            "models": [served.summary],
            "traces": [{"request": traced, "document": trace.document}],
            "cards": {served.id: served.card},
            "fragment": wanted.fragment,
        }
    )


async def _trace(request: Request, wanted: schemas.TraceRequest, shape: Callable[[Answer], Answer]) -> Answer:
    """Trace in the thread of the model, and serialize there as well: a document can have megabytes."""
    session = _session(request)
    served = session.find(wanted.model)
    answer: Answer = await run_while_connected(
        request, served.worker, lambda: shape(trace_document(served, wanted, session.cache))
    )
    return answer


def _keep(answer: Answer) -> Answer:
    return answer


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
        raise RequestError.from_validation(error) from None


def _send_json(value: Any) -> Response:
    return Response(to_json(value, ensure_ascii=False), media_type="application/json")


def _send_answer(answer: Answer) -> Response:
    return Response(answer.to_json(), media_type="application/json")


def _send_file(name: str) -> Response:
    if not has_bundle():
        raise RequestError(404, "The page is not installed. Build it: `cd web && npm ci && npm run build`.")
    return FileResponse(STATIC / name)
