"""The API of the explorer, with real models."""

import asyncio
import base64
import hashlib
import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from PIL import Image

import regard
from regard.explorer.app import create_app
from regard.explorer.corpus import BATCH, compute_coverage, compute_entropy
from regard.explorer.served_model import load_models
from regard.inspection.attribution import methods as attribution_methods
from regard.inspection.trace.document import read_array
from tests_explorer import ACCESS, ORIGIN, post, send

GRU, TRANSFORMER, CAPTIONER = "0", "1", "2"
TEXT = "3 mai 2009"


def make_request(model: str = GRU, text: str = TEXT, **fields: Any) -> dict[str, Any]:
    return {"model": model, "source": {"text": text}, **fields}


def encode_image(format: str = "PNG", size: tuple[int, int] = (64, 48), mode: str = "RGB") -> str:  # noqa: A002
    buffer = io.BytesIO()
    Image.new(mode, size, "red" if mode == "RGB" else 0).save(buffer, format)
    return base64.b64encode(buffer.getvalue()).decode()


def test_models_are_described_with_their_attentions(app: FastAPI, runs: list[Path]) -> None:
    models = send(app, "GET", "/api/models").json()
    assert [model["id"] for model in models] == [GRU, TRANSFORMER, CAPTIONER]
    assert [model["name"] for model in models] == [run.name for run in runs]
    assert [model["source_kind"] for model in models] == ["text", "text", "image"]
    assert [entry["role"] for entry in models[1]["attentions"]].count("cross") == 2
    assert models[1]["attentions"][0]["heads"] == 2
    assert models[0]["attentions"][0]["equation"] == "e = vᵀ tanh(W q + U k)"
    assert models[0]["metrics"]["loss"] > 0
    assert len(models[0]["examples"]) == 8
    assert models[2]["examples"] == []
    assert [model["split"] for model in models] == ["test"] * 3


def test_without_a_test_set_examples_are_from_the_dev_set(captioners_without_test_set: list[Path]) -> None:
    app = create_app(load_models(list(map(str, captioners_without_test_set))), ACCESS)
    assert [model["split"] for model in send(app, "GET", "/api/models").json()] == ["dev", None]
    example = {"model": "0", "source": {"example": 0}}
    assert post(app, "/api/trace", example).json()["source"]["picture"] is not None
    beyond = post(app, "/api/trace", {"model": "0", "source": {"example": 3}})
    assert "the dev set has 3 pairs" in beyond.json()["error"]["message"]
    head = read_lines(post(app, "/api/corpus", {"model": "0"}).text)[0]
    assert (head["split"], head["total"], head["size"]) == ("dev", 3, 3)
    for path, body in (("/api/trace", {**example, "model": "1"}), ("/api/corpus", {"model": "1"})):
        message = post(app, path, body).json()["error"]["message"]
        assert "missing" in message
        assert message.endswith("Open an image instead.")
        assert "--" not in message
    opened = {"model": "1", "source": {"image": encode_image()}}
    assert post(app, "/api/trace", opened).status_code == 200


def test_the_card_has_settings_and_learning_curves(app: FastAPI) -> None:
    card = send(app, "GET", f"/api/models/{GRU}/card").json()
    assert "hidden: 16" in card["settings"]
    assert "about: ''" in card["settings"]  # it described the preset, whose model is larger
    loss = next(curve for curve in card["curves"] if curve["name"] == "loss" and curve["validated"])
    assert [step for step, _ in loss["points"]] == [10, 20, 30]


@pytest.mark.parametrize("model", [GRU, TRANSFORMER])
def test_a_trace_is_that_of_the_model(app: FastAPI, runs: list[Path], model: str) -> None:
    request = make_request(model, search={"beam": 3, "nbest": 2}, queries=True, states=True, candidates=4)
    document = post(app, "/api/trace", request).json()
    trace = regard.load(runs[int(model)]).trace(TEXT, beam=3, nbest=2, queries=True, states=True, candidates=4)
    assert {name: document[name] for name in trace.document} == json.loads(json.dumps(trace.document))


def test_edits_are_decoded_again_by_the_model(app: FastAPI, runs: list[Path]) -> None:
    edits = [
        {"kind": "replace_source", "position": 1, "text": "juin"},
        {"kind": "force_token", "step": 0, "token": "1"},
    ]
    document = post(app, "/api/trace", make_request(edits=edits)).json()
    trace = regard.load(runs[0]).trace(TEXT, edits=edits)
    assert document["source"]["text"] == "3 juin 2009"
    assert document["hypotheses"][0]["tokens"][0] == "1"
    assert {name: document[name] for name in trace.document} == json.loads(json.dumps(trace.document))
    assert not post(app, "/api/trace", make_request(edits=edits[:1])).json()["cached"]


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([{"kind": "force_tokn", "step": 0, "token": "1"}], "Did you mean 'force_token'"),
        ([{"kind": "ablate_head", "attention": "decoder.attention", "head": 5}], "edits[0]"),
        ([{"kind": "replace_source", "position": 10**30, "text": ""}], "edits[0]"),
        ([{"kind": "delete_source", "position": 0}] * 51, "50"),
        ([{"kind": "replace_source", "position": 0, "text": "x" * 200_000}], "characters"),
        ([{}], "kind"),
        ([[]], "edits"),
    ],
)
def test_a_wrong_edit_is_rejected_with_the_reason(app: FastAPI, edits: list[Any], message: str) -> None:
    response = post(app, "/api/trace", make_request(edits=edits))
    assert response.status_code == 422
    assert message in response.json()["error"]["message"]


def test_cells_of_an_image_are_masked(app: FastAPI) -> None:
    request = {"model": CAPTIONER, "source": {"example": 0}}
    before, after = (
        read_array(post(app, "/api/trace", {**request, "edits": edits}).json()["source"]["picture"])
        for edits in ([], [{"kind": "mask_region", "cells": [0]}])
    )
    assert (before != after).any()
    assert (before[-1] == after[-1]).all()


def test_a_given_target_is_traced(app: FastAPI) -> None:
    document = post(app, "/api/trace", make_request(target="2009-05-03")).json()
    assert document["hypotheses"][0]["text"] == "2009-05-03"


def test_a_repeated_request_is_answered_from_the_cache_bit_by_bit(app: FastAPI) -> None:
    request = make_request(text="4 juin 2011", search={"beam": 2})
    first, second = (post(app, "/api/trace", request) for _ in range(2))
    assert (first.json()["cached"], second.json()["cached"]) == (False, True)
    assert first.content.partition(b'"format"')[2] == second.content.partition(b'"format"')[2]
    assert not post(app, "/api/trace", {**request, "candidates": 3}).json()["cached"]


def test_a_summary_has_averages_and_all_heads_follow_on_demand(app: FastAPI) -> None:
    request = make_request(TRANSFORMER)
    complete = post(app, "/api/trace", request).json()["attention"]
    summary = post(app, "/api/trace", {**request, "summary": True}).json()["attention"]
    for entry, average in zip(complete, summary, strict=True):
        expected = read_array(entry).astype(np.float32).mean(0)
        assert np.abs(read_array(average) - expected).max() < 1e-3
    names = [complete[-1]["name"]]
    selected = post(app, "/api/attention", {**request, "names": names}).json()["attention"]
    assert selected == [entry for entry in complete if entry["name"] in names]
    unknown = post(app, "/api/attention", {**request, "names": ["decoder.attenton"]})
    assert unknown.status_code == 422


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
def test_an_image_is_captioned(app: FastAPI, format: str) -> None:  # noqa: A002
    request = {"model": CAPTIONER, "source": {"image": encode_image(format)}}
    document = post(app, "/api/trace", request).json()
    assert document["source"]["grid"] is not None
    red = read_array(document["source"]["picture"])
    assert red[..., 0].min() > 200
    assert red[..., 1:].max() < 60


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"image": "not base64"}, "base64"),
        ({"image": base64.b64encode(b"GIF89a").decode()}, "Use a PNG or JPEG or WEBP file"),
        ({"image": encode_image()[:60]}, "The image"),
        ({"image": encode_image("BMP")}, "Use a PNG or JPEG or WEBP file"),
        ({"image": encode_image(size=(20_000, 5_000), mode="1")}, "too many pixels"),
        ({"text": "/etc/hostname.png"}, "kind image"),
        ({"example": 4}, "4 pairs"),
    ],
)
def test_a_source_that_cannot_be_read_is_an_error_with_a_reason(
    app: FastAPI, source: dict[str, Any], message: str
) -> None:
    response = post(app, "/api/trace", {"model": CAPTIONER, "source": source})
    assert response.status_code == 422
    assert message in response.json()["error"]["message"]


def test_an_image_of_the_test_set_can_be_traced(app: FastAPI) -> None:
    document = post(app, "/api/trace", {"model": CAPTIONER, "source": {"example": 0}}).json()
    assert document["source"]["picture"] is not None


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"model": "9"}, 404, "model"),
        ({"model": 0}, 422, "model"),
        ({"source": {"text": "x" * 2001}}, 422, "source"),
        ({"source": {"image": encode_image()}}, 422, None),
        ({"search": {"beam": 21}}, 422, "search.beam"),
        ({"search": {"beams": 2}}, 422, "search.beams"),
        ({"search": {"beam": 2, "sample": True}}, 422, None),
        ({"search": {"prefix": "字"}}, 422, None),
        ({"candidates": 51}, 422, "candidates"),
        ({"path": "runs/other"}, 422, "path"),
    ],
)
def test_a_request_outside_the_limits_is_rejected_with_its_field(
    app: FastAPI, change: dict[str, Any], status: int, field: str | None
) -> None:
    response = post(app, "/api/trace", {**make_request(), **change})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["message"]
    assert (error["field"] or "").startswith(field or "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"serch": {}}, "serch: unknown field. Did you mean 'search'? Available: model, source, search, "),
        ({"search": {"beams": 2}}, "search.beams: unknown field. Did you mean 'beam'? Available: beam, nbest, "),
        ({"source": {"text": "x", "txt": ""}}, "source.TextSource.txt: unknown field. Did you mean 'text'?"),
    ],
)
def test_an_unknown_field_is_reported_with_the_nearest_name(app: FastAPI, change: dict[str, Any], message: str) -> None:
    response = post(app, "/api/trace", {**make_request(), **change})
    assert response.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"model": NaN}', b"[" * 100_000, b'"\\ud800"'])
def test_a_body_that_is_not_a_request_is_rejected(app: FastAPI, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    assert send(app, "POST", "/api/trace", content=body, headers=headers).status_code in (400, 422)


def test_other_paths_and_methods_are_json_errors(app: FastAPI) -> None:
    assert send(app, "GET", "/api/runs").json()["error"]["message"] == "There is no /api/runs."
    assert send(app, "GET", "/api/trace").status_code == 405
    assert send(app, "GET", "/../pyproject.toml").status_code == 404
    assert send(app, "GET", "/openapi.json").status_code == 404


def read_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_corpus_streams_the_predictions_of_the_test_set(app: FastAPI, runs: list[Path]) -> None:
    lines = read_lines(post(app, "/api/corpus", {"model": GRU, "limit": 20}).text)
    rows = [row for line in lines[1:] for row in line["rows"]]
    assert (lines[0]["split"], lines[0]["total"]) == ("test", 20)
    assert lines[-1]["progress"] == 1
    assert [row["index"] for row in rows] == list(range(20))
    prediction = regard.load(runs[0]).predict([row["source"] for row in rows])[7]
    assert (rows[7]["prediction"], rows[7]["length"]) == (prediction.text, len(prediction.source_tokens))
    assert rows[7]["score"] == pytest.approx(prediction.score)
    assert rows[7]["entropy"] == pytest.approx(compute_entropy(prediction.attention))


@pytest.mark.parametrize("model", [GRU, TRANSFORMER])
def test_attributions_are_streamed_method_by_method(app: FastAPI, runs: list[Path], model: str) -> None:
    methods = ["gradient_x_input", "occlusion"]
    lines = read_lines(post(app, "/api/attribution", make_request(model, methods=methods)).text)
    shares = [line["progress"] for line in lines if "progress" in line]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)
    assert len(set(shares)) > len(methods) + 1
    results = [line["result"] for line in lines if "result" in line]
    loaded = regard.load(runs[int(model)])
    for method, result in zip(methods, results, strict=True):
        expected = loaded.attribute(TEXT, method=method)  # type: ignore[arg-type] # one of the names
        assert result["method"] == method
        assert result["tokens"] == expected.tokens
        np.testing.assert_allclose(read_array(result), expected.scores, rtol=1e-4, atol=1e-6)


def test_an_attribution_can_contrast_two_tokens(app: FastAPI) -> None:
    request = make_request(target="2009-05-03", methods=["occlusion"])
    [result] = [
        line["result"]
        for line in read_lines(post(app, "/api/attribution", {**request, "contrast": "2009-06-03"}).text)
        if "result" in line
    ]
    assert read_array(result).shape[0] == 1
    same = read_lines(post(app, "/api/attribution", {**request, "contrast": {"step": 0, "token": "2"}}).text)
    assert "is the token of the target" in same[-1]["error"]["message"]


def test_entropy_and_coverage_of_weights() -> None:
    uniform, one = np.full((2, 4), 0.25, np.float32), np.eye(4, dtype=np.float32)[:2]
    assert compute_entropy(uniform) == pytest.approx(1)
    assert compute_entropy(one) == pytest.approx(0)
    assert compute_coverage(uniform) == pytest.approx(0.5)
    assert compute_coverage(one) == pytest.approx(0.5)
    assert compute_entropy(np.zeros((0, 3), np.float32)) is None


def disconnect_after(app: FastAPI, path: str, request: dict[str, Any], marker: bytes) -> None:
    """Send a request, close the connection once the response contains a text, and wait until the model is idle."""

    async def run() -> None:
        gone = asyncio.Event()

        async def receive_response(message: dict[str, Any]) -> None:
            if marker in message.get("body", b""):
                gone.set()

        await send_until(gone, app, path, request, receive_response)
        await app.state.session.models[request["model"]].worker.run(lambda: None)

    asyncio.run(run())


async def send_until(
    gone: asyncio.Event, app: FastAPI, path: str, request: dict[str, Any], receive_response: Callable[..., Any]
) -> None:
    """Send a request, and close the connection when an event is set. Return when the server has ended the request."""
    messages = iter([{"type": "http.request", "body": json.dumps(request).encode(), "more_body": False}])

    async def receive() -> dict[str, Any]:
        message = next(messages, None)
        if message is None:
            await gone.wait()
            return {"type": "http.disconnect"}
        return message

    headers = [(b"host", b"127.0.0.1:7866"), (b"content-type", b"application/json")]
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": headers, "scheme": "http", "server": ("127.0.0.1", 7866), "root_path": "", "http_version": "1.1",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }  # fmt: skip
    await asyncio.wait_for(app(scope, receive, receive_response), 30)
    assert gone.is_set()


def test_a_corpus_is_cancelled_when_the_client_disconnects(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows are sent, then the client is gone: no other batch is predicted."""
    model = app.state.session.models[GRU].model
    predicted: list[int] = []
    predict = model.predict

    def count(sources: list[str], **options: Any) -> Any:
        predicted.append(len(sources))
        return predict(sources, **options)

    monkeypatch.setattr(model, "predict", count)
    disconnect_after(app, "/api/corpus", {"model": GRU, "search": {"beam": 2}, "limit": 40}, b'"rows"')
    assert predicted == [BATCH]


def test_an_attribution_is_cancelled_when_the_client_disconnects(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first report is sent, then the client is gone: the method that is running stops."""
    monkeypatch.setattr(attribution_methods, "MAX_TOKENS", 1)  # one row at a time
    network = app.state.session.models[GRU].model.network
    calls: list[None] = []
    hook = network.register_forward_hook(lambda *_: calls.append(None))
    request = make_request(target="2009-05-03", methods=["integrated_gradients"])
    try:
        disconnect_after(app, "/api/attribution", {**request, "integration_steps": 200}, b'"progress": 0.0')
    finally:
        hook.remove()
    points = 200 * len("2009-05-03")
    assert 0 < len(calls) < points / 2


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("path", ["/api/trace", "/api/attribution", "/api/corpus"])
def test_a_search_is_cancelled_when_the_client_disconnects(app: FastAPI, path: str, beam: int) -> None:
    """The client is gone after the first step: no other step is computed, also of the long search for a phrase."""
    served = app.state.session.models[GRU]
    ended, steps = threading.Event(), 0

    async def run() -> None:
        loop, gone = asyncio.get_running_loop(), asyncio.Event()

        def count(*_: Any) -> None:
            nonlocal steps
            steps += 1
            loop.call_soon_threadsafe(gone.set)
            assert ended.wait(30)

        async def ignore(_: dict[str, Any]) -> None:
            pass

        request: dict[str, Any] = {"model": GRU, "search": {"beam": beam}}
        if path != "/api/corpus":
            request = make_request(search={"beam": beam, "must_contain": ["2009" * 100]})
        hook = served.model.network.decoder.dropout.register_forward_hook(count)  # called once per step
        try:
            await send_until(gone, app, path, request, ignore)
            ended.set()
            await served.worker.run(lambda: None)
        finally:
            ended.set()
            hook.remove()

    asyncio.run(run())
    assert steps == 1


def test_the_event_loop_is_free_while_a_model_computes(app: FastAPI) -> None:
    """A model that is busy does not delay requests that do not need it."""
    served = app.state.session.models[GRU]
    release, started = threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        release.wait(30)

    async def run() -> list[int]:
        import httpx

        busy = asyncio.ensure_future(served.worker.run(block))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=ORIGIN) as client:
            waiting = asyncio.ensure_future(client.post("/api/trace", json=make_request(text="1 juin 1999")))
            other = await asyncio.wait_for(client.post("/api/trace", json=make_request(TRANSFORMER)), 30)
            assert not waiting.done()
            release.set()
            await busy
            return [other.status_code, (await waiting).status_code]

    assert asyncio.run(run()) == [200, 200]
    assert started.is_set()


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "مايو ٣", "🙂 2009年", "<!--", "\u2028"])
def test_text_of_any_script_stays_text(app: FastAPI, text: str) -> None:
    document = post(app, "/api/trace", make_request(text=text))
    assert document.json()["source"]["text"] == text
    assert document.headers["content-type"] == "application/json"


def test_an_exported_page_may_only_run_the_bundle(app: FastAPI) -> None:
    """The policy names the script and the style by their hashes, and no other source."""
    page = send(app, "GET", "/api/page").text
    policy = page.partition('content="default-src')[2].partition('"')[0]
    [script] = [part.partition("</script>")[0] for part in page.split("<script>")[1:]]
    [style] = [part.partition("</style>")[0] for part in page.split("<style>")[1:]]
    for code in (script, style):
        assert base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() in policy
    assert "unsafe" not in policy
    assert 'src="' not in page.replace(script, "")
    assert "connect-src" not in policy


def test_the_page_is_served(app: FastAPI) -> None:
    page = send(app, "GET", "/")
    assert page.headers["content-type"].startswith("text/html")
    assert "<explorer-app>" in page.text
    assert "javascript" in send(app, "GET", "/app.js").headers["content-type"]
    assert send(app, "GET", "/app.css").headers["content-type"].startswith("text/css")


def test_responses_are_compressed_for_clients_that_accept_it(app: FastAPI) -> None:
    body = {"model": TRANSFORMER, "source": {"text": TEXT}}
    for method, path, sent in (("GET", "/app.js", None), ("GET", "/api/models", None), ("POST", "/api/trace", body)):
        compressed, plain = (
            send(app, method, path, json=sent, headers={"Origin": ORIGIN, "Accept-Encoding": encoding})
            for encoding in ("gzip", "identity")
        )
        assert compressed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        assert plain.status_code == 200
        if not sent:  # a trace contains the time of the request
            assert compressed.content == plain.content
