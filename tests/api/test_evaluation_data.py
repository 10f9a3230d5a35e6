"""The pairs of a run: its test set, and the first sources of it."""

from pathlib import Path

import pytest

import regard
from regard.api.evaluation_data import read_examples, read_test_set
from regard.errors import DataError
from regard.runs.folder import RunFolder
from tests_shared import SMALL


def test_examples_are_the_first_sources_of_the_test_set(small_run: RunFolder) -> None:
    test_set = read_test_set(small_run, small_run.all_checkpoints()[-1])
    assert read_examples(small_run, 8) == test_set.sources[:8]


def test_examples_do_not_require_that_all_files_are_read(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{number}\t{number + 1}\n" for number in range(2_000)))
    settings = {key: value for key, value in SMALL.items() if not key.startswith("data.")}
    changes = {**settings, "data.train": str(pairs), "training.steps": 1, "training.warmup": 0}
    regard.train("pairs", changes, out=tmp_path / "run", quiet=True)
    run = RunFolder(tmp_path / "run")
    examples = read_examples(run, 8)
    assert len(examples) == 8
    with pairs.open("a") as file:
        file.write("a line without a separator\n")
    assert read_examples(run, 8) == examples
    with pytest.raises(DataError):
        read_test_set(run, run.all_checkpoints()[-1])
