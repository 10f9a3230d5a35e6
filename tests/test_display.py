"""Models and traces in an interactive session and in a notebook, and the examples in docstrings."""

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.runs.folder import RunFolder
from tests_html import Page
from tests_shared import ModelOnly


@pytest.fixture(scope="module")
def model(small_run: RunFolder) -> regard.Model:
    return regard.load(small_run.path)


def test_a_model_is_displayed_with_its_properties(model: regard.Model) -> None:
    predictor = model.predictor
    assert model.scores is not None
    values = [
        "bidirectional GRU 1 × 16 encoder, GRU 1 × 16 decoder (bahdanau), additive attention",
        f"{sum(parameter.numel() for parameter in model.network.parameters()):,}",
        f"{predictor.reader.vocabulary_size:,} source tokens, {len(predictor.tokenizer):,} target tokens",
        "30",
        str(model.predictor.device),
        f"accuracy {model.scores['accuracy']:.2%}, loss {model.scores.loss:.4f} on 40 pairs",
    ]
    assert repr(model).startswith("Model(\n")
    assert [line.partition(":")[2].strip() for line in repr(model).split("\n")[1:-1]] == values
    assert re.findall(r"<td[^>]*>(.*?)</td>", model._repr_html_()) == values


def test_a_run_is_displayed_with_its_metrics_and_learning_curves(small_run: RunFolder, model: regard.Model) -> None:
    run = regard.Run(small_run.path, model.scores, 30)
    page = Page(run._repr_html_())
    assert model.scores is not None
    assert {str(small_run.path), "30", "accuracy", "loss", "learning rate", "validation", "step"} <= set(page.texts)
    best = small_run.best().path.name.replace("-", " ")
    assert f"{best}, {model.scores.describe(model.settings.training.metric)}" in page.texts
    assert page.tags.count("svg") == 1
    assert all(address.startswith("#") for address in page.addresses)  # it works offline


def test_a_run_prints_its_folder_steps_best_checkpoint_and_what_to_do_next(
    small_run: RunFolder, model: regard.Model
) -> None:
    assert model.scores is not None
    printed = str(regard.Run(small_run.path, model.scores, 30))
    values = [line.partition(":")[2].strip() for line in printed.split("\n")[1:-1]]
    best = f"{small_run.best().path.name.replace('-', ' ')}, {model.scores.describe(model.settings.training.metric)}"
    assert values[:3] == [str(small_run.path), "30", best]
    assert values[3].startswith("run.load().predict(…), or `regard evaluate ")


def test_a_run_without_events_is_displayed_without_curves(tmp_path: Path) -> None:
    page = Page(regard.Run(tmp_path / "<run>", None, 0)._repr_html_())
    assert page.texts == ["regard.Run", "folder", str(tmp_path / "<run>"), "steps", "0"]


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({}, {"table"}),
        ({"kind": "lines"}, {"svg", "line"}),
        ({"kind": "grid"}, {"table", "img"}),
        ({"words": True}, {"table"}),
    ],
)
def test_every_view_of_a_prediction_is_displayed(model: regard.Model, options: dict[str, Any], tags: set[str]) -> None:
    page = Page(model.predict("3 mai <2009>").view(**options)._repr_html_())
    assert tags <= set(page.tags)
    assert all(address.startswith("data:") for address in page.addresses)


def test_a_prediction_is_displayed_with_its_source_output_and_weights(model: regard.Model) -> None:
    prediction = model.predict("3 mai <2009>")
    page = Page(prediction._repr_html_())
    assert page.texts[0] == f"3 mai <2009> → {prediction.text}   (log-probability {prediction.score:.4f})"
    assert page.tags.count("td") == 12 * len(prediction.tokens)
    assert str(prediction.view()) == str(prediction)


def test_an_ensemble_is_displayed_with_the_number_of_models(small_run: RunFolder, second_run: RunFolder) -> None:
    displayed = repr(regard.load(small_run.path, second_run.path))
    assert "ensemble of 2 models" in displayed
    assert "accuracy" not in displayed


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"kind": "transformer", "layers": 2, "decoder_layers": 1}, "Transformer, 2 encoder and 1 decoder layers, "),
        ({"kind": "fixed", "encoder": {"cell": "lstm", "bidirectional": False}}, "LSTM 1 × 128 encoder, GRU 1 × 128"),
        ({"kind": "recurrent", "attention": "luong-general", "decoder": {"order": "luong"}}, "(luong), general attent"),
    ],
)
def test_every_kind_of_model_describes_its_architecture(settings: dict[str, object], expected: str) -> None:
    assert expected in ModelOnly.model_validate({"model": settings}).model.architecture


@pytest.mark.parametrize(("heads", "expected"), [(1, "width 256, 1 head"), (4, "width 256, 4 heads")])
def test_the_number_of_heads_agrees_with_its_noun(heads: int, expected: str) -> None:
    settings = {"kind": "transformer", "size": 256, "heads": heads}
    assert ModelOnly.model_validate({"model": settings}).model.architecture.endswith(expected)


def test_a_trace_is_displayed_with_source_output_and_shapes(model: regard.Model) -> None:
    trace = model.trace("3 mai <2009>")
    output = trace.prediction
    shape = f"decoder.attention: {len(output.tokens)} × 12"
    assert repr(trace) == (
        "Trace(\n"
        "  source: '3 mai <2009>' (12 tokens)\n"
        f"  output: {output.text!r} ({len(output.tokens)} tokens), log-probability {output.score:.4f}\n"
        f"  {shape}\n"
        ")"
    )
    page = trace._repr_html_()
    assert "3 mai &lt;2009&gt;" in page
    assert f"<li>{shape}</li>" in page
    assert page.count("<table") == 1


@pytest.mark.parametrize(
    "documented",
    [
        regard.load,
        regard.Model.predict,
        regard.Model.score,
        regard.Model.trace,
        regard.Model.evaluate,
        regard.Model.force,
        regard.Prediction,
        regard.Prediction.view,
        regard.Prediction.select,
        regard.Trace,
    ],
    ids=lambda documented: documented.__qualname__,
)
def test_the_examples_in_docstrings_run(
    documented: object,
    model: regard.Model,
    small_run: RunFolder,
    second_run: RunFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name, run in (("dates", small_run), ("two-minutes", second_run)):
        (tmp_path / "runs" / name).symlink_to(run.path.resolve())
    examples = doctest.DocTestParser().get_examples(documented.__doc__ or "")
    assert examples
    names = {"regard": regard, "model": model, "prediction": model.predict("3 mai 2009")}
    for example in examples:
        exec(example.source, names)
