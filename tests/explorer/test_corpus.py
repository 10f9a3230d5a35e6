"""The corpus in the explorer: predictions of several models for one test set, metrics, and nearest training pairs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI

import regard
from regard.data.corpora import Pairs, load_corpus
from regard.evaluation.metrics import EvaluationSet
from regard.evaluation.validation import evaluate
from regard.explorer import training_pairs
from regard.explorer.app import create_app
from regard.explorer.corpus import CorpusPredictions
from regard.explorer.served_model import load_models
from regard.explorer.training_pairs import TrainingPairs
from regard.runs.folder import RunFolder
from regard.runs.pairs import HeldOutPairs
from tests_explorer import ACCESS, post

GRU, TRANSFORMER, CAPTIONER = "0", "1", "2"
SOURCE = {"text": "3 mai 2009"}


def stream(app: FastAPI, path: str, **request: Any) -> list[dict[str, Any]]:
    """Return the lines of a stream."""
    return [json.loads(line) for line in post(app, path, request).text.splitlines()]


def predict(app: FastAPI, model: str, **request: Any) -> list[dict[str, Any]]:
    """Return the rows of the corpus."""
    return [row for line in stream(app, "/api/corpus", model=model, **request)[1:] for row in line["rows"]]


def find_neighbors(app: FastAPI, model: str, source: dict[str, Any], tokens: list[int]) -> dict[str, Any]:
    result: dict[str, Any] = stream(app, "/api/neighbors", model=model, source=source, tokens=tokens)[-1]["result"]
    return result


def prepare(model: regard.Model, pairs: list[tuple[Any, str]]) -> TrainingPairs:
    prepared = TrainingPairs(model, pairs)
    shares = list(iter(prepared.advance, None))
    assert shares == sorted(shares)
    return prepared


@pytest.fixture(scope="module")
def model(small_run: RunFolder) -> regard.Model:
    return regard.load(small_run.path)


def test_the_confidence_of_a_row_is_the_average_probability_of_its_tokens(model: regard.Model) -> None:
    [prediction] = model.predict(["3 mai 2009"])
    held_out = HeldOutPairs("test", Pairs(["3 mai 2009"], ["x"]), 1)
    _, part = CorpusPredictions(model, held_out).stream(1, {})
    [steps] = model.trace("3 mai 2009").document["steps"]
    log_probs = [step["log_prob"] for step in steps]
    assert not prediction.truncated
    assert part["rows"][0]["confidence"] == pytest.approx(np.exp(np.mean(log_probs)), rel=1e-3)


def test_models_of_one_test_set_have_the_same_pairs(app: FastAPI) -> None:
    heads = [stream(app, "/api/corpus", model=model, limit=2)[0] for model in (GRU, TRANSFORMER, CAPTIONER)]
    assert heads[0] == heads[1]
    assert heads[0]["pairs"] != heads[2]["pairs"]
    assert heads[0]["size"] == heads[0]["most"] > heads[0]["total"] == 2


def test_rows_are_predicted_once(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    search = {"beam": 3}
    rows = predict(app, GRU, search=search, limit=4)
    monkeypatch.setattr(app.state.session.models[GRU].model, "predict", None)
    assert stream(app, "/api/corpus", model=GRU, search=search, limit=4)[1:] == [{"rows": rows, "progress": 1}]


def test_rows_name_errors_and_unknown_characters(model: regard.Model) -> None:
    """A source with two references is correct if its prediction equals one of them, whatever its Unicode form."""
    sources = ["3 mai 2009", "☃ mai 2010", "☃ mai 2010"]
    predictions = [prediction.text for prediction in model.predict(sources)]
    held_out = HeldOutPairs("test", Pairs(sources, ["x", "y", predictions[2]]), 3)
    rows = [row for part in CorpusPredictions(model, held_out).stream(3, {}) for row in part.get("rows", ())]
    assert [row["correct"] for row in rows] == [False, True, True]
    assert [row["unknown"] for row in rows] == [[], ["☃"], ["☃"]]


def test_the_metrics_of_rows_are_those_of_an_evaluation(app: FastAPI, runs: list[Path]) -> None:
    """The metric that chose the checkpoint comes first; both models are evaluated on the same pairs."""
    indices = [1, 3, 4, 8]
    for each in (GRU, TRANSFORMER):
        predict(app, each, limit=10)
    request = {"models": [GRU, TRANSFORMER], "indices": indices}
    document = post(app, "/api/corpus/metrics", request).json()
    assert document["rows"] == 4
    loaded = regard.load(runs[1])
    settings = loaded.settings.training
    expected = [metric for metric in (settings.metric, *settings.extra_metrics) if metric.needs_predictions]
    assert [entry["metric"] for entry in document["metrics"]][: len(expected)] == [each.label for each in expected]
    assert "accuracy" in [entry["metric"] for entry in document["metrics"]]
    pairs = app.state.session.models[TRANSFORMER].held_out.pairs
    chosen = Pairs([pairs.sources[index] for index in indices], [pairs.targets[index] for index in indices])
    evaluation = evaluate(
        loaded.predictor,
        EvaluationSet.from_pairs(chosen),
        expected,
        loaded.settings.training.validation_search,
        confidence=True,
    )
    for metric, entry in zip(expected, document["metrics"], strict=False):
        gru, transformer = entry["models"]
        assert gru["difference"] is None
        assert transformer["value"] == pytest.approx(evaluation[metric.label])
        assert transformer["interval"] == pytest.approx(evaluation.confidence_intervals[metric.label])
        assert transformer["difference"]["value"] == pytest.approx(transformer["value"] - gru["value"])


def test_metrics_need_the_same_pairs_and_predicted_rows(app: FastAPI) -> None:
    other = post(app, "/api/corpus/metrics", {"models": [GRU, CAPTIONER], "indices": [0]})
    assert other.status_code == 422
    assert "different test sets" in other.json()["error"]["message"]
    unknown = post(app, "/api/corpus/metrics", {"models": [GRU], "indices": [0], "search": {"beam": 7}})
    assert unknown.status_code == 409
    assert "/api/corpus" in unknown.json()["error"]["message"]


@pytest.mark.parametrize("name", [GRU, TRANSFORMER])
def test_a_training_pair_is_its_own_nearest_neighbor(app: FastAPI, runs: list[Path], name: str) -> None:
    """The encoder, the decoder and the text of a training pair are those that were computed for the pair."""
    loaded = regard.load(runs[int(name)])
    [(source, target), *_] = load_corpus(loaded.settings.data).train
    [ids] = loaded.predictor.tokenizer.ids([target])
    step = 5
    result = find_neighbors(app, name, {"text": source}, ids[:step])
    for kind in ("by_text", "by_encoder", "by_state"):
        assert (result[kind][0]["source"], result[kind][0]["target"]) == (source, target), kind
        assert result[kind][0]["similarity"] == pytest.approx(1, abs=1e-5)
        similarities = [entry["similarity"] for entry in result[kind]]
        assert similarities == sorted(similarities, reverse=True)
    nearest = result["by_state"][0]
    assert (nearest["step"], nearest["tokens"]) == (step, [*loaded.predictor.tokenizer.tokens(ids), "</s>"])
    assert len({entry["number"] for entry in result["by_state"]}) == len(result["by_state"])


def test_the_training_pairs_are_prepared_once(app: FastAPI) -> None:
    find_neighbors(app, GRU, SOURCE, [])
    assert len(stream(app, "/api/neighbors", model=GRU, source=SOURCE, tokens=[])) == 1


def test_a_preparation_continues_after_it_was_interrupted(model: regard.Model) -> None:
    pairs = [(f"{day} mai 2009", f"2009-05-{day:02}") for day in range(1, 29)]
    interrupted, complete = TrainingPairs(model, pairs), prepare(model, pairs)
    interrupted.advance()
    while interrupted.advance() is not None:
        pass
    assert interrupted.find("3 mai 2009", []) == complete.find("3 mai 2009", [])


def test_a_large_corpus_is_sampled(model: regard.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_pairs, "MAX_TEXTS", 20)
    monkeypatch.setattr(training_pairs, "MAX_PAIRS", 5)
    pairs = [(f"{number}", "1") for number in range(1, 301)]
    results = [prepare(model, pairs).find("7", []) for _ in range(2)]
    assert results[0] == results[1]
    counts = [results[0][name] for name in ("size", "texts", "pairs", "states")]
    assert counts == [300, 20, 5, 10]
    assert max(entry["number"] for entry in results[0]["by_text"]) > 20  # not the first pairs of the file


def test_the_memory_of_states_is_bounded(model: regard.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_pairs, "MAX_STATES", 10)
    result = prepare(model, [(f"{number}", "2009-05-03") for number in range(1, 100)]).find("7", [])
    assert result["texts"] == 99
    assert 10 <= result["states"] < 300


def test_a_captioner_finds_images_with_similar_states(app: FastAPI) -> None:
    result = find_neighbors(app, CAPTIONER, {"example": 0}, [])
    assert result["by_text"] == []
    assert result["by_encoder"][0]["source"].startswith("Image ")
    assert {entry["step"] for entry in result["by_state"]} == {0}


def test_requests_for_neighbors_are_checked(app: FastAPI) -> None:
    wrong = stream(app, "/api/neighbors", model=GRU, source=SOURCE, tokens=[100_000])[-1]
    assert "tokens: the ids of tokens are between 0 and" in wrong["error"]["message"]
    empty = stream(app, "/api/neighbors", model=GRU, source={"text": " "}, tokens=[])[-1]
    assert "The source is empty" in empty["error"]["message"]


def test_missing_training_data_is_reported(captioners_without_test_set: list[Path]) -> None:
    app = create_app(load_models([str(captioners_without_test_set[1])]), ACCESS)
    image = {"image": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"}
    for _ in range(2):
        [line] = stream(app, "/api/neighbors", model="0", source=image, tokens=[])
        assert "training pairs of this model cannot be read" in line["error"]["message"]


def test_vectors_are_compared_without_their_average() -> None:
    vectors = np.array([[10, 1], [10, -1], [11, 0]], np.float32)
    index = training_pairs.VectorIndex.of(vectors)
    # The differences from (31/3, 0) are (−1/3, 1), (−1/3, −1) and (2/3, 0).
    np.testing.assert_allclose(index.measure(vectors[0]), [1, -0.8, -(0.1**0.5)], atol=1e-6)
