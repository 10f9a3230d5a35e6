"""Help is fast and complete, and does not import torch."""

import subprocess
from collections.abc import Callable
from importlib.metadata import version

import pytest
import torch

from regard.cli.verbs import VERBS
from tests_command import find_imports

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_help_imports_no_large_package() -> None:
    """They take most of the time of a command that prints a few lines. `benchmarks/startup.py` measures it."""
    assert not find_imports("--help").modules & {"torch", "numpy", "pydantic", "matplotlib", "tokenizers", "yaml"}


def test_a_typo_is_reported_without_torch() -> None:
    done = find_imports("train", "dates", "model.attention.score=aditive")
    assert done.result.returncode == 2
    assert "'aditive' is not a valid model.attention.score. Did you mean 'additive'?" in done.result.stderr
    assert not done.modules & {"torch", "matplotlib", "tokenizers"}


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_has_help_that_ends_in_examples(cli: Run, verb: str) -> None:
    done = cli(verb, "-h")
    assert done.returncode == 0
    assert f"regard {verb}" in done.stdout.partition("Examples:")[2]


def test_all_verbs_are_listed(cli: Run) -> None:
    done = cli("--help")
    assert all(verb in done.stdout for verb in VERBS)


def test_the_version_names_what_reports_of_problems_need(cli: Run) -> None:
    first, second = cli("--version").stdout.splitlines()
    assert first == f"regard {version('regard')}"
    assert f"torch {torch.__version__}" in second
    assert second.endswith(torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU")


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
    facts = cli("mechanisms", "--facts").stdout.splitlines()
    assert [line.split()[1:] for line in facts if line.startswith("luong-local-p ")] == [
        ["learned", "O(T)", "exact", "no", "encoder"]
    ]
    assert '"needs_past":true' in cli("mechanisms", "--json").stdout.replace(" ", "")
