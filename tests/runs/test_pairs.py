"""The pairs of a run: its test set, and the first pairs of it or of the dev set."""

from pathlib import Path

import pytest

import regard
from regard.errors import DataError
from regard.runs.folder import RunFolder
from regard.runs.pairs import read_held_out, read_test_set
from tests_shared import SMALL


def test_examples_are_the_first_sources_of_the_test_set(small_run: RunFolder) -> None:
    test_set = read_test_set(small_run, small_run.all_checkpoints()[-1])
    assert read_held_out(small_run, 8) == ("test", test_set.first(8), None)


def train_on_files(tmp_path: Path, **files: Path) -> RunFolder:
    settings = {key: value for key, value in SMALL.items() if not key.startswith("data.")}
    paths = {f"data.{split}": str(path) for split, path in files.items()}
    regard.train("pairs", {**settings, **paths, "training.steps": 1, "training.warmup": 0}, out=tmp_path, quiet=True)
    return RunFolder(tmp_path)


def write_numbers(path: Path, first: int, last: int) -> Path:
    path.write_text("".join(f"{number}\t{number + 1}\n" for number in range(first, last)))
    return path


def test_examples_do_not_require_that_all_files_are_read(tmp_path: Path) -> None:
    pairs = write_numbers(tmp_path / "pairs.tsv", 0, 2_000)
    run = train_on_files(tmp_path / "run", train=pairs)
    examples = read_held_out(run, 8)
    assert len(examples.pairs) == 8
    with pairs.open("a") as file:
        file.write("a line without a separator\n")
    assert read_held_out(run, 8) == examples
    with pytest.raises(DataError):
        read_test_set(run, run.all_checkpoints()[-1])
    with pytest.raises(DataError, match=r"changed since .* Restore the file\.$"):
        read_held_out(run, 8, unchanged_since=run.all_checkpoints()[-1])


def test_without_a_test_set_examples_are_dev_pairs(tmp_path: Path) -> None:
    train, dev = write_numbers(tmp_path / "train.tsv", 0, 50), write_numbers(tmp_path / "dev.tsv", 50, 60)
    run = train_on_files(tmp_path / "run", train=train, dev=dev)
    split, pairs, size = read_held_out(run, 4, unchanged_since=run.all_checkpoints()[-1])
    assert (split, list(pairs)) == ("dev", [("50", "51"), ("51", "52"), ("52", "53"), ("53", "54")])
    assert size == 10
