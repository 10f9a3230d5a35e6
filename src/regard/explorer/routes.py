"""The endpoints of the explorer; `docs/explorer-api.md` describes them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

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
from regard.inspection.trace import Trace

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
    pairs = (await served.worker.run(lambda: served.held_out)).pairs.first(wanted.limit)
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
    requests = [wanted, *(wanted.model_copy(update=dict(other)) for other in wanted.others)]
    models = [_session(request).find(each.model) for each in requests]
    parts = [
        await run_while_connected(request, served.worker, _trace_for_export, served, each)
        for served, each in zip(models, requests, strict=True)
    ]
    page = await asyncio.to_thread(_render, parts, wanted.fragment)
    return HTMLResponse(page, headers={"Content-Disposition": 'attachment; filename="regard.html"'})


class _ExportedTrace(NamedTuple):
    """A trace, with its request and what the page shows of its model."""

    trace: Trace
    request: dict[str, Any]
    model: dict[str, Any]
    card: dict[str, Any]


def _trace_for_export(served: ServedModel, wanted: schemas.ExportRequest) -> _ExportedTrace:
    request = wanted.model_dump(mode="json", exclude={"others", "fragment"})
    return _ExportedTrace(served.trace(wanted), request, served.summary, served.card)


def _render(parts: Sequence[_ExportedTrace], fragment: str) -> str:
    """Return the self-contained page of some traces; without the bundle, the page of `Trace.to_html`."""
    if not has_bundle():
        return parts[0].trace.to_html()
    return render_export(
        {
            "models": list({part.model["id"]: part.model for part in parts}.values()),
            "traces": [{"request": part.request, "document": part.trace.document} for part in parts],
            "cards": {part.model["id"]: part.card for part in parts},
            "fragment": fragment,
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
        raise RequestError.from_validation(error, schema) from None


def _send_json(value: Any) -> Response:
    return Response(to_json(value, ensure_ascii=False), media_type="application/json")


def _send_answer(answer: Answer) -> Response:
    return Response(answer.to_json(), media_type="application/json")


def _send_file(name: str) -> Response:
    if not has_bundle():
        raise RequestError(404, "The page is not installed. Build it: `cd web && npm ci && npm run build`.")
    return FileResponse(STATIC / name)
