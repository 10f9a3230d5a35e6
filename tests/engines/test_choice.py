"""Which engine is used, and what is printed about it."""

import logging
from typing import Any

import pytest
from click.testing import CliRunner

import regard
from regard.cli.verbs import regard as command
from regard.decoding.engine import Request
from regard.decoding.settings import SearchSettings
from regard.ops import int8
from tests_marian import make_pairs

pytest.importorskip("ctranslate2", reason="ctranslate2 is missing; install it with: pip install -e '.[test]'")


def choose(model: regard.Model, **request: Any) -> str:
    search = SearchSettings(**request.pop("search", {}))
    return model.choose_engine("auto", Request(search, **request)).name


def test_the_fastest_engine_with_the_same_output_is_the_default(post_norm: regard.Model) -> None:
    assert choose(post_norm) == "ct2"
    assert choose(post_norm, search={"beam": 5, "length_penalty": 0.0}) == "ct2"
    assert choose(post_norm, search={"beam": 5}) == "torch", "the search ends at another time"
    assert choose(post_norm, search={"sample": True}) == "torch"
    assert choose(post_norm, attention=True) == "torch"
    assert choose(post_norm, constrained=True) == "torch"
    assert choose(post_norm, search={"beam": 5}, precision="int8") == "ct2"


def test_a_model_that_ctranslate2_cannot_express_is_predicted_with_torch(
    small_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = regard.load(small_run.path)
    assert choose(model) == "torch"
    with pytest.raises(regard.ConfigError, match=r"The engine ct2 cannot be used: a model of the kind \w+ is not a"):
        model.predict("3 mai 2009", attention=False, engine="ct2")
    assert choose(model, precision="int8") == "torch"
    monkeypatch.setattr(int8, "find_spec", lambda _: None)
    with pytest.raises(regard.ConfigError, match=r"No engine can be used.*ct2:.*torch: int8 requires onnx and"):
        model.predict("3 mai 2009", attention=False, engine="auto", precision="int8")


def test_an_unknown_engine_is_rejected(post_norm: regard.Model) -> None:
    with pytest.raises(regard.ConfigError, match="engine"):
        post_norm.predict("the dog", engine="tensorrt")  # type: ignore[call-overload]


def run(*args: str) -> Any:
    result = CliRunner().invoke(command, list(args), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_the_command_line_prints_the_choice_with_the_reason(post_norm: regard.Model) -> None:
    assert post_norm.run is not None
    path, texts = str(post_norm.run.path), [source for source, _ in make_pairs(3, seed=2)]
    expected = run("predict", path, "--engine", "torch", *texts)
    quiet, verbose = run("predict", path, *texts), run("predict", path, "-v", *texts)
    assert quiet.stdout == verbose.stdout == expected.stdout
    assert "engine" not in quiet.stderr
    assert "The engine is ct2. It is the fastest" in verbose.stderr
    assert "The engine is ct2. It is the fastest" in run("predict", path, "-v", "--precision", "int8", *texts).stderr
    beam = run("predict", path, "-v", "--beam", "5", *texts)
    assert "The engine is torch. ct2 is not used: its beam search ends when" in beam.stderr
    assert run("predict", path, "--engine", "ct2", "--beam", "5", *texts).stdout == beam.stdout
    assert logging.getLogger("regard").level == logging.WARNING, "the next command prints it no more"


def test_evaluation_accepts_an_engine(post_norm: regard.Model) -> None:
    pairs = make_pairs(20, seed=3)
    expected, actual = (post_norm.evaluate(pairs, engine=engine) for engine in ("torch", "ct2"))
    assert actual.predictions == expected.predictions
    assert actual.metric_values.values == expected.metric_values.values
