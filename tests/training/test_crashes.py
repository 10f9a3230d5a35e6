"""A crash or a disk error at every call of fsync, rename and unlink: the run resumes bit-identically."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.data.cache import sha256
from regard.runs.events import read_events
from regard.runs.folder import RunFolder
from tests_fault_injection import CALLS, LAST, SETTINGS

ROOT = Path(__file__).parents[2]


def final_state(path: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return hashes of the last checkpoint, and the events without times."""
    files = {file.name: sha256(file) for file in (path / "checkpoints" / "step-2").iterdir()}
    timed = {"time", "tokens_per_second"}
    events = [
        {key: value for key, value in event.items() if key not in timed} for event in read_events(path / "events.jsonl")
    ]
    return files, events


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace, which injects the errors, is not installed")
@pytest.mark.parametrize("injected", ["signal=SIGKILL", "error=EIO"])
def test_a_run_resumes_bit_identically_whichever_call_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, injected: str
) -> None:
    trace = ["strace", "-f", "-o", os.devnull, "-e", f"trace={CALLS}"]
    inject = ["-e", f"inject={CALLS}:{injected}:when={LAST}"]
    script = [sys.executable, str(ROOT / "tests" / "tests_fault_injection.py"), str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*trace, *inject, *script], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    expected = final_state(tmp_path / "undisturbed")
    runs = [run for call in CALLS.split(",") for run in tmp_path.glob(f"{call}-*")]
    assert len(runs) > 20
    assert len(list(tmp_path.glob("unlinkat-*"))) > 4, "a checkpoint has four files, and its folder"
    for run in runs:
        folder = RunFolder(run)
        newest = folder.newest()
        assert newest is None or newest.step in {1, 2}
        assert [entry.find_problem() for entry in folder.all_checkpoints()] == [None] * len(folder.all_checkpoints())
        monkeypatch.setenv("REGARD_CACHE", str(run / "cache"))
        regard.train("dates", SETTINGS, out=run)
        assert final_state(run) == expected, run.name
        assert not list(run.glob("checkpoints/.*")) + list(run.glob("cache/*/.*")), run.name
