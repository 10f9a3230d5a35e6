"""A server with the endpoints that the page uses, until `regard.serving.app` has them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse, Response

import regard
from regard.serving import page
from regard.serving.page import Form

LANGUAGES = [
    {"code": "en", "name": "English", "targets": ["de"]}, {"code": "de", "name": "German", "targets": ["en"]},
]  # fmt: skip
LIMIT = 500


def create_app(runs: list[Path], predictor: Path) -> FastAPI:
    app = FastAPI(docs_url=None)
    models = {run.name: regard.load(run) for run in runs}
    other = regard.load(predictor)
    files: dict[str, str] = {}

    def spans(text: str) -> list[tuple[int, int]]:
        return [match.span() for match in re.finditer(r"\S+", text)]

    def describe(model: regard.Model, sentence: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        best = model.predict(sentence, beam=4, nbest=3)
        [alignment] = model.align([(sentence, best.text)], tokens=False)
        found: dict[str, Any] = {
            "source": sentence, "text": best.text, "words": spans(best.text), "source_words": spans(sentence),
            "links": sorted(alignment.links), "alternatives": [{"text": each.text} for each in best.alternatives],
        }  # fmt: skip
        if fields["regard"].get("attention"):
            weights = best.attention.tolist()
            found["attention"] = {"source_tokens": best.source_tokens, "tokens": best.tokens, "weights": weights}
        return found

    def translate(fields: Mapping[str, Any]) -> dict[str, Any]:
        text, source = fields["q"], fields["source"]
        detected = "de" if "ist" in text.split() else "en"
        model = models[f"{detected if source == 'auto' else source}-{fields['target']}"]
        sentences: list[dict[str, Any]] = []
        texts: list[list[str]] = [[], []]
        for match in re.finditer(r"(\s*)([^.\s][^.\n]*\.?)|\s+", text):
            space, sentence = match[1] or "", match[2]
            found = describe(model, sentence, fields) if sentence else {"text": match[0], "alternatives": []}
            for rank, parts in enumerate(texts):
                parts.append(space + [found, *found["alternatives"]][min(rank, len(found["alternatives"]))]["text"])
            if sentence:
                sentences.append({**found, "start": match.start(2)})
        answer: dict[str, Any] = {"translatedText": "".join(texts[0]), "alternatives": ["".join(texts[1])]}
        answer["regard"] = {"sentences": sentences}
        return answer | ({"detectedLanguage": {"language": detected, "confidence": 90}} if source == "auto" else {})

    @app.get("/")
    async def get_page() -> Response:
        return HTMLResponse(page.render(LANGUAGES, [predictor.name], LIMIT), headers=page.HEADERS)

    @app.post("/")
    async def post_form(request: Request) -> Response:
        fields: dict[str, Any] = {**(await request.form()), "regard": {}}
        found = translate(fields)
        form = Form(fields["q"], fields["source"], fields["target"], found["translatedText"], found["alternatives"],
                    found.get("detectedLanguage", {}).get("language", ""))  # fmt: skip
        return HTMLResponse(page.render(LANGUAGES, [predictor.name], LIMIT, form), headers=page.HEADERS)

    @app.get("/translate.js")
    @app.get("/translate.css")
    async def get_file(request: Request) -> Response:
        name = request.url.path[1:]
        return Response(page.read_static(name), headers=page.HEADERS | {"Content-Type": page.CONTENT_TYPES[name]})

    @app.get("/languages")
    async def get_languages() -> Any:
        return LANGUAGES

    @app.get("/models")
    async def get_models() -> Any:
        return [{"name": predictor.name, "kind": "predict"}, *({"name": n, "kind": "translate"} for n in models)]

    @app.get("/frontend/settings")
    async def get_settings() -> Any:
        return {
            "charLimit": LIMIT, "keyRequired": False, "filesTranslation": True, "supportedFilesFormat": [".txt"],
        }  # fmt: skip

    @app.post("/translate")
    async def post_translation(request: Request) -> Any:
        return translate(await request.json())

    @app.post("/predict")
    async def post_prediction(request: Request) -> Any:
        fields = await request.json()
        return {"model": fields["model"], "predictions": [describe(other, fields["q"], fields)]}

    @app.post("/translate_file")
    async def post_file(request: Request) -> Any:
        async with request.form() as form:
            file: Any = form["file"]
            fields: dict[str, Any] = {**form, "regard": {}, "q": (await file.read()).decode()}
        found = translate(fields)
        files["1.txt"] = found["translatedText"]
        return {"translatedFileUrl": "http://other:1/download_file/1.txt"}

    @app.get("/download_file/{name}")
    async def get_download(name: str) -> Response:
        return Response(files[name], media_type="text/plain")

    @app.get("/explore")
    async def explore(q: str, source: str, target: str) -> Response:
        return HTMLResponse(models[f"{source}-{target}"].trace(q).to_html())

    return app
