"""Help is fast and complete, and does not import torch."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.cli.verbs import VERBS
from tests_command import children_seconds

Run = Callable[..., subprocess.CompletedProcess[str]]
REGARD = Path(sys.executable).parent / "regard"


def min_seconds(*arguments: str) -> float:
    """Return the shortest CPU time of five runs, because a busy machine makes some of them slower."""
    times = []
    for _ in range(5):
        start = children_seconds()
        subprocess.run([REGARD, *arguments], capture_output=True, check=False)
        times.append(children_seconds() - start)
    return min(times)


def test_help_takes_less_than_0_3_seconds() -> None:
    assert min_seconds("--help") < 0.3


def test_a_typo_is_reported_in_under_a_second(cli: Run) -> None:
    done = cli("train", "dates", "model.attention.score=aditive")
    assert done.returncode == 2
    assert "'aditive' is not a valid model.attention.score. Did you mean 'additive'?" in done.stderr
    assert min_seconds("train", "dates", "model.attention.score=aditive") < 1.0


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_has_help_that_ends_in_examples(cli: Run, verb: str) -> None:
    done = cli(verb, "-h")
    assert done.returncode == 0
    assert f"regard {verb}" in done.stdout.partition("Examples:")[2]


def test_all_verbs_are_listed(cli: Run) -> None:
    done = cli("--help")
    assert all(verb in done.stdout for verb in VERBS)
    assert cli("--version").stdout.startswith("regard 0.")


def test_an_unknown_verb_gets_the_nearest_as_suggestion(cli: Run) -> None:
    done = cli("trian")
    assert done.returncode == 2
    assert "There is no command 'trian'. Did you mean 'train'?" in done.stderr


def test_presets_and_mechanisms_are_listed(cli: Run) -> None:
    names = [line.split()[0] for line in cli("presets").stdout.splitlines()]
    assert {"dates", "pronounce", "multi30k-transformer"} <= set(names)
    assert "data:" in cli("presets", "dates").stdout
    table = cli("mechanisms").stdout
    assert "bahdanau" in table
    assert "arXiv:1409.0473" in table
