"""What tests share: a small run, trained once, and the command line as a user has it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import regard
from regard.training.folder import RunFolder

SMALL = {
    "data.train": 400,
    "data.dev": 40,
    "data.test": 40,
    "model.embedding": 16,
    "model.encoder.hidden": 16,
    "model.decoder.hidden": 16,
    "training.steps": 30,
    "training.batch_size": 32,
    "training.warmup": 5,
    "training.validate_every": 10,
    "training.save_every": 10,
    "training.log_every": 5,
}
"""Overrides that make of `dates` a run of a few seconds."""

Result = subprocess.CompletedProcess[str]


def words(settings: dict[str, object]) -> list[str]:
    """Settings as the words of a command."""
    return [f"{key}={value}" for key, value in settings.items()]


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that has learned nothing much, quickly."""
    path = tmp_path_factory.mktemp("runs") / "small"
    regard.train("dates", SMALL, out=path)
    return RunFolder(path)


@pytest.fixture
def cli(tmp_path: Path) -> Callable[..., Result]:
    """Run `regard …` in a real process, in an empty folder."""

    def run(*arguments: str | Path, stdin: bytes | str = b"", cwd: Path = tmp_path, timeout: float = 120) -> Result:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        command = [sys.executable, "-m", "regard", *map(str, arguments)]
        env = {**os.environ, "PYTHONWARNINGS": "default", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, input=given, capture_output=True, cwd=cwd, timeout=timeout, env=env, check=False)
        return Result(command, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
