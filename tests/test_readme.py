"""The commands and examples of the guides run in order, and print the outputs quoted on the page."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock

from tests_preloaded import start_preloaded

ROOT = Path(__file__).parents[1]
GUIDES = (
    "attention",
    "recurrent",
    "tokenization",
    "evaluation",
    "comparing",
    "looking",
    "alignment",
    "cost",
    "captions",
    "attribution",
    "trace",
    "trace-document",
    "edits",
    *(f"guides/{path.stem}" for path in sorted((ROOT / "docs" / "guides").glob("*.md"))),
)
TRAINING = ("training", "data-files", "training-settings", "attention-diagnostics", "fine-tuning")
"""The pages on training, in the order in which they use each other's runs."""

DEADLINE = re.compile(r"--minutes 0\.5\b")
SHORT_DEADLINE = "--minutes 0.2"
"""Models whose predictions are not checked are trained for a shorter time than on the page."""

SHORT_RUN = re.compile(r"^( *regard train dates[\w-]*)(?=(?:.*\\\n)*.*training\.steps=)", flags=re.MULTILINE)
"""Trainings of a few steps, whose validation takes longer than the training. They validate on fewer pairs."""

BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)

QUOTED = re.compile(r"# → (.+)$", flags=re.MULTILINE)
"""The quoted output of a command: lines, separated by commas."""

TRAIN_DATES = re.compile(r"^regard train dates( +#.*)?$", flags=re.MULTILINE)
"""The command that trains `runs/dates`, the model of several pages."""

Results = dict[str, subprocess.CompletedProcess[str]]


class Programs(NamedTuple):
    """How the blocks of a page are run."""

    path: str
    """The value of PATH."""
    python: tuple[str, ...]
    """The command that runs an example in Python."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """The programs of this environment, with a `regard` and a Python that start fast."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if not hasattr(os, "fork"):
        yield Programs(path, (sys.executable, "-W", "error", "-c"))
        return
    with start_preloaded(tmp_path_factory.mktemp("preloaded")) as folder:
        yield Programs(f"{folder}{os.pathsep}{path}", (str(folder / "run-python"),))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A temporary folder that all workers of pytest-xdist share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def train_dates(programs: Programs, shared: Path) -> Path:
    """Run `regard train dates` for all pages that start with it. Only the first call trains: a finished run is
    resumed at once.
    """
    with FileLock(shared / "dates.lock"):
        command = ["regard", "train", "dates"]
        subprocess.run(command, cwd=shared, env={**os.environ, "PATH": programs.path}, capture_output=True, check=True)
    return shared / "runs" / "dates"


def run_pages(programs: Programs, shared: Path, folder: Path, *pages: Path) -> Results:
    """Run all code blocks of some pages, one after the other in one folder, and check the quoted outputs."""
    results: Results = {}
    text = "\n".join(page.read_text("utf-8") for page in pages)
    if TRAIN_DATES.search(text):
        shutil.copytree(train_dates(programs, shared), folder / "runs" / "dates")
    for language, block in BLOCK.findall(text):
        code = SHORT_RUN.sub(r"\1 data.dev=50", DEADLINE.sub(SHORT_DEADLINE, block))
        program = ("bash", "-euo", "pipefail", "-c") if language == "bash" else programs.python
        results[code] = subprocess.run(
            [*program, code],
            cwd=folder,
            env={**os.environ, "PATH": programs.path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert results[code].returncode == 0, f"{code}\n{results[code].stdout}\n{results[code].stderr}"
        printed = iter(results[code].stdout.splitlines())
        for line in (line for quoted in QUOTED.findall(code) for line in quoted.split(", ")):
            assert line in printed, f"{code}\n{line} is not printed, or in another order:\n{results[code].stdout}"
    return results


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
def test_examples_of_a_guide_run(guide: str, programs: Programs, shared: Path, tmp_path: Path) -> None:
    assert len(run_pages(programs, shared, tmp_path, ROOT / "docs" / f"{guide}.md")) >= 2


@pytest.mark.parametrize("guide", [guide for guide in GUIDES if guide.startswith("guides/")])
def test_a_guide_is_short(guide: str) -> None:
    assert len((ROOT / "docs" / f"{guide}.md").read_text("utf-8").splitlines()) < 80


@pytest.mark.slow
def test_examples_of_the_first_steps_run_and_their_model_is_accurate(
    programs: Programs, shared: Path, tmp_path: Path
) -> None:
    """`regard evaluate … --min accuracy=0.99` passes on 1,000 unseen dates, and predictions are as quoted. The guides
    to models and to training use the models of the first steps.
    """
    pages = [ROOT / "docs" / f"{name}.md" for name in ("first-steps", "models", *TRAINING)]
    results = run_pages(programs, shared, tmp_path, *pages)
    assert len(results) >= 9
    [commands] = [result for code, result in results.items() if "regard evaluate runs/dates" in code]
    assert "on 1,000 pairs" in commands.stdout
    assert commands.stdout.count("2009-05-03\n") >= 3
    assert "1989-07-14" in commands.stdout
    [python] = [result for code, result in results.items() if "model.trace" in code]
    assert python.stdout.startswith("2009-05-03 ")
    assert "█" in python.stdout


def test_every_extra_is_listed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    rows = re.findall(r"^\| (`.+) \|", (ROOT / "docs" / "install.md").read_text("utf-8"), flags=re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[0])) == sorted(extras)
