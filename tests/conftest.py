"""What tests share: a small run, trained once, and the command line as a user has it."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run as plain Python, where it is set before Triton is imported

import regard
from regard.runs.folder import RunFolder
from tests_command import Result, warm
from tests_shared import SMALL

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["REGARD_CACHE"] = tempfile.mkdtemp(prefix="regard-cache-")
atexit.register(shutil.rmtree, os.environ["REGARD_CACHE"], ignore_errors=True)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that has learned nothing much, quickly."""
    path = tmp_path_factory.mktemp("runs") / "small"
    regard.train("dates", SMALL, out=path)
    return RunFolder(path)


@pytest.fixture(scope="session")
def second_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Another architecture, trained on the same data: the same tokenizers."""
    path = tmp_path_factory.mktemp("runs") / "second"
    regard.train("dates", {**SMALL, "model.decoder.order": "luong"}, out=path)
    return RunFolder(path)


@pytest.fixture
def cli(tmp_path: Path) -> Callable[..., Result]:
    """Run `regard …` in a process of its own, in an empty folder; a fresh one where its start matters."""

    def run(
        *arguments: str | Path,
        stdin: bytes | str = b"",
        cwd: Path = tmp_path,
        timeout: float = 120,
        start: Callable[[list[str], bytes, Path, float], Result] = warm,
    ) -> Result:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        return start(list(map(str, arguments)), given, cwd, timeout)

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip what torch cannot compute on an ARM CPU whose features it cannot read."""
    try:
        return (yield)
    except RuntimeError as error:
        if "Failed to initialize cpuinfo" in str(error):
            pytest.skip("torch computes in half precision only where it can read /sys: mount it")
        raise


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest come first, so that no worker is left with one of them at the end."""
    items.sort(key=lambda item: "test_readme" not in item.nodeid)
