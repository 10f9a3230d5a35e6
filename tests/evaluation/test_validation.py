"""Validation: what is worked out, by what the best checkpoint is chosen, and what is kept of it."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import regard
from regard.data.cache import sha256
from regard.data.corpora import Pairs
from regard.evaluation.metrics import EvaluationSet
from regard.evaluation.settings import Accuracy, Loss, SymbolErrorRate, parse_metric
from regard.evaluation.validation import evaluate, losses, validate
from regard.evaluation.values import MetricValues
from regard.ops import chunked_loss
from regard.runs.checkpoints import RunProgress
from regard.runs.folder import RunFolder
from regard.runs.schedule import Schedule
from regard.runs.settings import TrainingSettings
from tests_shared import SMALL

SOURCES = ["3 mai 2009", "May 3, 2009", "x", "3 mai 2009"]
TARGETS = ["2009-05-03", "2009-05-03", "never", "3.5.2009"]


@pytest.fixture(scope="module")
def model(small_run: RunFolder) -> regard.Model:
    return regard.load(small_run.path)


def scores(loss: float, **values: float) -> MetricValues:
    return MetricValues(1, {**values, "loss": loss}, {})


def test_higher_or_lower_is_better_and_ties_are_decided_by_the_loss() -> None:
    assert scores(2, accuracy=0.6).better_than(scores(1, accuracy=0.5), Accuracy())
    assert scores(1, accuracy=0.5).better_than(scores(2, accuracy=0.5), Accuracy())
    assert not scores(1, accuracy=0.5).better_than(scores(1, accuracy=0.5), Accuracy())
    assert scores(2, per=10).better_than(scores(1, per=20), SymbolErrorRate())
    assert not scores(2, per=10).better_than(scores(1, per=10), SymbolErrorRate())
    assert scores(1).better_than(scores(2), Loss())
    assert scores(1).better_than(None, Loss())


def test_what_is_no_number_is_never_better_and_any_number_is_better_than_it() -> None:
    assert not scores(math.nan).better_than(scores(9), Loss())
    assert scores(9).better_than(scores(math.nan), Loss())


@pytest.mark.parametrize("metric", ["cer", "bleu:tokenize=char"])
def test_a_run_keeps_the_checkpoint_that_is_best_by_its_metric(tmp_path: Path, metric: str) -> None:
    chosen = {
        **SMALL,
        "training.metric": metric,
        "training.extra_metrics": ["chrf", "perplexity"],
        "training.keep_checkpoints": 9,
    }
    run = regard.train("dates", {**chosen, "training.validation_pairs": 25}, out=tmp_path / "run")
    events = [event for event in run.events if event["event"] == "validation"]
    values = [event[metric] for event in events]
    assert len(values) == 3
    assert values.index(min(values)) != values.index(max(values))
    best = (min if metric == "cer" else max)(values)
    expected = events[values.index(best)]
    state = RunFolder(tmp_path / "run").best().state["best"]
    assert (state["step"], state[metric], state["pairs"]) == (expected["step"], best, 25)
    assert regard.load(run.path).step == expected["step"]
    assert run.best is not None
    assert run.best[metric.partition(":")[0]] == best
    assert math.exp(run.best.loss) == pytest.approx(run.best["perplexity"])
    assert set(run.best.signatures) == {metric, "chrf", "perplexity", "loss"}
    card = (run.path / "card.md").read_text()
    assert run.best.told(parse_metric(metric)) in card
    assert run.best.signatures["chrf"] in card


def test_what_is_told_beside_the_metric_may_change_when_a_run_goes_on(small_run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(small_run.path, tmp_path / "run")
    regard.train("dates", {**SMALL, "training.extra_metrics": ["wer"]}, out=tmp_path / "run")
    with pytest.raises(regard.ConfigError, match=r"training\.metric\.kind was 'accuracy' and is now 'wer'"):
        regard.train("dates", {**SMALL, "training.metric": "wer"}, out=tmp_path / "run")
    with pytest.raises(regard.ConfigError, match=r"training\.validation\.beam was 1 and is now 3"):
        regard.train("dates", {**SMALL, "training.validation_search.beam": 3}, out=tmp_path / "run")


def test_scores_are_told_with_the_metric_first() -> None:
    found = MetricValues(1_500, {"loss": 0.25, "accuracy": 0.5, "wer": 50.0}, {})
    assert found.told(parse_metric("wer")) == "wer 50.00%, loss 0.2500, accuracy 50.00% on 1,500 pairs"
    assert found["wer"] == 50
    two = MetricValues(1, {"bleu": 1.0, "bleu:tokenize=none": 2.0, "chrf:word_order=2": 3.0}, {})
    assert (two["bleu"], two["bleu:tokenize=none"], two["chrf"]) == (1, 2, 3)
    with pytest.raises(KeyError, match="names 0 of what was measured"):
        two["wer"]


def test_a_state_survives_json() -> None:
    best = MetricValues(9, {"bleu:tokenize=none": 40.0, "loss": 1.5}, {"bleu:tokenize=none": "tok:none"})
    progress = RunProgress({"dev pairs": "0"}, Schedule.of(9), 4, 2, best, "mean-4", 1)
    assert RunProgress.from_json(json.loads(json.dumps(progress.to_json()))) == progress


def test_a_run_of_before_there_were_measures_goes_on(small_run: RunFolder, tmp_path: Path) -> None:
    """Its config names the metric in a word and nothing beside it; its state has an accuracy and a loss."""
    shutil.copytree(small_run.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    config = yaml.safe_load(folder.config.read_text("utf-8"))
    for name in ("extra_metrics", "validation_search", "validation_pairs"):
        del config["training"][name]
    config["training"]["metric"] = "accuracy"
    folder.config.write_text(yaml.safe_dump(config), "utf-8")
    for checkpoint in folder.all_checkpoints():
        old: dict[str, Any] = checkpoint.state
        old["best"] = {name: old["best"][name] for name in ("step", "pairs", "accuracy", "loss")}
        (checkpoint.path / "state.json").write_text(json.dumps(old))
        manifest = json.loads((checkpoint.path / "manifest.json").read_text())
        manifest["files"]["state.json"] = sha256(checkpoint.path / "state.json")
        (checkpoint.path / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(folder.all_checkpoints()[0].path)
    run = regard.train("dates", SMALL, out=folder.path)
    assert run.steps == 30
    assert run.best is not None
    assert set(run.best.values) == {"accuracy", "loss"}


@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_losses_are_those_that_the_model_scores(
    model: regard.Model, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setitem(chunked_loss.MAX_LOGITS, model.predictor.device.type, at_once)
    found = losses(model.predictor, Pairs(SOURCES, TARGETS), batch_size=3)
    assert (-found[:, 0]).tolist() == pytest.approx(model.score(SOURCES, TARGETS), rel=1e-5)
    assert found[:, 1].tolist() == [len(target) + 1 for target in TARGETS]


def test_nothing_is_decoded_where_only_probabilities_are_asked_for(model: regard.Model) -> None:
    questions = EvaluationSet.of(Pairs(SOURCES, TARGETS))
    metrics = [parse_metric("loss"), parse_metric("perplexity")]
    found = evaluate(model.predictor, questions, metrics, TrainingSettings().validation_search)
    assert (found.answers, found.tokens, found.seconds) == ([], 0, 0.0)
    assert found.to_json()["search"] is None
    search = TrainingSettings().validation_search
    assert validate(model.predictor, Pairs(SOURCES, TARGETS).first(3), metrics, search).pairs == 3


def test_a_model_in_training_stays_so(model: regard.Model) -> None:
    model.network.train()
    training = TrainingSettings()
    validate(model.predictor, Pairs(SOURCES, TARGETS), training.metrics, training.validation_search)
    assert model.network.training
    model.network.eval()


def test_evaluating_in_python_holds_answers_against_references(model: regard.Model) -> None:
    answers = [prediction.text for prediction in model.predict(SOURCES, beam=3)]
    found = model.evaluate(SOURCES, answers, metrics=["accuracy", "chrf", "cer"], beam=3, confidence=True)
    assert found.answers == answers
    assert (found["accuracy"], found["chrf"], found["cer"]) == (1, pytest.approx(100), 0)
    assert found.search.beam == 3
    assert found.intervals["accuracy"] == (1, 1)
    header, *rows = str(found).splitlines()
    assert header == "metric    on 4 pairs, 3 sources  95 % confidence     signature"
    assert rows[0].startswith("accuracy  100.00%                100.00% to 100.00%  nrefs:")
    assert repr(found).startswith("Evaluation(accuracy 100.00%, chrf 100.00, cer 0.00%")
    several = model.evaluate(SOURCES[:2], [["no", answers[0]], "no"], metrics=["accuracy"], beam=3)
    assert (several["accuracy"], several.scores.pairs) == (0.5, 3)
    pairs = list(zip(SOURCES, TARGETS, strict=True))
    assert list(model.evaluate(pairs).scores.values) == ["accuracy", "chrf", "loss"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metrics": ["blue"]}, "Did you mean 'bleu'"),
        ({"bean": 5}, "Did you mean 'beam'"),
        ({"batch_size": 0}, "at least 1"),
    ],
)
def test_evaluating_in_python_tells_what_it_does_not_know(
    model: regard.Model, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(regard.ConfigError, match=words):
        model.evaluate(SOURCES, TARGETS, **options)
