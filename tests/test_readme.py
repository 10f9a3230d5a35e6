"""Every command and every example of the README and the guides runs, in order, and prints what the page states."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDES = ("attention", "recurrent", "training", "tokenization", "evaluation")
NOT_HERE = re.compile(r"^make (demo|test)$", flags=re.MULTILINE)
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)

STATED = re.compile(r"# → (.+)$", flags=re.MULTILINE)
"""What a page says that a command prints: lines, with commas between."""

Done = dict[str, subprocess.CompletedProcess[str]]


def follow(place: Path, *pages: Path) -> Done:
    """What each block of some pages printed, one after the other in one folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done: Done = {}
    for language, block in (found for page in pages for found in BLOCK.findall(page.read_text("utf-8"))):
        code = NOT_HERE.sub("", block)
        program = ["bash", "-euo", "pipefail", "-c"] if language == "bash" else [sys.executable, "-W", "error", "-c"]
        done[code] = subprocess.run(
            [*program, code],
            cwd=place,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done[code].returncode == 0, f"{code}\n{done[code].stdout}\n{done[code].stderr}"
        printed = iter(done[code].stdout.splitlines())
        for answer in (answer for stated in STATED.findall(code) for answer in stated.split(", ")):
            assert answer in printed, f"{code}\n{answer} is not printed, or not in its place:\n{done[code].stdout}"
    return done


@pytest.mark.parametrize("guide", GUIDES)
def test_every_example_of_a_guide_runs(guide: str, tmp_path: Path) -> None:
    assert len(follow(tmp_path, ROOT / "docs" / f"{guide}.md")) >= 2


def test_every_example_of_the_readme_runs_and_its_model_knows_dates(tmp_path: Path) -> None:
    """`regard evaluate … --min accuracy=0.99` passed on 1,000 unseen dates; and it answers as the text says. The guide
    to models goes on with what the README has trained.
    """
    done = follow(tmp_path, ROOT / "README.md", ROOT / "docs" / "models.md")
    assert len(done) >= 9
    [commands] = [found for code, found in done.items() if "regard evaluate runs/dates" in code]
    assert "on 1,000 pairs" in commands.stdout
    assert commands.stdout.count("2009-05-03\n") >= 3
    assert "1989-07-14" in commands.stdout
    [python] = [found for code, found in done.items() if "model.trace" in code]
    assert python.stdout.startswith("2009-05-03 ")
    assert "█" in python.stdout
