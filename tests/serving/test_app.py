"""The API of the server, with models that were trained for a few steps: the texts are wrong, but always the same."""

import json
import re
import shutil
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.runs.folder import RunFolder
from regard.serving.settings import AppOptions, Loading, ModelAddress, RequestLimits
from tests_app import Client, open_client
from tests_documents import pack, unpack

TEXT = "3 mai 2009"


@pytest.fixture(scope="module")
def model(small_run: RunFolder) -> regard.Model:
    return regard.load(small_run.path, device="cpu")


@pytest.fixture(scope="module")
def client(small_run: RunFolder) -> Iterator[Client]:
    """A server of a model that translates from English to German, and of the same model without languages."""
    addresses = (ModelAddress(path=str(small_run.path), languages=("en", "de")),)
    with open_client(AppOptions(loading=Loading(models=addresses), limits=RequestLimits(characters=2_000))) as opened:
        yield opened


def _translate(client: Client, **fields: Any) -> Any:
    response = client.post("/translate", json={"source": "en", "target": "de", **fields})
    assert response.status_code == 200, response.text
    return response.json()


def _search(model: regard.Model) -> dict[str, Any]:
    return model.settings.training.validation_search.model_dump()


def test_a_translation_is_the_prediction_of_the_model(client: Client, model: regard.Model) -> None:
    assert _translate(client, q=TEXT) == {"translatedText": model.predict(TEXT, **_search(model)).text}


def test_json_form_multipart_and_query_are_accepted(client: Client) -> None:
    fields = {"q": TEXT, "source": "en", "target": "de"}
    answers = [
        client.post("/translate", json=fields),
        client.post("/translate", data=fields),
        client.post("/translate", files={name: (None, value) for name, value in fields.items()}),
        client.post("/translate", params=fields),
    ]
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].status_code == 200


def test_a_list_of_texts_is_translated_in_order(client: Client) -> None:
    texts = [TEXT, "May 3, 2009", "", TEXT]
    expected = [_translate(client, q=text)["translatedText"] for text in texts]
    assert _translate(client, q=texts)["translatedText"] == expected


def test_white_space_and_blank_lines_are_kept(client: Client) -> None:
    translated = _translate(client, q=f"  {TEXT}\r\n\r\n\t{TEXT}\n")["translatedText"]
    one = _translate(client, q=TEXT)["translatedText"]
    assert translated == f"  {one}\r\n\r\n\t{one}\n"


def test_markup_is_kept(client: Client) -> None:
    translated = _translate(client, q=f"<p class=a>{TEXT}</p><pre>{TEXT}</pre>", format="html")["translatedText"]
    assert translated == f"<p class=a>{_translate(client, q=TEXT)['translatedText']}</p><pre>{TEXT}</pre>"


def test_the_language_is_detected_among_those_of_the_models(client: Client) -> None:
    answer = _translate(client, q="This is a sentence.", source="auto")
    assert answer["detectedLanguage"]["language"] == "en"


def test_alternatives_are_the_next_best_predictions(client: Client, model: regard.Model) -> None:
    answer = _translate(client, q=TEXT, alternatives=2)
    best = model.predict(TEXT, **{**_search(model), "beam": 3, "nbest": 3})
    texts = [best.text, *(each.text for each in best.alternatives)]
    assert [answer["translatedText"], *answer["alternatives"]] == texts


def test_scores_and_word_alignments_are_those_of_the_model(client: Client, model: regard.Model) -> None:
    answer = _translate(client, q=TEXT, regard={"align": True, "scores": True, "beam": 2})
    [sentence] = answer["regard"]["sentences"]
    expected = model.predict(TEXT, **{**_search(model), "beam": 2})
    assert sentence["text"] == expected.text
    assert sentence["score"] == pytest.approx(expected.score, abs=1e-5)
    [alignment] = model.align([(TEXT, expected.text)], tokens=False)
    assert [tuple(link) for link in sentence["links"]] == sorted(alignment.links)
    assert [TEXT[start:end] for start, end in sentence["source_words"]] == TEXT.split()


def test_the_weights_are_those_of_the_model(client: Client, model: regard.Model) -> None:
    [sentence] = _translate(client, q=TEXT, regard={"attention": True})["regard"]["sentences"]
    expected = model.predict(TEXT, **_search(model))
    assert sentence["attention"]["tokens"] == expected.tokens
    assert sentence["attention"]["weights"] == pytest.approx(expected.attention, abs=1e-5)


def test_sentences_have_their_position_in_the_text(client: Client) -> None:
    text = f"{TEXT}\n{TEXT}\n\nMay 3, 2009"
    sentences = _translate(client, q=text, regard={})["regard"]["sentences"]
    assert [text[each["start"] :].startswith(each["source"]) for each in sentences] == [True] * 3
    assert [each["start"] for each in sentences] == [0, 11, 23]


def test_constraints_hold(client: Client) -> None:
    constraints = {"prefix": "19", "must_contain": ["-05-"], "beam": 4}
    [sentence] = _translate(client, q=TEXT, regard=constraints)["regard"]["sentences"]
    assert sentence["text"].startswith("19")
    assert "-05-" in sentence["text"]


def test_concurrent_requests_get_the_answers_that_they_get_alone(client: Client) -> None:
    texts = [f"{day} mai {year}" for day in range(1, 11) for year in (1989, 2009)]
    alone = [_translate(client, q=text)["translatedText"] for text in texts]
    with ThreadPoolExecutor(10) as pool:
        together = list(pool.map(lambda text: _translate(client, q=text)["translatedText"], texts))
    assert together == alone


def test_a_model_predicts_without_splitting_the_text(client: Client, model: regard.Model) -> None:
    text = f"{TEXT}. {TEXT}."
    answer = client.post("/predict", json={"q": [text, ""], "alternatives": 1}).json()
    assert answer["model"] == "small"
    first, empty = answer["predictions"]
    expected = model.predict(text, **{**_search(model), "beam": 2, "nbest": 2})
    assert (first["text"], first["alternatives"][0]["text"]) == (expected.text, expected.alternatives[0].text)
    assert empty["text"] == ""


def test_a_stream_grows_by_a_token_and_ends_with_the_greedy_prediction(client: Client, model: regard.Model) -> None:
    response = client.get("/stream", params={"q": TEXT, "model": "small"})
    *parts, last, end = [
        json.loads(line[6:])["text"] for line in response.text.splitlines() if line.startswith("data: ")
    ]
    assert end == last == model.predict(TEXT).text  # without the loops of greedy search
    assert all(later.startswith(earlier) for earlier, later in pairwise(parts))
    assert "event: end" in response.text


def test_a_file_is_translated_and_downloaded(client: Client) -> None:
    answer = client.post(
        "/translate_file", files={"file": ("a.txt", f"{TEXT}\n")}, data={"source": "en", "target": "de"}
    ).json()
    downloaded = client.get(answer["translatedFileUrl"].partition("8000")[2] or answer["translatedFileUrl"])
    assert downloaded.text == _translate(client, q=f"{TEXT}\n")["translatedText"]
    assert "attachment" in downloaded.headers["content-disposition"]


def test_an_office_document_is_translated(client: Client) -> None:
    source = pack({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": f"<x><p>{TEXT}</p></x>"})
    answer = client.post("/translate_file", files={"file": ("A.ODT", source)}, data={"source": "en", "target": "de"})
    downloaded = client.get(answer.json()["translatedFileUrl"])
    assert downloaded.headers["content-type"] == "application/vnd.oasis.opendocument.text"
    expected = _translate(client, q=TEXT)["translatedText"]
    assert unpack(downloaded.content)["content.xml"].decode() == f"<x><p>{expected}</p></x>"


def test_a_damaged_document_is_rejected(client: Client) -> None:
    answer = client.post("/translate_file", files={"file": ("a.docx", b"x")}, data={"source": "en", "target": "de"})
    assert answer.status_code == 400
    assert answer.json() == {"error": "a.docx is damaged: File is not a zip file. Save it again."}


def test_the_formats_of_files_are_listed(client: Client) -> None:
    settings = client.get("/frontend/settings").json()
    assert settings["filesTranslation"]
    assert {".docx", ".epub", ".odp", ".ods", ".odt", ".pptx", ".txt"} <= set(settings["supportedFilesFormat"])


@pytest.mark.parametrize("name", ["..%2F..%2Fetc%2Fpasswd", "missing.txt", "%00", "a" * 300, f"{'a' * 32}.txt"])
def test_only_translated_files_can_be_downloaded(client: Client, name: str) -> None:
    assert client.get(f"/download_file/{name}").status_code == 404


def test_the_explorer_shows_the_sentence(client: Client) -> None:
    page = client.get("/explore", params={"q": TEXT, "source": "en", "target": "de"})
    assert page.headers["content-type"].startswith("text/html")
    assert TEXT in page.text


def test_the_form_of_the_page_translates_without_javascript(client: Client) -> None:
    page = client.post("/", data={"q": TEXT, "source": "en", "target": "de"})
    assert _translate(client, q=TEXT)["translatedText"] in page.text
    failed = client.post("/", data={"q": "<b>", "source": "en", "target": "xx"})
    assert failed.status_code == 400
    assert "xx is not supported" in failed.text
    assert "<b>" not in failed.text


@pytest.mark.parametrize(
    ("path", "fields", "status", "message"),
    [
        ("/translate", {"source": "en", "target": "de"}, 400, "Invalid request: missing q parameter"),
        ("/translate", {"q": "a", "target": "de"}, 400, "Invalid request: missing source parameter"),
        (
            "/translate",
            {"q": "a", "source": "fr", "target": "de"},
            400,
            "fr → de is not supported. Available: en → de.",
        ),
        (
            "/translate",
            {"q": "a", "source": "en", "target": "fr"},
            400,
            "en → fr is not supported. Available: en → de.",
        ),
        ("/translate", {"q": "a", "source": "auto", "target": "fr"}, 400, "fr is not supported"),
        ("/translate", {"q": "a" * 2_001, "source": "en", "target": "de"}, 400, r"request \(2001\) exceeds text limit"),
        ("/translate", {"q": {"a": 1}, "source": "en", "target": "de"}, 400, "Invalid request: q"),
        ("/translate", {"q": "a", "source": "en", "target": "de", "format": "pdf"}, 400, "'text' or 'html'"),
        ("/translate", {"q": "a", "source": "en", "target": "de", "alternatives": -1}, 400, "alternatives"),
        ("/translate", {"q": "a", "source": "en", "target": "de", "regard": {"beem": 2}}, 400, "beem"),
        ("/predict", {"q": "a", "model": "smal"}, 400, "Did you mean 'small'?"),
        ("/predict", {"q": "a", "regard": {"must_contain": ["☃"]}}, 400, "☃"),
        ("/detect", {}, 400, "Invalid request: missing q parameter"),
        ("/caption", {"q": "a"}, 400, "missing image parameter"),
        ("/translate_file", {"source": "en", "target": "de"}, 400, "missing file parameter"),
    ],
)
def test_a_request_that_is_not_valid_is_answered_with_the_reason(
    client: Client, path: str, fields: dict[str, Any], status: int, message: str
) -> None:
    response = client.post(path, json=fields)
    assert response.status_code == status
    assert re.search(message, response.json()["error"])


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"[1]", "application/json", 400),
        (b'{"q": ', "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"q=a", "text/plain", 415),
        (b"--x", "multipart/form-data; boundary=y", 400),
        (b"x", "multipart/form-data", 400),
    ],
)
def test_a_body_that_cannot_be_read_is_answered_with_the_reason(
    client: Client, body: bytes, kind: str, status: int
) -> None:
    response = client.post("/translate", content=body, headers={"Content-Type": kind})
    assert response.status_code == status
    assert response.json()["error"]


def test_scripts_of_other_sites_may_use_the_api(client: Client) -> None:
    response = client.post(
        "/translate", json={"q": TEXT, "source": "en", "target": "de"}, headers={"Origin": "http://a"}
    )
    assert response.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in response.headers


def test_unknown_paths_and_methods_are_answered_as_json(client: Client) -> None:
    assert client.get("/missing").json() == {"error": "There is no /missing."}
    assert client.get("/translate").status_code == 405


def test_languages_and_models_are_listed(client: Client) -> None:
    for response in (client.get("/languages"), client.post("/languages")):
        assert response.json() == [
            {"code": "en", "name": "English", "targets": ["de"]},
            {"code": "de", "name": "German", "targets": []},
        ]
    [listed] = client.get("/models").json()
    assert (listed["name"], listed["kind"], listed["source"], listed["target"]) == ("small", "translate", "en", "de")


def test_every_endpoint_is_described(client: Client) -> None:
    document = client.get("/openapi.json").json()
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert all(operation["description"] for operation in operations)
    page = client.get("/docs").text
    assert all(path in page for path in document["paths"])
    assert not re.search(r"(src|href)=['\"]?(https?:)?//", page)


def test_a_new_model_replaces_the_old_one_and_a_broken_one_does_not(
    small_run: RunFolder, second_run: RunFolder, tmp_path: Path
) -> None:
    served = tmp_path / "served"
    shutil.copytree(small_run.path, served)
    loading = Loading(models=(ModelAddress(path=str(served), languages=("en", "de")),))
    with open_client(AppOptions(loading=loading, watch=0)) as client:
        first = _translate(client, q=TEXT)
        weights = next(served.glob("checkpoints/*/model.safetensors"))
        content = weights.read_bytes()
        weights.write_bytes(content[: len(content) // 2])
        for path in served.glob("checkpoints/*/model.safetensors"):
            path.write_bytes(content[:100])
        assert not client.reload()
        assert _translate(client, q=TEXT) == first
        previous = weakref.ref(client.app.state.session.catalog)
        shutil.rmtree(served)
        shutil.copytree(second_run.path, served)
        assert client.reload()
        assert previous() is None  # its memory is free
        second = regard.load(second_run.path, device="cpu")
        assert _translate(client, q=TEXT)["translatedText"] == second.predict(TEXT, **_search(second)).text


def test_new_weights_in_the_folder_are_noticed_when_they_are_complete(
    small_run: RunFolder, second_run: RunFolder, tmp_path: Path
) -> None:
    served = tmp_path / "served"
    shutil.copytree(small_run.path, served)
    loading = Loading(models=(ModelAddress(path=str(served), languages=("en", "de")),))
    with open_client(AppOptions(loading=loading, watch=0.01)) as client:
        expected = regard.load(second_run.path, device="cpu")
        answer = expected.predict(TEXT, **_search(expected)).text
        assert _translate(client, q=TEXT)["translatedText"] != answer
        shutil.rmtree(served)
        while client.get("/ready").status_code != 200:
            pass
        shutil.copytree(second_run.path, served)
        while _translate(client, q=TEXT)["translatedText"] != answer:
            pass


def test_no_request_fails_while_models_are_replaced(small_run: RunFolder) -> None:
    loading = Loading(models=(ModelAddress(path=str(small_run.path), languages=("en", "de")),))
    with open_client(AppOptions(loading=loading, watch=0)) as client:
        expected, ended = _translate(client, q=TEXT), threading.Event()

        def ask() -> set[str]:
            answers = set()
            while not ended.is_set():
                answers.add(json.dumps(_translate(client, q=TEXT)))
            return answers

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask) for _ in range(4)]
            assert all(client.reload() for _ in range(3))
            ended.set()
            assert {answer for each in asking for answer in each.result()} == {json.dumps(expected)}


def test_a_server_that_shuts_down_is_not_ready(client: Client) -> None:
    assert client.get("/ready").json()["models"] == ["small"]
    client.app.state.is_draining = True
    try:
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200
    finally:
        client.app.state.is_draining = False


def test_a_request_without_a_result_in_time_is_cancelled(small_run: RunFolder) -> None:
    loading = Loading(models=(ModelAddress(path=str(small_run.path), languages=("en", "de")),), batch_wait=3600)
    options = AppOptions(loading=loading, limits=RequestLimits(timeout=0.05))
    with open_client(options) as client:
        response = client.post("/translate", json={"q": TEXT, "source": "en", "target": "de"})
        assert response.status_code == 504
        assert client.app.state.session.catalog.queued == 0
