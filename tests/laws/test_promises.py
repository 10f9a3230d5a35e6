"""Guarantees for every tokenizer and architecture: one output line per input line, and no effect of batching."""

import io
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.cli import predict
from regard.models.contracts import Tokens
from tests_shared import SMALL, thin

KINDS: dict[str, dict[str, object]] = {
    "bpe, recurrent": {"tokenizer": "bpe", "tokenizer.vocabulary": 60, "tokenizer.dropout": 0.1},
    "bytes, transformer": {
        "tokenizer": "bpe",
        "tokenizer.vocabulary": 300,
        "tokenizer.byte_fallback": True,
        "model": "transformer",
        "model.size": 16,
        "model.heads": 2,
        "model.layers": 1,
    },
    "word, fixed": {"tokenizer": "word", "model": "fixed"},
    "unigram, recurrent": {"tokenizer": "unigram", "tokenizer.vocabulary": 60, "tokenizer.alpha": 0.2},
}

LINES = [
    "lauf geh",
    "",
    "lauf\u2028geh\u2029red\u0085stell\x0blauf\x0cgeh\x1cred\x1dstell\x1egeh\x1fred\rlauf",
    "   ",
    "\u200b",
    "<s> </s> <unk> <0x0A>",
    "unheard-of Wörter ☃ 漢字",
    "lauf " * 12,
    "",
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "train.tsv"
    rng = random.Random(3)
    lines = [[rng.choice(["lauf", "geh", "red", "stell"]) for _ in range(rng.randint(1, 5))] for _ in range(120)]
    path.write_text("".join(f"{' '.join(words)}\t{''.join(words).upper()} {n}\n" for n, words in enumerate(lines)))
    return path


@pytest.fixture(scope="module", params=thin(KINDS, 2))
def run(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a model for two steps, so that its predictions are arbitrary."""
    out = tmp_path_factory.mktemp("kinds") / "run"
    training = {key: value for key, value in SMALL.items() if key.startswith("training.")}
    short = {"training.steps": 2, "training.batch_size": 16, "training.validation_pairs": 2}
    regard.train("pairs", {"data.train": str(corpus), **training, **short, **KINDS[request.param]}, out=out)
    return out


@pytest.fixture(scope="module")
def model(run: Path) -> regard.Model:
    return regard.load(run)


@pytest.mark.parametrize("search", [[], ["--beam", "3"], ["--set", "sample=true", "--set", "temperature=30"]])
def test_predict_writes_one_line_per_input_line(
    run: Path, search: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = LINES * 2
    content = b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    predict.command.main([str(run), *search], standalone_mode=False)
    predictions = capsys.readouterr().out.split("\n")
    assert len(predictions) == len(lines) + 1
    assert predictions.pop() == ""
    assert all(prediction == "" for line, prediction in zip(lines, predictions, strict=True) if not line)


def test_a_generated_line_break_does_not_split_the_output_line(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = regard.load(run).predictor.tokenizer
    line_break = tokenizer.inner.token_to_id("<0x0A>")
    if line_break is None:
        assert "\n" not in "".join(tokenizer.decode([index]) for index in range(len(tokenizer)))
        return
    assert tokenizer.decode([line_break]) == "\n"
    load_weights = regard.runs.checkpoints.load_weights

    def prefer_line_break(network: torch.nn.Module, checkpoint: object) -> None:
        load_weights(network, checkpoint)  # type: ignore[arg-type]
        bias = [parameter for name, parameter in network.named_parameters() if len(parameter) == len(tokenizer)][-1]
        bias.data.index_fill_(0, torch.tensor([line_break]), 1e3)

    monkeypatch.setattr(regard.runs.checkpoints, "load_weights", prefer_line_break)
    assert "\n" in regard.load(run).predict("lauf").text
    predict.command.main([str(run), "lauf", "geh"], standalone_mode=False)
    assert capsys.readouterr().out.count("\n") == 2


@pytest.mark.parametrize("search", [{}, {"beam": 3, "nbest": 2}], ids=str)
def test_a_prediction_does_not_depend_on_the_rest_of_the_batch(model: regard.Model, search: dict[str, Any]) -> None:
    batch = model.predict(LINES, attention=False, **search)
    for line, prediction in zip(LINES, batch, strict=True):
        single = model.predict(line, attention=False, **search)
        assert single.text == prediction.text
        # A sum in the hundreds has five exact digits in float32.
        assert single.score == pytest.approx(prediction.score, abs=1e-5, rel=1e-6)
        assert len(single.alternatives) == len(prediction.alternatives)


def test_a_beam_larger_than_the_vocabulary_returns_distinct_predictions(model: regard.Model) -> None:
    wide = model.predict("red", attention=False, beam=3 * len(model.predictor.tokenizer), nbest=3)
    predictions = [wide, *wide.alternatives]
    assert len({tuple(prediction.tokens) for prediction in predictions}) == 3
    assert all(-1e3 < prediction.score < 0 for prediction in predictions)


def test_without_the_mask_the_batch_changes_predictions(model: regard.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    single = [model.predict(line, attention=False).score for line in LINES[:1]]
    init = Tokens.__init__
    monkeypatch.setattr(
        Tokens, "__init__", lambda self, tokens, lengths: init(self, tokens, torch.full_like(lengths, tokens.shape[1]))
    )
    batch = [prediction.score for prediction in model.predict(LINES, attention=False)][:1]
    assert batch != pytest.approx(single, abs=1e-5)


def test_an_empty_source_has_an_empty_prediction(model: regard.Model) -> None:
    empty = model.predict("")
    assert (empty.text, empty.score, empty.truncated) == ("", 0.0, False)
    assert all(torch.tensor(score).isfinite() for score in model.score(["", "lauf"], ["LAUF", ""]))
