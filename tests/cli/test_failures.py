"""Failures that do not come from regard itself: plugins that exit, interrupted imports, memory limits."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.cli.failures import report_failures
from regard.runs.folder import RunFolder

Run = Callable[..., Any]


@pytest.mark.parametrize("code", ["0", "", "3"])
def test_a_plugin_that_exits_when_it_is_imported_is_reported(
    cli: Run, small_run: RunFolder, tmp_path: Path, code: str
) -> None:
    (tmp_path / "leaves.py").write_text(f"import sys\nsys.exit({code})\n")
    done = cli("predict", small_run.path, "8 May", "--import", "leaves.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"The plugin leaves.py could not be imported: it calls sys.exit({code or None})" in done.stderr


def test_a_plugin_that_exits_later_is_reported_with_its_line(cli: Run, small_run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(
        "import sys\n"
        "from regard.decoding.predictor import Predictor\n"
        "def predict(*arguments, **options):\n"
        "    sys.exit()\n"
        "Predictor.predict = predict\n"
    )
    done = cli("predict", small_run.path, "8 May", "--import", "leaves.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "leaves.py:4 called sys.exit(None)" in done.stderr


def test_an_interrupt_ends_an_import_at_once(cli: Run, tmp_path: Path) -> None:
    """A native library that is interrupted while it is imported replaces KeyboardInterrupt, or aborts the process."""
    (tmp_path / "native.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    raise SystemError('initialization failed')\n"
    )
    done = cli("predict", "run", "8 May", "--import", "native.py")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "regard: Stopped.\n")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 5056 bytes."),
        RuntimeError("can't start new thread"),
        type("PanicException", (BaseException,), {})("ThreadPoolBuildError { kind: IOError }"),
    ],
    ids=str,
)
def test_exceptions_of_libraries_that_run_out_of_memory_are_no_bugs(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped, report_failures(debug=False):
        raise error
    assert stopped.value.code == 7
    assert "regard: Out of memory." in capsys.readouterr().err


def test_a_failure_while_nothing_more_can_be_allocated_is_a_lack_of_memory() -> None:
    """Under a limit, native libraries fail in ways that do not mention memory."""
    program = (
        "import resource\n"
        "from regard.cli.failures import report_failures\n"
        "with report_failures(debug=False):\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))\n"
        "    raise SystemError('error return without exception set')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr.startswith("regard: Out of memory.")
