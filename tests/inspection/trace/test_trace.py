"""Traces: the steps and the beam of a search, and the document that contains them."""

import base64
import contextlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.data.tokens.tokenizers import END
from regard.errors import ConfigError, DataError
from regard.inspection.prediction import Prediction
from regard.inspection.trace.document import StoredSource
from regard.models.contracts import Grid
from regard.runs.folder import RunFolder
from tests_html import Page
from tests_shared import SMALL, thin

SEARCHES: list[dict[str, Any]] = [
    {},
    {"beam": 3, "nbest": 3},
    {"beam": 4, "groups": 2, "nbest": 2, "coverage_penalty": 0.2},
    {"sample": True, "nbest": 2, "top_k": 5},
    {"mbr_samples": 3},
    {"beam": 2, "prefix": "19", "banned": ["2"]},
]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    path = tmp_path_factory.mktemp("runs") / "transformer"
    options = {key: value for key, value in SMALL.items() if not key.startswith("model.")}
    size = {"model": "transformer", "model.size": 16, "model.heads": 2, "model.layers": 2, "model.feedforward": 16}
    regard.train("dates", {**options, **size}, out=path)
    return RunFolder(path)


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    path = tmp_path_factory.mktemp("runs") / "fixed"
    regard.train("dates", {**SMALL, "model": "fixed"}, out=path)
    return RunFolder(path)


@pytest.fixture(params=["recurrent", "transformer", "fixed", "ensemble"])
def model(
    request: pytest.FixtureRequest, small_run: RunFolder, transformer: RunFolder, fixed: RunFolder
) -> regard.Model:
    folders = {"recurrent": [small_run], "transformer": [transformer], "fixed": [fixed]}
    return regard.load(*(folder.path for folder in folders.get(request.param, [small_run, transformer])))


@pytest.mark.parametrize("search", thin(SEARCHES, 2), ids=str)
def test_steps_add_up_to_the_score_of_each_hypothesis(model: regard.Model, search: dict[str, Any]) -> None:
    trace = model.trace("3 mai 2009", **search)
    predicted = model.predict("3 mai 2009", **search)
    assert trace.prediction.text == predicted.text
    hypotheses = [trace.prediction, *trace.prediction.alternatives]
    assert [each.text for each in hypotheses] == [predicted.text, *(each.text for each in predicted.alternatives)]
    for hypothesis, steps in zip(hypotheses, trace.steps, strict=True):
        tokens = [*hypothesis.tokens, *([] if hypothesis.truncated else ["</s>"])]
        assert [step.token for step in steps] == tokens
        assert sum(step.log_prob for step in steps) == pytest.approx(hypothesis.score, abs=1e-4)
        for step in steps:
            assert len(step.top) == 10
            log_probs = [candidate.log_prob for candidate in step.top]
            assert log_probs == sorted(log_probs, reverse=True)
            assert step.log_prob <= log_probs[0]
            assert 0 <= step.entropy <= math.log(len(model.predictor.tokenizer))
            for candidate in step.top:
                assert candidate.token == model.predictor.tokenizer.tokens([candidate.id])[0]


def test_the_weights_of_a_trace_are_those_of_the_prediction(model: regard.Model) -> None:
    trace, predicted = model.trace("3 mai 2009", beam=2), model.predict("3 mai 2009", beam=2)
    assert list(trace.prediction.attentions) == list(predicted.attentions)
    for name, weights in predicted.attentions.items():
        np.testing.assert_allclose(trace.prediction.attentions[name], weights, atol=1e-6)
    assert trace.prediction.roles == predicted.roles


def test_entropy_is_that_of_all_tokens(model: regard.Model) -> None:
    size = len(model.predictor.tokenizer)
    for step in model.trace("3 mai 2009", candidates=size).steps[0]:
        probabilities = np.exp([candidate.log_prob for candidate in step.top])
        assert probabilities.sum() == pytest.approx(1)
        assert step.entropy == pytest.approx(-(probabilities * np.log(probabilities)).sum())


def test_every_hypothesis_is_a_path_through_the_beam(model: regard.Model) -> None:
    trace = model.trace("3 mai 2009", beam=3, nbest=3)
    assert trace.beam is not None
    paths: dict[int, list[int]] = {slot: [] for slot in range(3)}
    finished, kept = {}, {}
    for nodes in trace.beam:
        assert [node.score for node in nodes] == sorted((node.score for node in nodes), reverse=True)
        extended = {}
        for node in nodes:
            if node.outcome == "finished":
                assert node.id == END
                finished[tuple(paths[node.parent])] = node.log_prob
            elif node.outcome == "kept":
                assert node.slot is not None
                extended[node.slot] = [*paths[node.parent], node.id]
                kept[tuple(extended[node.slot])] = node.log_prob
        paths = extended
    for hypothesis, steps in zip([trace.prediction, *trace.prediction.alternatives], trace.steps, strict=True):
        ids = tuple(step.id for step in steps if step.id != END)
        ends = kept if hypothesis.truncated else finished
        assert ends[ids] == pytest.approx(hypothesis.score, abs=1e-4)
    assert model.trace("3 mai 2009").beam is None
    assert model.trace("3 mai 2009", sample=True).beam is None


@pytest.mark.parametrize(
    ("source", "search"),
    [("3 mai 2009", SEARCHES[1]), ("", SEARCHES[0]), ("", SEARCHES[1]), ("</script><!-- ٣ \u202emay", SEARCHES[3])],
    ids=ascii,
)
def test_a_loaded_trace_is_equal_to_the_saved_one(
    model: regard.Model, source: str, search: dict[str, Any], tmp_path: Path
) -> None:
    for record in (False, True):
        trace = model.trace(source, queries=record, states=record, **search)
        for name in ("trace.json", "trace.html"):
            trace.save(tmp_path / name)
            loaded = regard.Trace.load(tmp_path / name)
            assert loaded == trace
            assert loaded.steps == trace.steps
            assert loaded.beam == trace.beam
            assert repr(loaded) == repr(trace)
            assert loaded.prediction.offsets == trace.prediction.offsets
            for loaded_each, each in zip(
                [loaded.prediction, *loaded.prediction.alternatives],
                [trace.prediction, *trace.prediction.alternatives],
                strict=True,
            ):
                assert loaded_each.roles == each.roles
                assert list(loaded_each.attentions) == list(each.attentions)
                for name_of_attention, weights in each.attentions.items():
                    rtol, atol = (0.0, 0.0) if record else (2**-11, 2**-25)
                    np.testing.assert_allclose(loaded_each.attentions[name_of_attention], weights, rtol, atol)
    assert model.trace("3") != model.trace("4")


def test_a_document_is_read_without_regard(model: regard.Model, tmp_path: Path) -> None:
    trace = model.trace("3 mai 2009", beam=2, nbest=2, queries=True, states=True)
    trace.save(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text("utf-8"))
    assert document["format"] == 3
    assert document["source"]["tokens"] == list("3 mai 2009")
    assert document["edits"] == []
    assert document["settings"]["beam"] == 2
    assert document["model"]["settings"] == model.settings.model.model_dump(mode="json")
    hypotheses = [trace.prediction, *trace.prediction.alternatives]
    expected = {
        (name, None if trace.prediction.roles[name] == "encoder-self" else index): weights
        for index, hypothesis in enumerate(hypotheses)
        for name, weights in hypothesis.attentions.items()
    }
    assert {(entry["name"], entry["hypothesis"]) for entry in document["attention"]} == set(expected)
    for entry in document["attention"]:
        weights = np.frombuffer(base64.b64decode(entry["data"]), entry["dtype"]).reshape(entry["shape"])
        np.testing.assert_array_equal(weights, expected[entry["name"], entry["hypothesis"]])
        assert entry["role"] == document["mechanisms"][entry["name"]]["role"]
        assert entry["layer"] == document["mechanisms"][entry["name"]]["layer"]
    plain = json.loads(json.dumps(model.trace("3 mai 2009").document))
    assert {entry["dtype"] for entry in plain["attention"]} <= {"float16"}
    assert all(mechanism["parameters"] == {} for mechanism in plain["mechanisms"].values())
    assert plain["states"] == []


def test_a_page_contains_the_document_and_makes_no_request(model: regard.Model) -> None:
    """What it shows is tested in a browser, in tests/explorer/test_page.py."""
    trace = model.trace("3 mai</script><img src=x onerror=alert(1)>", beam=2, nbest=2, states=True)
    text = trace.to_html()
    page = Page(text)
    assert "img" not in page.tags
    assert page.tags.count("script") == text.count("</script>") == 3  # the data of the page, the document, the bundle
    assert page.ids == ["explorer-data", "trace"]
    assert [address for address in page.addresses if address != "data:,"] == []
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert policy[1].startswith("default-src 'none';")
    assert json.loads(text.split('id="trace">')[1].split("</script>")[0]) == json.loads(json.dumps(trace.document))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a valid trace: Expecting property name"),
        ("[]", "it contains no document with a format number"),
        ('{"format": 2}', "it has the format 2, and this version of regard reads format 3"),
        ('{"format": 3}', "it has no field 'beam'"),
        ("<html></html>", "is not a valid trace"),
    ],
)
def test_a_file_that_is_not_a_trace_is_rejected(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(DataError, match=re.escape(message)):
        regard.Trace.load(path)


def test_a_damaged_array_is_rejected(small_run: RunFolder, tmp_path: Path) -> None:
    document = regard.load(small_run.path).trace("3 mai 2009").document
    for change in ({"shape": [1, 1]}, {"data": "AA"}, {"data": "%%%%"}, {"dtype": "object"}):
        damaged = {**document, "attention": [{**document["attention"][0], **change}]}
        (tmp_path / "trace.json").write_text(json.dumps(damaged))
        with pytest.raises(DataError, match="is not a valid trace"):
            regard.Trace.load(tmp_path / "trace.json")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing\.json cannot be read: No such file or directory"):
        regard.Trace.load(tmp_path / "missing.json")


def list_paths(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a document; of a list, only the first."""
    yield path
    entries = node.items() if isinstance(node, dict) else enumerate(node[:1]) if isinstance(node, list) else ()
    for key, child in entries:
        yield from list_paths(child, (*path, key))


def set_value(document: Any, path: tuple[Any, ...], value: object) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


def test_values_of_the_wrong_type_are_not_a_trace(small_run: RunFolder, tmp_path: Path) -> None:
    content = regard.load(small_run.path).trace("8 May", beam=2, queries=True, states=True).document
    path = tmp_path / "trace.json"
    for name in list(content):
        for value in (None, 1, "text", [None], 10**400):
            path.write_text(json.dumps({**content, name: value}))
            with contextlib.suppress(DataError):  # some values are valid
                regard.Trace.load(path)
    path.write_text(json.dumps({**content, "mechanisms": None}))
    with pytest.raises(DataError, match="a field has the wrong type"):
        regard.Trace.load(path)


def test_every_text_in_a_page_is_escaped(small_run: RunFolder, tmp_path: Path) -> None:
    document = regard.load(small_run.path).trace("8 May", beam=2, nbest=2, states=True).document
    path, tried = tmp_path / "trace.json", 0
    places = [
        place
        for place in list_paths(document)
        if place and place[-1] in {"outcome", "direction", "token", "name", "text"}
    ]
    for place in [*places, ("model", "architecture")]:
        changed = json.loads(json.dumps(document))
        set_value(changed, place, "<img src=x>")
        path.write_text(json.dumps(changed))
        try:
            page = regard.Trace.load(path).to_html()
        except (DataError, KeyError):  # the name of an attention must be that of a mechanism
            continue
        tried += 1
        assert "<img src=x>" not in page, place
    assert tried > 5


def test_a_page_is_read_once_however_many_tags_it_has(tmp_path: Path) -> None:
    path = tmp_path / "trace.html"
    path.write_text('<script type="application/json" id="trace">' * 100_000)
    with pytest.raises(DataError, match="is not a valid trace"):
        regard.Trace.load(path)


def test_a_trace_is_saved_as_json_or_html_only(tmp_path: Path) -> None:
    trace = regard.Trace(Prediction("a", "b", -0.5, ["b"], ["a"], [(0, 1)]))
    with pytest.raises(ConfigError, match=r"\.json or \.html"):
        trace.save(tmp_path / "trace.txt")


def test_the_picture_of_a_source_is_in_the_document(tmp_path: Path) -> None:
    pixels = np.arange(8 * 6 * 3, dtype=np.uint8).reshape(8, 6, 3)
    weights = np.full((1, 6), 1 / 6, np.float32)
    prediction = Prediction(
        "a.png",
        "ball",
        -0.5,
        ["▁ball"],
        [],
        [],
        layout=Grid(2, 3),
        attentions={"decoder.attention": weights},
        roles={"decoder.attention": "cross"},
        item=StoredSource("a.png", [], [], pixels),
    )
    trace = regard.Trace(prediction, style="grid")
    trace.save(tmp_path / "trace.json")
    loaded = regard.Trace.load(tmp_path / "trace.json")
    assert loaded == trace
    assert loaded.prediction.layout == Grid(2, 3)
    np.testing.assert_array_equal(loaded.prediction.pixels, pixels)
    assert "smooth=false" in trace.to_html()
    assert "smooth=true" in loaded.to_html()


def test_a_log_probability_of_minus_infinity_is_null_in_json(small_run: RunFolder, tmp_path: Path) -> None:
    model = regard.load(small_run.path)
    trace = model.trace("3 mai 2009")
    step = trace.steps[0][0]
    impossible = step._replace(top=[*step.top, step.top[0]._replace(log_prob=-math.inf)])
    changed = regard.Trace(trace.prediction, steps=[[impossible]])
    changed.save(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["steps"][0][0]["top"][-1]["log_prob"] is None
    assert regard.Trace.load(tmp_path / "trace.json").steps == [[impossible]]


def test_a_given_target_is_traced(model: regard.Model, tmp_path: Path) -> None:
    for source, target in (("3 mai 2009", "2009-05-30"), ("3", ""), ("", "20")):
        trace = model.trace(source, target, queries=True, states=True)
        assert trace.prediction.text == target
        assert trace.prediction.score == pytest.approx(model.score(source, target), abs=1e-4)
        assert sum(step.log_prob for step in trace.steps[0]) == trace.prediction.score
        assert trace.beam is None
        assert trace.settings == {"target": target}
        trace.save(tmp_path / "trace.json")
        assert regard.Trace.load(tmp_path / "trace.json") == trace
    best = model.predict("3 mai 2009")
    if not best.truncated:
        forced, searched = model.trace("3 mai 2009", best.text), model.trace("3 mai 2009")
        assert forced.steps == searched.steps
    with pytest.raises(ConfigError, match="without a search, so beam cannot be set"):
        model.trace("3 mai 2009", "2009", beam=2)
    wrong: Any = 3
    with pytest.raises(regard.ArgumentTypeError, match="target must be one text"):
        model.trace("3 mai 2009", wrong)


def test_the_mode_and_the_result_are_unchanged_by_a_trace(small_run: RunFolder) -> None:
    model = regard.load(small_run.path)
    before = model.predict("3 mai 2009")
    model.train()
    model.trace("3 mai 2009", queries=True, states=True)
    assert model.network.training
    after = model.eval().predict("3 mai 2009")
    assert before.score == after.score
    assert not torch.is_inference_mode_enabled()


def test_a_trace_knows_the_number_of_models(model: regard.Model, tmp_path: Path) -> None:
    trace = model.trace("3 mai 2009")
    trace.save(tmp_path / "trace.json")
    assert trace.prediction.members == regard.Trace.load(tmp_path / "trace.json").prediction.members == model.members


def test_a_ranking_score_of_another_type_is_not_a_trace(small_run: RunFolder, tmp_path: Path) -> None:
    document = regard.load(small_run.path).trace("8 May").document
    document["hypotheses"][0]["ranking_score"] = "best"
    (tmp_path / "trace.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"trace\.json"):
        regard.Trace.load(tmp_path / "trace.json")
