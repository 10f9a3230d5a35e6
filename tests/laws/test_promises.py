"""What users may rely on with every tokenizer and architecture: a line for a line, and no word from a neighbor."""

import io
import random
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.cli import predict
from regard.models.contracts import Padded
from tests_shared import SMALL

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
    drawn = random.Random(3)
    words = [[drawn.choice(["lauf", "geh", "red", "stell"]) for _ in range(drawn.randint(1, 5))] for _ in range(120)]
    path.write_text("".join(f"{' '.join(own)}\t{''.join(own).upper()} {n}\n" for n, own in enumerate(words)))
    return path


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned next to nothing, and says anything."""
    out = tmp_path_factory.mktemp("kinds") / "run"
    usual = {key: value for key, value in SMALL.items() if key.startswith("training.")}
    brief = {"training.steps": 2, "training.batch_size": 16, "training.validation_pairs": 2}
    regard.train("pairs", {"data.train": str(corpus), **usual, **brief, **KINDS[request.param]}, out=out)
    return out


@pytest.fixture(scope="module")
def model(run: Path) -> regard.Model:
    return regard.load(run)


@pytest.mark.parametrize("search", [[], ["--beam", "3"], ["--set", "sample=true", "--set", "temperature=30"]])
def test_there_is_a_line_for_every_line(
    run: Path, search: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = LINES * 2
    given = b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    predict.command.main([str(run), *search], standalone_mode=False)
    answers = capsys.readouterr().out.split("\n")
    assert len(answers) == len(lines) + 1
    assert answers.pop() == ""
    assert all(answer == "" for line, answer in zip(lines, answers, strict=True) if not line)


def test_a_model_that_writes_a_line_end_still_answers_in_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = regard.load(run).predictor.tokenizers.target
    end = tokenizer.inner.token_to_id("<0x0A>")
    if end is None:
        assert "\n" not in "".join(tokenizer.decode([index]) for index in range(len(tokenizer)))
        return
    assert tokenizer.decode([end]) == "\n"
    load_weights = regard.runs.checkpoints.load_weights

    def prefer(network: torch.nn.Module, chosen: object) -> None:
        load_weights(network, chosen)  # type: ignore[arg-type]
        bias = [parameter for name, parameter in network.named_parameters() if len(parameter) == len(tokenizer)][-1]
        bias.data.index_fill_(0, torch.tensor([end]), 1e3)

    monkeypatch.setattr(regard.runs.checkpoints, "load_weights", prefer)
    assert "\n" in regard.load(run).predict("lauf").text
    predict.command.main([str(run), "lauf", "geh"], standalone_mode=False)
    assert capsys.readouterr().out.count("\n") == 2


@pytest.mark.parametrize("search", [{}, {"beam": 3, "nbest": 2}], ids=str)
def test_a_sentence_alone_or_among_others_has_the_same_answer(model: regard.Model, search: dict[str, int]) -> None:
    together = model.predict(LINES, attention=False, **search)
    for line, found in zip(LINES, together, strict=True):
        alone = model.predict(line, attention=False, **search)
        assert alone.text == found.text
        # Of a sum in the hundreds, float32 has no digits beyond the fifth.
        assert alone.score == pytest.approx(found.score, abs=1e-5, rel=1e-6)
        assert len(alone.alternatives) == len(found.alternatives)


def test_a_beam_wider_than_the_vocabulary_finds_answers_like_any_other(model: regard.Model) -> None:
    wide = model.predict("red", attention=False, beam=3 * len(model.predictor.tokenizers.target), nbest=3)
    answers = [wide, *wide.alternatives]
    assert len({tuple(answer.tokens) for answer in answers}) == 3
    assert all(-1e3 < answer.score < 0 for answer in answers)


def test_without_the_mask_neighbors_would_be_heard(model: regard.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [model.predict(line, attention=False).score for line in LINES[:1]]
    monkeypatch.setattr(Padded, "valid_BT", property(lambda self: torch.ones_like(self.tokens_BT, dtype=torch.bool)))
    monkeypatch.setattr(Padded, "lengths_B", property(lambda self: torch.full_like(self[1], self.tokens_BT.shape[1])))
    together = [found.score for found in model.predict(LINES, attention=False)][:1]
    assert together != pytest.approx(alone, abs=1e-5)


def test_a_source_without_a_token_has_a_defined_answer(model: regard.Model) -> None:
    empty = model.predict("")
    assert (empty.text, empty.score, empty.truncated) == ("", 0.0, False)
    assert all(torch.tensor(score).isfinite() for score in model.score(["", "lauf"], ["LAUF", ""]))
