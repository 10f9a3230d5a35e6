"""Shared fixtures: small runs, trained once, and the command line."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import hypothesis
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # must be set before Triton is imported

import regard
from regard.runs.folder import RunFolder
from tests_command import HANG, Result, run_preloaded
from tests_seed import DAILY_SEED, VARIABLE
from tests_shared import SMALL

ONEDNN = torch.backends.mkldnn.enabled
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["REGARD_CACHE"] = tempfile.mkdtemp(prefix="regard-cache-")
atexit.register(shutil.rmtree, os.environ["REGARD_CACHE"], ignore_errors=True)
# On a loaded machine, no example may fail because it is slow.
hypothesis.settings.register_profile(
    "regard", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("regard")


def pytest_report_header() -> str:
    return f"seed of the fuzz tests: {DAILY_SEED} ({VARIABLE})"


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Train a small model for a few steps."""
    path = tmp_path_factory.mktemp("runs") / "small"
    regard.train("dates", SMALL, out=path)
    return RunFolder(path)


@pytest.fixture(scope="session")
def second_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Train another architecture on the same data, with the same tokenizers."""
    path = tmp_path_factory.mktemp("runs") / "second"
    regard.train("dates", {**SMALL, "model.decoder.order": "luong"}, out=path)
    return RunFolder(path)


@pytest.fixture(scope="session")
def executions(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> Path:
    """The folder of the executed lessons of the course, which all processes of one test run share."""
    return tmp_path_factory.getbasetemp().parent / f"course-{testrun_uid}"


@pytest.fixture
def cli(tmp_path: Path) -> Callable[..., Result]:
    """Run `regard …` in a separate process, in an empty folder. `start=run_fresh` starts a new interpreter."""

    def run(
        *arguments: str | Path,
        stdin: bytes | str = b"",
        cwd: Path = tmp_path,
        timeout: float = HANG,
        start: Callable[[list[str], bytes, Path, float], Result] = run_preloaded,
    ) -> Result:
        content = stdin.encode() if isinstance(stdin, str) else stdin
        return start(list(map(str, arguments)), content, cwd, timeout)

    return run


def skip_half_precision() -> Generator[None, object, object]:
    """Skip a test in half precision on an ARM CPU whose features torch cannot read."""
    try:
        return (yield)
    except RuntimeError as error:
        if "Failed to initialize cpuinfo" in str(error):
            pytest.skip("half precision needs /sys, which is not mounted")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    # On some CPUs, torch disables oneDNN for the whole process at the first product in bfloat16. Training in a later
    # test would then round differently.
    torch.backends.mkldnn.enabled = ONEDNN
    return (yield from skip_half_precision())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    return (yield from skip_half_precision())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slowest tests first, so that all workers finish at about the same time. Skip some on Windows."""
    for item in items:
        if os.name == "nt" and item.get_closest_marker("posix"):
            item.add_marker(pytest.mark.skip(reason="Windows does not have what this test uses"))
    items.sort(key=lambda item: "test_readme" not in item.nodeid)
