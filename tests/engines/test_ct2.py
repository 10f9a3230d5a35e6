"""Predictions with CTranslate2 are those of torch."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import regard
from regard.decoding.predictor import Predictor
from regard.decoding.search import Hypothesis
from tests_marian import make_pairs

ctranslate2: Any = pytest.importorskip(
    "ctranslate2", reason="ctranslate2 is missing; install it with: pip install -e '.[test]'"
)

TEXTS = [source for source, _ in make_pairs(40, seed=1)]
UNUSUAL = ["", "   ", "the dog ☃ sees a man 😀.", "☃", "the old man " * 100, TEXTS[0]]
SEARCHES: list[dict[str, Any]] = [
    {},
    {"loop_guard": False},
    {"beam": 5, "length_penalty": 0.0},
    {"beam": 2, "length_penalty": 0.0},
    {"beam": 5},
    {"beam": 4, "length_penalty": 1.0},
    {"beam": 5, "nbest": 3},
]


class TorchCounter:
    """Counts the sources that torch predicts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sources, predict = 0, Predictor.predict

        def count(predictor: Predictor, sources: Sequence[Any], *args: Any, **options: Any) -> list[list[Hypothesis]]:
            self.sources += len(sources)
            return predict(predictor, sources, *args, **options)

        monkeypatch.setattr(Predictor, "predict", count)


def assert_same(expected: list[regard.Prediction], actual: list[regard.Prediction]) -> None:
    for one, other in zip(expected, actual, strict=True):
        for ours, theirs in zip((one, *one.alternatives), (other, *other.alternatives), strict=True):
            assert (ours.text, ours.tokens, ours.truncated, ours.looped) == (
                theirs.text, theirs.tokens, theirs.truncated, theirs.looped,
            )  # fmt: skip
            assert theirs.score == pytest.approx(ours.score, abs=1e-4)
            assert theirs.ranking_score == pytest.approx(ours.ranking_score, abs=1e-4)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("norm", ["post_norm", "pre_norm"])
def test_hypotheses_and_scores_are_the_same(
    norm: str, search: dict[str, Any], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: regard.Model = request.getfixturevalue(norm)
    expected = model.predict(TEXTS, attention=False, **search)
    counter = TorchCounter(monkeypatch)
    assert_same(expected, model.predict(TEXTS, attention=False, engine="ct2", **search))
    assert counter.sources < len(TEXTS), "torch predicted everything"


@pytest.mark.parametrize("search", [{}, {"beam": 3, "nbest": 2}], ids=str)
def test_unusual_sources_have_the_same_predictions(post_norm: regard.Model, search: dict[str, Any]) -> None:
    expected = post_norm.predict(UNUSUAL, attention=False, **search)
    assert_same(expected, post_norm.predict(UNUSUAL, attention=False, engine="ct2", **search))
    assert expected[0].text == expected[1].text == ""


def test_predictions_at_the_length_limit_are_those_of_torch(pre_norm: regard.Model) -> None:
    for search in ({"loop_guard": False}, {"beam": 5}):
        expected = pre_norm.predict(TEXTS, attention=False, **search)
        truncated = sum(prediction.truncated for prediction in expected)
        assert 0 < truncated < len(TEXTS)
        assert_same(expected, pre_norm.predict(TEXTS, attention=False, engine="ct2", **search))


def test_the_loop_guard_applies(pre_norm: regard.Model) -> None:
    predictions = pre_norm.predict(TEXTS, attention=False, engine="ct2")
    assert 0 < sum(prediction.looped for prediction in predictions) < len(TEXTS)


def test_predictions_do_not_depend_on_the_batch_size(post_norm: regard.Model) -> None:
    expected = post_norm.predict(TEXTS, attention=False, engine="ct2", batch_size=64)
    assert_same(expected, post_norm.predict(TEXTS, attention=False, engine="ct2", batch_size=7))


def test_changed_weights_are_converted_again(post_norm: regard.Model) -> None:
    model = regard.load(post_norm.run.path, device="cpu") if post_norm.run else post_norm
    model.predict(TEXTS[0], attention=False, engine="ct2")
    model.network.load_state_dict(post_norm.network.state_dict())
    expected = post_norm.predict(TEXTS, attention=False, beam=5)
    assert_same(expected, model.predict(TEXTS, attention=False, beam=5, engine="ct2"))


def test_weights_that_are_not_finite_are_reported(post_norm: regard.Model) -> None:
    assert post_norm.run is not None
    model = regard.load(post_norm.run.path, device="cpu")
    with torch.no_grad():
        next(iter(model.network.decoder.parameters())).fill_(torch.nan)
    with pytest.raises(regard.ModelError, match="not finite"):
        model.predict(TEXTS[:2], attention=False, engine="ct2")


def test_int8_is_supported(post_norm: regard.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    precisions = []
    translator = ctranslate2.Translator

    def open_model(*args: Any, **options: Any) -> Any:
        opened = translator(*args, **options)
        precisions.append(opened.compute_type)
        return opened

    monkeypatch.setattr(ctranslate2, "Translator", open_model)
    predictions = post_norm.predict(TEXTS[:8], attention=False, engine="ct2", precision="int8")
    assert len(predictions) == 8
    assert precisions[0].startswith("int8")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"attention": True}, "attention weights"),
        ({"banned": ["Hund"]}, "constraints"),
        ({"sample": True}, "sample=True"),
        ({"beam": 4, "groups": 2}, "groups=2"),
        ({"min_length": 3}, "min_length=3"),
        ({"beam": 5, "length_penalty": 1.5}, "length_penalty=1.5"),
        ({"no_repeat_ngram": 2}, "no_repeat_ngram=2"),
    ],
)
def test_what_ctranslate2_cannot_compute_is_refused(
    post_norm: regard.Model, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(regard.ConfigError, match=f"The engine ct2 cannot be used: {named} .* engine torch"):
        post_norm.predict(TEXTS[:2], **{"attention": False, "engine": "ct2", **options})


def test_a_missing_package_is_refused_with_the_remedy(post_norm: regard.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    importlib.invalidate_caches()
    with pytest.raises(regard.ConfigError, match=r"pip install 'regard\[fast\]'"):
        post_norm.predict(TEXTS[0], attention=False, engine="ct2")
    assert post_norm.predict(TEXTS[0], attention=False, engine="auto").text is not None


def test_another_dtype_is_refused(post_norm: regard.Model) -> None:
    assert post_norm.run is not None
    model = regard.load(post_norm.run.path, device="cpu", dtype="float64")
    with pytest.raises(regard.ConfigError, match="float64"):
        model.predict(TEXTS[0], attention=False, engine="ct2")


def test_an_ensemble_is_refused(post_norm: regard.Model) -> None:
    assert post_norm.run is not None
    model = regard.load(post_norm.run.path, post_norm.run.path, device="cpu")
    with pytest.raises(regard.ConfigError, match="ensembles"):
        model.predict(TEXTS[0], attention=False, engine="ct2")
