"""Runs on files, with segmentations drawn at random: stopped anywhere they end the same, whatever befell the cache."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.data import cache
from regard.data.cache import sha256
from regard.data.sampler import BatchSampler
from regard.runs.events import read_events
from regard.runs.folder import RunFolder
from tests_shared import SMALL, stopped_at

SETTINGS = {
    **{key: value for key, value in SMALL.items() if not key.startswith("data.")},
    "tokenizer": "bpe",
    "tokenizer.vocabulary": 60,
    "tokenizer.dropout": 0.1,
    "model.dropout": 0.2,
    "training.steps": 20,
    "training.save_every": 4,
    "training.batch_tokens": 250,
    "training.accumulate": 2,
    "training.ema_decay": 0.9,
}


def lines(count: int) -> Iterator[str]:
    drawn = random.Random(5)
    for _ in range(count):
        said = [drawn.choice(["lauf", "geh", "red", "stell"]) + drawn.choice(["en", "ung", "bar"]) for _ in range(3)]
        yield f"{' '.join(said)}\t{' '.join(reversed(said)).upper()}\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "train.tsv"
    path.write_text("".join(lines(150)))
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def train(corpus: Path, out: Path, **changes: Any) -> None:
    regard.train("pairs", {"data.train": str(corpus), **SETTINGS, **changes}, out=out)


def train_until(step: int, corpus: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stopped_at(step, monkeypatch):
        train(corpus, out)


def end(path: Path) -> tuple[dict[str, str], list[object]]:
    files = {file.name: sha256(file) for file in (path / "checkpoints" / "step-20").iterdir()}
    timed = {"time", "tokens_per_second"}
    events = read_events(RunFolder(path).events)
    return files, [{key: value for key, value in event.items() if key not in timed} for event in events]


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], list[object]]:
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    train(corpus, path)
    return end(path)


def leave(place: Path) -> None:
    del place


def flip_ids(place: Path) -> None:
    """One bit, every size being as it was."""
    flip(place, ("*.uint*",))


def flip(place: Path, names: tuple[str, ...] = ("*.uint*", "*.npz", "dev.json")) -> None:
    """One bit in each file of the corpus."""
    for path in (path for name in names for path in place.glob(f"corpora/*/{name}")):
        content = bytearray(path.read_bytes())
        content[0] ^= 1
        path.write_bytes(content)


def cut(place: Path) -> None:
    for path in place.glob("corpora/*/*.npz"):
        path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("harm", [leave, shutil.rmtree, flip, cut])
def test_stopped_in_any_epoch_it_ends_the_same_whatever_befell_the_cache(
    corpus: Path,
    undisturbed: object,
    own_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[Path], None],
) -> None:
    for step in (3, 14):
        train_until(step, corpus, tmp_path / "run", monkeypatch)
        harm(own_cache)
    train(corpus, tmp_path / "run")
    assert end(tmp_path / "run") == undisturbed


def trust(path: Path) -> str:
    """The hash that is expected, whatever the file holds."""
    return str(json.loads((path.parent / "manifest.json").read_text())[path.name])


@pytest.mark.parametrize(
    ("guard", "harm"),
    [
        pytest.param((BatchSampler, "epoch_at", lambda *_: 0), leave, id="epoch of the segmentations"),
        pytest.param((cache, "sha256", trust), flip_ids, id="hash of the cache"),
    ],
)
def test_without_the_guard_it_ends_otherwise(
    corpus: Path,
    undisturbed: tuple[dict[str, str], list[object]],
    own_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    guard: tuple[object, str, Callable[..., object]],
    harm: Callable[[Path], None],
) -> None:
    train_until(14, corpus, tmp_path / "run", monkeypatch)
    harm(own_cache)
    monkeypatch.setattr(*guard)
    train(corpus, tmp_path / "run")
    assert end(tmp_path / "run")[0] != undisturbed[0]


def test_a_file_that_changes_while_training_runs_is_told_when_it_goes_on(
    corpus: Path, undisturbed: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "train.tsv"
    shutil.copy(corpus, own)
    train_until(14, own, tmp_path / "run", monkeypatch)
    before = own.read_bytes()
    own.write_bytes(before + b"one\tmore\n")
    with pytest.raises(regard.DataError, match=r"train.tsv: the data has changed since .*run was started"):
        train(own, tmp_path / "run")
    own.write_bytes(before)
    train(own, tmp_path / "run")
    assert end(tmp_path / "run")[0]["model.safetensors"] == undisturbed[0]["model.safetensors"]  # type: ignore[index]
