"""Predictions with ONNX Runtime are those of torch."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from tests_marian import make_pairs
from tests_onnx import KINDS, SEARCHED, train, train_captioner

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is missing; install it with: pip install -e '.[test]'")

TEXTS = [*(source for source, _ in make_pairs(30, seed=1)), "", "the dog ☃ sees a man.", "the old man " * 20]
SEARCHES: list[dict[str, Any]] = [
    {},
    {"beam": 5, "nbest": 2},
    {"sample": True, "seed": 3},
    {"beam": 4, "groups": 2, "no_repeat_ngram": 3},
    {"beam": 5, "prefix": ["der"] * len(TEXTS), "banned": ["Hund"]},
]


def assert_same(expected: list[regard.Prediction], actual: list[regard.Prediction]) -> None:
    for one, other in zip(expected, actual, strict=True):
        for ours, theirs in zip((one, *one.alternatives), (other, *other.alternatives), strict=True):
            assert (ours.text, ours.tokens, ours.truncated, ours.looped) == (
                theirs.text, theirs.tokens, theirs.truncated, theirs.looped,
            )  # fmt: skip
            assert theirs.score == pytest.approx(ours.score, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEARCHED)
def test_hypotheses_and_scores_are_the_same(tmp_path: Path, kind: str) -> None:
    model = train(tmp_path / "run", 200, **KINDS[kind])
    for search in SEARCHES:
        expected = model.predict(TEXTS, attention=False, **search)
        assert_same(expected, model.predict(TEXTS, attention=False, engine="onnx", batch_size=7, **search))
    pairs = make_pairs(20, seed=3)
    metrics = [model.evaluate(pairs, engine=engine).metric_values.values for engine in ("torch", "onnx")]
    assert metrics[0] == pytest.approx(metrics[1])


@pytest.mark.slow
def test_a_captioner_gives_the_same_captions(tmp_path: Path) -> None:
    model = train_captioner(tmp_path / "run")
    images = [np.random.default_rng(seed).integers(256, size=(64, 64, 3), dtype=np.uint8) for seed in range(3)]
    expected = model.predict(images, attention=False, beam=5)
    assert_same(expected, model.predict(images, attention=False, engine="onnx", beam=5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": True}, "attention weights cannot be requested. .* engine torch"),
        ({"beam": 5, "coverage_penalty": 0.2}, "coverage_penalty=0.2 cannot be requested"),
        ({"precision": "int8"}, "does not support int8"),
    ],
)
def test_what_it_cannot_compute_is_refused(small_run: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(regard.ConfigError, match=f"The engine onnx cannot be used: .*{message}"):
        regard.load(small_run.path).predict("3 mai 2009", **{"attention": False, "engine": "onnx", **options})


def test_models_that_it_cannot_compute_are_refused(
    small_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_run.path
    with pytest.raises(regard.ConfigError, match="ensembles"):
        regard.load(path, path).predict("3 mai 2009", attention=False, engine="onnx")
    for dtype in ("float64", "int8"):
        with pytest.raises(regard.ConfigError, match=dtype):
            regard.load(path, dtype=dtype).predict("3 mai 2009", attention=False, engine="onnx")
    long = train(tmp_path / "long", **{**KINDS["transformer"], "tokenizer.max_length": 4000})
    with pytest.raises(regard.ConfigError, match="4,096 positions"):
        long.predict("the dog", attention=False, engine="onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(regard.ConfigError, match=r"onnxruntime is not installed. Run pip install 'regard\[export\]'"):
        regard.load(path).predict("3 mai 2009", attention=False, engine="onnx")
