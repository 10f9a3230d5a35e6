"""Training from Python: on pairs in memory, which are stored in the run folder."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.runs.folder import RunFolder
from tests_command import Result
from tests_shared import stop_at

_random = random.Random(0)
WORDS = ["".join(_random.choices("abcdefg", k=_random.randint(2, 6))) for _ in range(300)]
PAIRS = [(word, word[::-1]) for word in dict.fromkeys(WORDS)]
TINY: dict[str, Any] = {
    "model": {"kind": "recurrent", "embedding": 8, "encoder": {"hidden": 8}, "decoder": {"hidden": 8}},
    "training.steps": 30,
    "training.validate_every": 10,
    "training.save_every": 10,
    "training.log_every": 5,
    "training.warmup": 5,
    "training.device": "cpu",
}


def read_weights(run: Path) -> dict[str, torch.Tensor]:
    newest = RunFolder(run).newest()
    assert newest is not None
    return load_file(newest.path / "model.safetensors")


def are_identical(one: Path, other: Path) -> bool:
    left, right = read_weights(one), read_weights(other)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def side_of_pairs(side: int) -> list[str]:
    return [pair[side] for pair in PAIRS]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "run"
    regard.train(pairs=PAIRS, overrides=TINY, out=path, quiet=True)
    return path


def test_pairs_are_stored_in_the_run_folder(run: Path) -> None:
    lines = (run / "data" / "train.jsonl").read_text("utf-8").splitlines()
    assert [(record["source"], record["target"]) for record in map(json.loads, lines)] == PAIRS
    assert sorted(path.name for path in (run / "data").iterdir()) == ["train.jsonl"]
    assert "folder: data\n" in (run / "config.yaml").read_text()


def test_the_settings_are_chosen_and_the_reasons_are_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = regard.train(pairs=PAIRS, overrides={**TINY, "training.steps": 2}, out=tmp_path / "run")
    printed = capfd.readouterr()
    assert printed.out == ""
    for text in (
        f"Data: {len(PAIRS)} pairs of words in Latin script.",
        "Tokenizer: characters, shared vocabulary.",
        "Held out by source sentence: about ",
        "Set by you: training.steps=2.",
        "override one with overrides={key: value}",
    ):
        assert text in printed.err
    assert run.load(device="cpu").predict("abc").source_tokens == ["a", "b", "c"]


def test_the_same_call_resumes_with_the_same_weights(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run, tmp_path / "run")
    for checkpoint in ("step-20", "step-30"):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / checkpoint)
    with stop_at(10, monkeypatch):
        regard.train(pairs=iter(PAIRS), overrides=TINY, out=tmp_path / "run", quiet=True)
    regard.train(
        pairs={"en": side_of_pairs(0), "de": side_of_pairs(1)}, overrides=TINY, out=tmp_path / "run", quiet=True
    )
    assert are_identical(tmp_path / "run", run)


@pytest.mark.slow
def test_a_moved_run_is_resumed_and_evaluated_by_the_command_line(
    tmp_path: Path, run: Path, cli: Callable[..., Result]
) -> None:
    shutil.copytree(run, tmp_path / "moved" / "run")
    moved = tmp_path / "moved" / "run"
    (moved / ".lock").unlink()
    for checkpoint in ("step-20", "step-30"):
        shutil.rmtree(moved / "checkpoints" / checkpoint)
    hidden = run.rename(run.with_name("hidden"))
    try:
        assert cli("train", moved).returncode == 0
        assert are_identical(moved, hidden)
        assert "folder: data\n" in (moved / "config.yaml").read_text()
        test = tmp_path / "test.tsv"
        test.write_text("abc\tcba\n")
        evaluated = cli("evaluate", moved, "--pairs", test, "--metric", "accuracy")
        assert evaluated.returncode == 0, evaluated.stderr
    finally:
        hidden.rename(run)


@pytest.mark.parametrize(
    "changed", [{"pairs": PAIRS[1:]}, {"pairs": [*PAIRS, ("new", "wen")]}, {"pairs": PAIRS, "dev": PAIRS[:3]}]
)
def test_different_pairs_are_an_error(run: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(regard.DataError, match=r"the data has changed since .* Pass the same pairs .*, or choose"):
        regard.train(**changed, overrides=TINY, out=run)


def test_a_run_on_other_data_is_not_overwritten(small_run: RunFolder) -> None:
    with pytest.raises(regard.DataError, match="was started with other data"):
        regard.train(pairs=PAIRS, out=small_run.path)
    assert not (small_run.path / "data").exists()


def test_dev_and_test_pairs_are_stored_and_used(tmp_path: Path, cli: Callable[..., Result]) -> None:
    path = tmp_path / "run"
    splits = {"train": PAIRS[10:], "validation": PAIRS[:10]}
    run = regard.train(
        pairs=splits, test=PAIRS[:7], overrides={**TINY, "training.steps": 2}, out=path, quiet=True, minutes=None
    )
    assert run.best is not None
    assert run.best.pairs == 10
    assert sorted(entry.name for entry in (path / "data").iterdir()) == ["dev.jsonl", "test.jsonl", "train.jsonl"]
    evaluated = cli("evaluate", path, "--json")
    assert json.loads(evaluated.stdout)["pairs"] == 7


def test_a_deadline_applies_to_pairs(tmp_path: Path) -> None:
    run = regard.train(pairs=PAIRS, minutes=0.05, out=tmp_path / "run", quiet=True)
    assert RunFolder(run.path).settings().training.minutes == 0.05


def test_pairs_of_an_attempt_without_a_checkpoint_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(regard.api.training, "choose_or_reuse", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            regard.train(pairs=PAIRS[50:], dev=PAIRS[:50], out=tmp_path / "run")
    regard.train(pairs=PAIRS, overrides={**TINY, "training.steps": 2}, out=tmp_path / "run", quiet=True)
    assert sorted(entry.name for entry in (tmp_path / "run" / "data").iterdir()) == ["train.jsonl"]


def test_tabs_quotes_and_line_breaks_stay_within_a_pair(tmp_path: Path) -> None:
    odd = [("a\tb", 'c"d'), ("e\nf", "g\r\nh"), ("\u2028i", "j\x00"), ("{", "\\")]
    run = regard.train(pairs=[*PAIRS, *odd], overrides={**TINY, "training.steps": 2}, out=tmp_path / "run", quiet=True)
    lines = (run.path / "data" / "train.jsonl").read_text("utf-8").split("\n")[:-1]
    assert [(record["source"], record["target"]) for record in map(json.loads, lines)][-4:] == odd


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({}, regard.ConfigError, "There is nothing to train. Pass config"),
        ({"config": "dates", "pairs": PAIRS}, regard.ConfigError, "config and pairs cannot be combined"),
        ({"config": "dates", "dev": PAIRS}, regard.ConfigError, "dev needs pairs"),
        ({"config": "dates", "columns": ("a", "b")}, regard.ConfigError, "columns needs pairs"),
        ({"config": 3}, regard.ArgumentTypeError, "config must be a preset, a path or a mapping of settings, not int"),
        ({"config": PAIRS}, regard.ArgumentTypeError, "To train on pairs, use pairs="),
        (
            {"config": "dates", "overrides": ["a=b"]},
            regard.ArgumentTypeError,
            r"overrides must be a mapping .* not \['a",
        ),
        ({"config": "dates", "out": 3}, regard.ArgumentTypeError, "out must be a path, not int"),
        ({"pairs": []}, regard.DataError, "pairs is empty"),
        ({"pairs": ["ab", "cd"]}, regard.ArgumentTypeError, r"pairs\[0\] must be a pair"),
        ({"pairs": PAIRS, "dev": [("a", 1)]}, regard.ArgumentTypeError, r"dev\[0\]: the target must be a text"),
        ({"pairs": PAIRS, "overrides": {"training.stepz": 3}}, regard.ConfigError, "Did you mean 'steps'"),
        ({"pairs": PAIRS, "minutes": -1}, regard.ConfigError, "minutes"),
        ({"pairs": [("", "a")]}, regard.DataError, "no usable pair"),
    ],
)
def test_wrong_arguments_of_train(tmp_path: Path, arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        regard.train(**{"out": tmp_path / "run", **arguments})
