"""Every command and every example of the README and the guides runs, in order, as a reader would do it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("attention", "recurrent", "models", "training", "tokenisation", "evaluation")
    ),
]
BLOCKS = [
    block
    for page in PAGES
    for block in re.findall(r"^```(bash|python)\n(.*?)^```", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
]
NOT_HERE = re.compile(r"^make (demo|test)$", flags=re.MULTILINE)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> dict[str, subprocess.CompletedProcess[str]]:
    """What each block printed."""
    place = tmp_path_factory.mktemp("reader")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = {}
    for language, code in BLOCKS:
        code = NOT_HERE.sub("", code)
        program = ["bash", "-euo", "pipefail", "-c"] if language == "bash" else [sys.executable, "-W", "error", "-c"]
        done[code] = subprocess.run(
            [*program, code],
            cwd=place,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    return done


def test_all_of_it_runs(reader: dict[str, subprocess.CompletedProcess[str]]) -> None:
    assert len(reader) >= 9
    for code, done in reader.items():
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


def test_the_model_of_the_readme_knows_dates(reader: dict[str, subprocess.CompletedProcess[str]]) -> None:
    """`regard evaluate … --min accuracy=0.99` passed on 1,000 unseen dates; and it answers as the text says."""
    [commands] = [done for code, done in reader.items() if "regard evaluate runs/dates" in code]
    assert "on 1,000 pairs" in commands.stdout
    assert commands.stdout.count("2009-05-03\n") >= 3
    assert "1989-07-14" in commands.stdout
    [python] = [done for code, done in reader.items() if "model.trace" in code]
    assert python.stdout.startswith("2009-05-03 ")
    assert "█" in python.stdout
