"""The application of `regard serve`: its endpoints, which `docs/serving-api.md` describes."""

import asyncio
import logging
import re
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar, final

from fastapi import APIRouter, Depends, FastAPI, Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import ImmutableMultiDict, UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse

from regard.data.images.pixels import decode_image
from regard.errors import RegardError
from regard.formatting import name_language, parse_json, to_json
from regard.models.settings import IMAGE, TEXT
from regard.operating_system import return_free_memory
from regard.serving import page
from regard.serving.detection import Detection, detect
from regard.serving.documents.files import FILE_FORMATS, read_file
from regard.serving.errors import RequestError, raise_invalid
from regard.serving.keys import Access
from regard.serving.limits import LimitsMiddleware
from regard.serving.logs import RequestLog
from regard.serving.metrics import MEDIA_TYPE, Metrics
from regard.serving.models import (
    Backend,
    Catalog,
    Output,
    describe_links,
    identify_versions,
    load_catalog,
    read_stamps,
)
from regard.serving.reference import describe_api, describe_body, describe_query, render_reference
from regard.serving.schemas import (
    AUTO,
    DetectRequest,
    Options,
    PredictRequest,
    SentenceRequest,
    TranslateRequest,
)
from regard.serving.settings import AppOptions, Loading
from regard.serving.translation import Translated, choose, parse, predict_sentences, translate

log = logging.getLogger(__name__)

T = TypeVar("T")
Schema = TypeVar("Schema", bound=BaseModel)

FORMATS: Final = ("PNG", "JPEG", "WEBP")
"""The formats of images in requests."""

_MAX_FIELDS: Final = 1_000
_DOWNLOAD: Final = re.compile(r"[A-Za-z0-9_-]{32}\.[a-z]+")
_DOWNLOAD_SECONDS: Final = 600
"""How long a translated file can be downloaded."""

Load = Callable[[Loading, Callable[[int], object]], Catalog]
"""Loads the models. The second argument receives the size of each batch."""


async def _close_files(request: Request) -> AsyncIterator[None]:
    """Close the files of a form after the response."""
    try:
        yield
    finally:
        await request.close()


router = APIRouter(dependencies=[Depends(_close_files)])


@final
class Session:
    """The models of an application. `reload` replaces them."""

    def __init__(self, options: AppOptions, load: Load = load_catalog) -> None:
        self.options = options
        self.access, self.metrics = Access(options.access), Metrics()
        self._load = load
        self.catalog: Catalog | None = None
        self.downloads = Path(options.downloads or tempfile.mkdtemp(prefix="regard-downloads-"))
        self._stamps: list[tuple[str, int]] = []
        self._reloading = asyncio.Lock()

    @property
    def models(self) -> Catalog:
        """The current models. Raise RequestError while they are being loaded."""
        if self.catalog is None:
            raise RequestError(503, "The models are being loaded. Try again later.", retry_after=1)
        return self.catalog

    async def reload(self) -> bool:
        """Load the models again. Until they have passed their test, and if they fail it, the previous ones answer.

        Return whether the models were replaced.
        """
        async with self._reloading:
            loading = self.options.loading
            try:
                self.access.reload()
                stamps = read_stamps(loading)
                catalog = await asyncio.to_thread(self._load, loading, self.metrics.count_batch)
            except Exception as error:
                if self.catalog is None:
                    raise
                log.error("The models were not replaced, and the previous ones remain in use. %s", error)
                return False
            previous, self.catalog, self._stamps = self.catalog, catalog, stamps
        if previous is not None:
            log.warning("The models were replaced: %s.", ", ".join(catalog.by_name))
            await previous.close()
            del previous
            await asyncio.to_thread(return_free_memory)
        return True

    async def watch(self) -> None:
        """Reload when the weights in a model folder have changed. Files are read only if a folder has changed."""
        loading, rejected = self.options.loading, self._stamps
        while self.options.watch:
            await asyncio.sleep(self.options.watch)
            self.metrics.set_queue_length(0 if self.catalog is None else self.catalog.queued)
            with suppress(RegardError, OSError):  # the model may be incomplete while it is written
                found = read_stamps(loading)
                if found in (self._stamps, rejected):
                    continue
                if await asyncio.to_thread(identify_versions, loading) == self.models.versions:
                    self._stamps = found
                elif not await self.reload():
                    rejected = found

    def check_length(self, request: Request, texts: Sequence[str]) -> None:
        """Raise RequestError if a request has too many characters."""
        count, limit = sum(map(len, texts)), self.options.limits.characters
        request.state.characters, request.state.texts = count, list(texts)
        if limit and count > limit:
            raise RequestError(
                400,
                f"Invalid request: request ({count}) exceeds text limit ({limit}). Send less text or set --characters.",
            )


def create_app(options: AppOptions, load: Load = load_catalog) -> FastAPI:
    """Return the application. Its models are loaded when it starts."""
    session = Session(options, load)

    @asynccontextmanager
    async def load_and_close(_: FastAPI) -> AsyncIterator[None]:
        await session.reload()
        watching = asyncio.create_task(session.watch())
        yield
        watching.cancel()
        await session.models.close()

    # The pages that FastAPI generates load scripts from elsewhere, so `/docs` is a page of our own.
    app = FastAPI(title="regard", docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=load_and_close)
    app.state.session, app.state.reload, app.state.is_draining = session, session.reload, False
    app.include_router(router)
    app.openapi = lambda: describe_api(app, [Options])  # type: ignore[method-assign]
    app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["GET", "POST"], allow_headers=["*"])
    app.add_middleware(LimitsMiddleware, limits=options.limits)
    app.add_middleware(RequestLog, metrics=session.metrics, texts=options.log_texts)
    for kind in (RequestError, RegardError, Exception):
        app.add_exception_handler(kind, _report_error)
    app.add_exception_handler(HTTPException, _report_http_error)
    return app


@router.get("/languages")
@router.post("/languages")
async def list_languages(request: Request) -> Response:
    """List the source languages, with the languages that each is translated to."""
    return _send(_session(request).models.list_languages())


@router.get("/models")
async def list_models(request: Request) -> Response:
    """List the models. `kind` is translate, predict or caption."""
    return _send(
        [
            {
                "name": each.name,
                "kind": each.kind,
                "architecture": each.architecture,
                "source": each.languages[0] if each.languages else None,
                "target": each.languages[1] if each.languages else None,
            }
            for each in _session(request).models.descriptions
        ]
    )


@router.post("/translate", openapi_extra=describe_body(TranslateRequest))
async def post_translation(request: Request) -> Response:
    """Translate a text, or a list of texts. With `regard`, also return the sentences, with the requested details."""
    wanted = await _parse(request, TranslateRequest)
    texts = [wanted.q] if isinstance(wanted.q, str) else wanted.q
    session = _session(request)
    session.check_length(request, texts)

    async def answer() -> dict[str, Any]:
        answers = await asyncio.gather(*(_translate(session.models, wanted, text) for text in texts))
        if isinstance(wanted.q, str):
            return answers[0]
        return {name: [each[name] for each in answers] for name in answers[0]} if answers else {"translatedText": []}

    return _send(await _while_connected(request, answer()))


@router.post("/predict", openapi_extra=describe_body(PredictRequest))
async def post_prediction(request: Request) -> Response:
    """Predict the output of a model for a text, or for a list of texts, which are not split into sentences."""
    wanted, session = await _parse(request, PredictRequest), _session(request)
    texts = [wanted.q] if isinstance(wanted.q, str) else wanted.q
    session.check_length(request, texts)
    backend = _find_predictor(session.models, wanted.model, TEXT)
    outputs = await _while_connected(request, backend.predict(texts, wanted.want(backend.description)))
    described = [_describe_prediction(text, output, wanted) for text, output in zip(texts, outputs, strict=True)]
    return _send({"model": backend.description.name, "predictions": described})


@router.post("/caption", openapi_extra=describe_body(PredictRequest, file="image"))
async def post_caption(request: Request) -> Response:
    """Describe an image (PNG, JPEG or WebP)."""
    fields = await _admit(request)
    wanted, session = _validate({"q": "", **fields}, PredictRequest), _session(request)
    image = fields.get("image") or fields.get("file")
    if not isinstance(image, UploadFile):
        raise RequestError(400, "Invalid request: missing image parameter. Send a form with the image as a file.")
    pixels = await asyncio.to_thread(decode_image, await image.read(), image.filename or "The image", FORMATS)
    backend = _find_predictor(session.models, wanted.model, IMAGE)
    [output] = await _while_connected(request, backend.predict([pixels], wanted.want(backend.description)))
    described = {key: value for key, value in _describe_prediction("", output, wanted).items() if key != "source"}
    return _send({"model": backend.description.name, **described})


@router.post("/detect", openapi_extra=describe_body(DetectRequest))
async def post_detection(request: Request) -> Response:
    """Detect the language of a text, among the source languages of the models."""
    wanted, session = await _parse(request, DetectRequest), _session(request)
    session.check_length(request, [wanted.q])
    return _send(await asyncio.to_thread(detect, wanted.q, session.models.sources))


@router.post("/translate_file", openapi_extra=describe_body(TranslateRequest, file="file"))
async def post_file(request: Request) -> Response:
    """Translate a file in a format that `/frontend/settings` lists. Return a URL, which is valid for ten minutes."""
    fields, session = await _admit(request), _session(request)
    wanted = _validate({"q": "", **fields}, TranslateRequest)
    upload = fields.get("file")
    if not isinstance(upload, UploadFile) or not upload.filename:
        raise RequestError(400, "Invalid request: missing file parameter")
    file = await asyncio.to_thread(read_file, upload.filename, await upload.read())
    backend, source, _ = await _find_translator(session.models, wanted.source, wanted.target, file.sample)
    document = await asyncio.to_thread(file.parse, source, backend.description.sentence)
    session.check_length(request, document.sentences)
    work = predict_sentences(backend, document, wanted.want(backend.description))
    outputs = await _while_connected(request, work)
    name = f"{secrets.token_urlsafe(24)}{Path(upload.filename).suffix.lower()}"
    assert _DOWNLOAD.fullmatch(name)
    content = await asyncio.to_thread(document.join, [choose(output) for output in outputs])
    await asyncio.to_thread(_store, session.downloads, name, content)
    return _send({"translatedFileUrl": str(request.url_for("download_file", name=name))})


@router.get("/download_file/{name}")
async def download_file(request: Request, name: str) -> Response:
    """Download a translated file."""
    path = _session(request).downloads / name
    if not _DOWNLOAD.fullmatch(name) or not path.is_file():
        raise RequestError(404, "The file does not exist any more. Translate it again.")
    return FileResponse(path, media_type=FILE_FORMATS[path.suffix].media_type, filename=f"translated{path.suffix}")


@router.get("/stream", openapi_extra=describe_query(SentenceRequest))
@router.post("/stream", openapi_extra=describe_body(SentenceRequest))
async def stream_tokens(request: Request) -> Response:
    """Stream the prediction for one sentence as server-sent events: the text after each token, then an event `end`."""
    wanted, session = await _parse(request, SentenceRequest), _session(request)
    session.check_length(request, [wanted.q])
    backend = await _find_backend(session.models, wanted)

    async def send() -> AsyncIterator[str]:
        text = ""
        try:
            async for text in backend.stream(wanted.q):
                yield f"data: {to_json({'text': text}, ensure_ascii=False)}\n\n"
            yield f"event: end\ndata: {to_json({'text': text}, ensure_ascii=False)}\n\n"
        except Exception as error:  # the status was sent already
            yield f"event: error\ndata: {to_json({'error': RequestError.of(error).message})}\n\n"

    return StreamingResponse(send(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


@router.get("/explore", openapi_extra=describe_query(SentenceRequest))
async def explore(request: Request) -> Response:
    """Show how the first sentence of a text is predicted: the page of the explorer."""
    wanted, session = await _parse(request, SentenceRequest), _session(request)
    session.check_length(request, [wanted.q])
    backend = await _find_backend(session.models, wanted)
    search = _validate({"q": wanted.q}, PredictRequest).want(backend.description)
    sentence = next(iter(parse(wanted.q, "text", wanted.source, backend.description.sentence).sentences), "")
    return HTMLResponse(await _while_connected(request, backend.render_trace(sentence, search)))


@router.get("/frontend/settings")
async def get_frontend_settings(request: Request) -> Response:
    """Return the settings that clients of LibreTranslate read."""
    session = _session(request)
    pairs = list(session.models.by_languages)
    source, target = pairs[0] if pairs else (AUTO, "")
    return _send(
        {
            "apiKeys": session.access.requires_key,
            "charLimit": session.options.limits.characters or -1,
            "filesTranslation": True,
            "frontendTimeout": 500,
            "keyRequired": session.access.requires_key,
            "language": {
                "source": {"code": source, "name": name_language(source)},
                "target": {"code": target, "name": name_language(target)},
            },
            "suggestions": False,
            "supportedFilesFormat": list(FILE_FORMATS),
        }
    )


@router.get("/health")
async def get_health() -> Response:
    """Return whether the process responds."""
    return _send({"status": "ok"})


@router.get("/ready")
async def get_readiness(request: Request) -> Response:
    """Return 200 once the models are loaded."""
    session = _session(request)
    if request.app.state.is_draining:
        raise RequestError(503, "The server is shutting down.", retry_after=1)
    return _send({"status": "ready", "models": list(session.models.by_name)})


@router.get("/metrics", include_in_schema=False)
async def get_metrics(request: Request) -> Response:
    return Response(_session(request).metrics.render(), media_type=MEDIA_TYPE)


@router.get("/docs", include_in_schema=False)
async def get_reference(request: Request) -> Response:
    return HTMLResponse(render_reference(request.app.openapi()), headers=page.HEADERS)


@router.get("/", include_in_schema=False)
async def get_page(request: Request) -> Response:
    return _send_page(request, page.Form())


@router.post("/", include_in_schema=False)
async def post_form(request: Request) -> Response:
    """Translate the text of the form of the page, which a browser without JavaScript sends."""
    fields: Mapping[str, Any] = {}
    form, status = page.Form(), 200
    try:
        fields = await _admit(request)
        wanted = _validate({"alternatives": 2, **fields}, TranslateRequest)
        form = page.Form(str(wanted.q), wanted.source, wanted.target)
        _session(request).check_length(request, [form.text])
        answer = await _while_connected(request, _translate(_session(request).models, wanted, form.text))
        form = form._replace(
            translation=answer["translatedText"],
            alternatives=answer["alternatives"],
            detected=answer.get("detectedLanguage", {}).get("language", ""),
        )
    except (RequestError, RegardError) as error:
        failure = RequestError.of(error)
        form, status = form._replace(text=str(fields.get("q", "")), error=failure.message), failure.status
    return _send_page(request, form, status)


@router.get("/translate.js", include_in_schema=False)
@router.get("/translate.css", include_in_schema=False)
async def get_static(request: Request) -> Response:
    name = request.url.path.lstrip("/")
    return Response(page.read_static(name), media_type=page.CONTENT_TYPES[name], headers=page.HEADERS)


def _send_page(request: Request, form: page.Form, status: int = 200) -> Response:
    session = _session(request)
    models = [each.name for each in session.models.descriptions if each.languages is None]
    content = page.render(
        session.models.list_languages(),
        models,
        session.options.limits.characters or -1,
        form,
        key_required=session.access.requires_key,
    )
    return HTMLResponse(content, status, page.HEADERS)


def _session(request: Request) -> Session:
    session: Session = request.app.state.session
    return session


async def _translate(models: Catalog, wanted: TranslateRequest, text: str) -> dict[str, Any]:
    """Return the answer to a request for one text."""
    detected = None
    if wanted.source == wanted.target:
        translated = Translated(text, [], (), [])
    else:
        backend, source, detected = await _find_translator(models, wanted.source, wanted.target, text)
        document = await asyncio.to_thread(parse, text, wanted.format, source, backend.description.sentence)
        translated = await translate(backend, document, wanted.want(backend.description))
    answer: dict[str, Any] = {"translatedText": translated.text}
    if detected is not None:
        answer["detectedLanguage"] = detected
    if wanted.alternatives:
        answer["alternatives"] = translated.alternatives[: wanted.alternatives]
    if wanted.regard is not None:
        options = wanted.regard
        sentences = translated.describe_sentences(text, scores=options.scores, align=options.align)
        answer["regard"] = {"sentences": sentences}
    return answer


def _describe_prediction(source: str, output: Output, wanted: PredictRequest) -> dict[str, Any]:
    options = wanted.options
    described: dict[str, Any] = {"source": source, "text": output.best.text, "score": output.best.score}
    if wanted.alternatives:
        others = output.texts[1 : 1 + wanted.alternatives]
        described["alternatives"] = [{"text": each.text, "score": each.score} for each in others]
    if output.unknown:
        described["unknown"] = output.unknown
    if output.truncated:
        described["truncated"] = True
    if options.align:
        described |= describe_links(source, output)
    if output.weights is not None:
        described["attention"] = output.attention
    return described


def _find_predictor(models: Catalog, name: str, source_kind: str) -> Backend:
    """Return a model that reads a kind of source: the only one, unless a name is given."""
    if name:
        backend = models.find(name)
        if backend.description.source_kind == source_kind:
            return backend
        raise RequestError(
            400,
            f"The model {name} reads {backend.description.source_kind} sources, not {source_kind}. See GET /models.",
        )
    readers = [each for each in models.by_name.values() if each.description.source_kind == source_kind]
    if len(readers) == 1:
        return readers[0]
    names = ", ".join(each.description.name for each in readers) or "none"
    raise RequestError(400, f"Invalid request: missing model parameter. Models that read this kind of source: {names}.")


async def _find_backend(models: Catalog, wanted: SentenceRequest) -> Backend:
    if not wanted.target:
        return _find_predictor(models, wanted.model, TEXT)
    backend, _, _ = await _find_translator(models, wanted.source, wanted.target, wanted.q)
    return backend


async def _find_translator(
    models: Catalog, source: str, target: str, text: str
) -> tuple[Backend, str, Detection | None]:
    """Return the model of a pair of languages, the source language and, if it is detected, with what confidence."""
    detected = None
    if source == AUTO:
        detected, *_ = await asyncio.to_thread(detect, text, models.find_sources(target))
        source = detected["language"]
    return models.find_translator(source, target), source, detected


async def _parse(request: Request, schema: type[Schema]) -> Schema:
    return _validate(await _admit(request), schema)


async def _admit(request: Request) -> Mapping[str, Any]:
    """Check the key and the rate of a request, and return its fields."""
    fields = await _read_fields(request)
    client = None if request.client is None else (request.client.host, request.client.port)
    _session(request).access.check(fields, request.headers, client)
    return fields


def _validate(fields: Mapping[str, Any], schema: type[Schema]) -> Schema:
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise_invalid(error, schema)


async def _read_fields(request: Request) -> Mapping[str, Any]:
    """Return the fields of a request: of a JSON object, of a form, or of the query."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        try:
            fields = parse_json(await request.body())
        except ValueError as error:
            raise RequestError(400, f"Invalid request: the body is not JSON: {error}.") from None
        if not isinstance(fields, dict):
            raise RequestError(400, "Invalid request: the body must be a JSON object.")
        return fields
    if kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        return _collect(await request.form(max_fields=_MAX_FIELDS, max_files=1))
    if kind and await request.body():
        raise RequestError(415, f"The body has the type {kind}. Send JSON, or a form.")
    return _collect(request.query_params)


def _collect(values: ImmutableMultiDict[str, Any]) -> dict[str, Any]:
    """Return fields by name. A field `q` that occurs several times is a list."""
    texts = values.getlist("q")
    return {**values, "q": texts} if len(texts) > 1 else dict(values)


async def _while_connected(request: Request, work: Awaitable[T]) -> T:
    """Return the result of some work, or cancel it if the client disconnects."""
    call, gone = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not call.done():
            raise RequestError(499, "The client has closed the connection.")
        return call.result()
    finally:
        gone.cancel()
        call.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _store(folder: Path, name: str, content: bytes) -> None:
    """Write a translated file, and delete those that can no longer be downloaded."""
    for path in folder.iterdir():
        with suppress(OSError):  # another worker may have deleted it
            if time.time() - path.stat().st_mtime > _DOWNLOAD_SECONDS:
                path.unlink()
    (folder / name).write_bytes(content)


def _send(value: Any) -> Response:
    return Response(to_json(value, ensure_ascii=False), media_type="application/json")


async def _report_error(_: Request, error: Exception) -> Response:
    return RequestError.of(error).to_response()


async def _report_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {404: f"There is no {request.url.path}.", 405: f"{request.url.path} does not support {request.method}."}
    return RequestError(error.status_code, messages.get(error.status_code, str(error.detail))).to_response()
