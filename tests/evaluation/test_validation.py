"""Validation and evaluation: computing metrics, choosing the best checkpoint, saving values."""

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import regard
from regard.data.corpora import Pairs
from regard.evaluation.metrics import EvaluationSet
from regard.evaluation.settings import MetricValues, parse_metric
from regard.evaluation.validation import compute_losses, evaluate, validate
from regard.ops import cuda_graphs, losses
from regard.runs.folder import RunFolder
from regard.runs.progress import RunProgress, Schedule
from regard.runs.settings import TrainingSettings
from tests_shared import SMALL

SOURCES = ["3 mai 2009", "May 3, 2009", "x", "3 mai 2009"]
TARGETS = ["2009-05-03", "2009-05-03", "never", "3.5.2009"]


@pytest.fixture(scope="module")
def model(small_run: RunFolder) -> regard.Model:
    return regard.load(small_run.path)


def metric_values(loss: float, **values: float) -> MetricValues:
    return MetricValues(1, {**values, "loss": loss}, {})


def test_higher_or_lower_is_better_and_the_loss_breaks_ties() -> None:
    assert metric_values(2, accuracy=0.6).better_than(metric_values(1, accuracy=0.5), parse_metric("accuracy"))
    assert metric_values(1, accuracy=0.5).better_than(metric_values(2, accuracy=0.5), parse_metric("accuracy"))
    assert not metric_values(1, accuracy=0.5).better_than(metric_values(1, accuracy=0.5), parse_metric("accuracy"))
    assert metric_values(2, per=10).better_than(metric_values(1, per=20), parse_metric("per"))
    assert not metric_values(2, per=10).better_than(metric_values(1, per=10), parse_metric("per"))
    assert metric_values(1).better_than(metric_values(2), parse_metric("loss"))
    assert metric_values(1).better_than(None, parse_metric("loss"))


def test_nan_is_worse_than_any_number() -> None:
    assert not metric_values(math.nan).better_than(metric_values(9), parse_metric("loss"))
    assert metric_values(9).better_than(metric_values(math.nan), parse_metric("loss"))


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["cer", "bleu:tokenize=char"])
def test_a_run_keeps_the_best_checkpoint_by_its_metric(tmp_path: Path, metric: str) -> None:
    settings = {
        **SMALL,
        "training.metric": metric,
        "training.extra_metrics": ["chrf", "perplexity"],
        "training.keep_checkpoints": 9,
    }
    run = regard.train("dates", {**settings, "training.validation_pairs": 25}, out=tmp_path / "run")
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
    assert run.best.describe(parse_metric(metric)) in card
    assert run.best.signatures["chrf"] in card


def test_extra_metrics_may_change_when_a_run_is_resumed(small_run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(small_run.path, tmp_path / "run")
    regard.train("dates", {**SMALL, "training.extra_metrics": ["wer"]}, out=tmp_path / "run")
    with pytest.raises(regard.ConfigError, match=r"training\.metric\.kind was 'accuracy' and is now 'wer'"):
        regard.train("dates", {**SMALL, "training.metric": "wer"}, out=tmp_path / "run")
    with pytest.raises(regard.ConfigError, match=r"training\.validation_search\.beam was 1 and is now 3"):
        regard.train("dates", {**SMALL, "training.validation_search.beam": 3}, out=tmp_path / "run")


def test_values_are_described_with_the_metric_first() -> None:
    values = MetricValues(1_500, {"loss": 0.25, "accuracy": 0.5, "ser": 50.0}, {})
    assert values.describe(parse_metric("ser")) == "ser 50.00%, loss 0.2500, accuracy 50.00% on 1,500 pairs"
    assert values["ser"] == 50
    two = MetricValues(1, {"bleu": 1.0, "bleu:tokenize=none": 2.0, "chrf:word_order=2": 3.0}, {})
    assert (two["bleu"], two["bleu:tokenize=none"], two["chrf"]) == (1, 2, 3)
    with pytest.raises(KeyError, match="matches 0 of the computed metrics"):
        two["wer"]


def test_progress_is_restored_from_json() -> None:
    best = MetricValues(9, {"bleu:tokenize=none": 40.0, "loss": 1.5}, {"bleu:tokenize=none": "tok:none"})
    progress = RunProgress({"dev pairs": "0"}, Schedule.of(9), 4, 2, best, "average-4", 1)
    assert RunProgress.from_json(json.loads(json.dumps(progress.to_json()))) == progress


@pytest.mark.parametrize("max_logits", [1, 1 << 20])
def test_losses_equal_the_scores_of_the_model(
    model: regard.Model, monkeypatch: pytest.MonkeyPatch, max_logits: int
) -> None:
    monkeypatch.setitem(losses.MAX_LOGITS, model.predictor.device.type, max_logits)
    losses_N2 = compute_losses(model.predictor, Pairs(SOURCES, TARGETS), batch_size=3)
    assert (-losses_N2[:, 0]).tolist() == pytest.approx(model.score(SOURCES, TARGETS), rel=1e-5)
    assert losses_N2[:, 1].tolist() == [len(target) + 1 for target in TARGETS]


def test_nothing_is_decoded_if_no_metric_needs_predictions(model: regard.Model) -> None:
    evaluation_set = EvaluationSet.from_pairs(Pairs(SOURCES, TARGETS))
    metrics = [parse_metric("loss"), parse_metric("perplexity")]
    search = TrainingSettings().validation_search
    result = evaluate(model.predictor, evaluation_set, metrics, search)
    assert (result.predictions, result.tokens, result.seconds) == ([], 0, 0.0)
    assert result.to_json()["search"] is None
    assert validate(model.predictor, Pairs(SOURCES, TARGETS).first(3), metrics, search).pairs == 3


def test_a_model_in_training_mode_stays_in_it(model: regard.Model) -> None:
    model.network.train()
    training = TrainingSettings()
    validate(model.predictor, Pairs(SOURCES, TARGETS), training.metrics, training.validation_search)
    assert model.network.training
    model.network.eval()


def test_evaluating_in_python_compares_predictions_with_references(model: regard.Model) -> None:
    predictions = [prediction.text for prediction in model.predict(SOURCES, beam=3)]
    result = model.evaluate(SOURCES, predictions, metrics=["accuracy", "chrf", "cer"], beam=3, confidence=True)
    assert result.predictions == predictions
    assert (result["accuracy"], result["cer"]) == (1, 0)
    assert result["chrf"] == pytest.approx(100)
    assert result.search.beam == 3
    assert result.confidence_intervals["accuracy"] == (1, 1)
    header, *rows = str(result).splitlines()
    assert header == "metric    on 4 pairs, 3 sources  95 % confidence     signature"
    assert rows[0].startswith("accuracy  100.00%                100.00% to 100.00%  nrefs:")
    assert repr(result).startswith("Evaluation(accuracy 100.00%, chrf 100.00, cer 0.00%")
    several = model.evaluate(SOURCES[:2], [["no", predictions[0]], "no"], metrics=["accuracy"], beam=3)
    assert (several["accuracy"], several.metric_values.pairs) == (0.5, 3)
    pairs = list(zip(SOURCES, TARGETS, strict=True))
    assert list(model.evaluate(pairs).metric_values.values) == ["accuracy", "chrf", "loss"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["blue"]}, "Did you mean 'bleu'"),
        ({"bean": 5}, "Did you mean 'beam'"),
        ({"batch_size": 0}, "at least 1"),
    ],
)
def test_evaluating_in_python_rejects_unknown_options(
    model: regard.Model, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(regard.ConfigError, match=message):
        model.evaluate(SOURCES, TARGETS, **options)


def test_validation_keeps_no_graphs(model: regard.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SimpleNamespace(by_module={model.network.decoder: ["a graph"]})
    monkeypatch.setattr(cuda_graphs, "_graph_pools", lambda: {model.predictor.device: pool})
    training = TrainingSettings()
    validate(model.predictor, Pairs(SOURCES, TARGETS), training.metrics, training.validation_search)
    assert not pool.by_module
