"""Runs on files with sampled segmentations resume bit-identically, even if the cache is lost or damaged."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import regard
from regard.data import cache
from regard.data.cache import sha256
from regard.data.sampler import BatchSampler
from regard.runs.events import read_events
from regard.runs.folder import RunFolder
from tests_shared import SMALL, stop_at

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
    rng = random.Random(5)
    for _ in range(count):
        words = [rng.choice(["lauf", "geh", "red", "stell"]) + rng.choice(["en", "ung", "bar"]) for _ in range(3)]
        yield f"{' '.join(words)}\t{' '.join(reversed(words)).upper()}\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "train.tsv"
    path.write_text("".join(lines(150)))
    return path


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def train(corpus: Path, out: Path) -> None:
    regard.train("pairs", {"data.train": str(corpus), **SETTINGS}, out=out)


def train_until(step: int, corpus: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stop_at(step, monkeypatch):
        train(corpus, out)


def read_result(path: Path) -> tuple[dict[str, str], list[object]]:
    """The hashes of the files of the last checkpoint, and the events without times."""
    files = {file.name: sha256(file) for file in (path / "checkpoints" / "step-20").iterdir()}
    timed = {"time", "tokens_per_second"}
    events = read_events(RunFolder(path).events)
    return files, [{key: value for key, value in event.items() if key not in timed} for event in events]


@pytest.fixture(scope="module")
def uninterrupted(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], list[object]]:
    path = tmp_path_factory.mktemp("uninterrupted") / "run"
    train(corpus, path)
    return read_result(path)


def leave_unchanged(cache_folder: Path) -> None:
    del cache_folder


def flip_ids(cache_folder: Path) -> None:
    """Flip a bit of the token ids, which does not change the size of any file."""
    flip(cache_folder, ("*.uint*",))


def flip(cache_folder: Path, names: tuple[str, ...] = ("*.uint*", "*.npz", "dev.json")) -> None:
    """Flip a bit in each file of the corpus."""
    for path in (path for name in names for path in cache_folder.glob(f"corpora/*/{name}")):
        content = bytearray(path.read_bytes())
        content[0] ^= 1
        path.write_bytes(content)


def truncate(cache_folder: Path) -> None:
    for path in cache_folder.glob("corpora/*/*.npz"):
        path.write_bytes(path.read_bytes()[:100])


@pytest.mark.slow
@pytest.mark.parametrize("damage", [leave_unchanged, shutil.rmtree, flip, truncate])
def test_a_stopped_run_ends_the_same_even_if_the_cache_is_damaged(
    corpus: Path,
    uninterrupted: object,
    cache_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
) -> None:
    for step in (3, 14):
        train_until(step, corpus, tmp_path / "run", monkeypatch)
        damage(cache_folder)
    train(corpus, tmp_path / "run")
    assert read_result(tmp_path / "run") == uninterrupted


def read_expected_hash(path: Path) -> str:
    """Return the hash in the manifest instead of the hash of the file."""
    return str(json.loads((path.parent / "manifest.json").read_text())[path.name])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("safeguard", "damage"),
    [
        pytest.param((BatchSampler, "epoch_at", lambda *_: 0), leave_unchanged, id="epoch of the segmentations"),
        pytest.param((cache, "sha256", read_expected_hash), flip_ids, id="hash of the cache"),
    ],
)
def test_without_a_safeguard_the_weights_differ(
    corpus: Path,
    uninterrupted: tuple[dict[str, str], list[object]],
    cache_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    safeguard: tuple[object, str, Callable[..., object]],
    damage: Callable[[Path], None],
) -> None:
    train_until(14, corpus, tmp_path / "run", monkeypatch)
    damage(cache_folder)
    monkeypatch.setattr(*safeguard)
    train(corpus, tmp_path / "run")
    assert read_result(tmp_path / "run")[0] != uninterrupted[0]


def test_a_changed_file_is_reported_on_resume(
    corpus: Path, uninterrupted: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.tsv"
    shutil.copy(corpus, file)
    train_until(14, file, tmp_path / "run", monkeypatch)
    before = file.read_bytes()
    file.write_bytes(before + b"one\tmore\n")
    with pytest.raises(regard.DataError, match=r"train.tsv: the data has changed since .*run was started"):
        train(file, tmp_path / "run")
    file.write_bytes(before)
    train(file, tmp_path / "run")
    weights = read_result(tmp_path / "run")[0]["model.safetensors"]
    assert weights == uninterrupted[0]["model.safetensors"]  # type: ignore[index]
