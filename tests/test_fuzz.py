"""Malformed settings, data files, model folders and API calls are rejected with clear errors (`benchmarks/fuzz.py`).

`tests/laws/test_settings_fuzz.py` resolves more settings.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fuzz
from tests_command import HANG
from tests_seed import DAILY_SEED

pytestmark = pytest.mark.slow

CASES = {"settings": 100, "data": 300, "models": 300, "api": 300}
CHUNK = 50
CHUNKS = [(kind, first) for kind, cases in CASES.items() for first in range(0, cases, CHUNK)]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fuzz.Sandbox]:
    """On a loaded machine, only a case that hangs takes too long. `benchmarks/fuzz.py` has stricter limits."""
    with (
        pytest.MonkeyPatch.context() as patch,
        fuzz.open_sandbox(tmp_path_factory.mktemp("fuzz")) as sandbox,
    ):
        patch.setattr(fuzz, "CPU_SECONDS", HANG)
        patch.setattr(fuzz, "ELAPSED_SECONDS", HANG)
        yield sandbox


@pytest.mark.parametrize(("kind", "first"), CHUNKS)
def test_malformed_input_is_rejected(kind: str, first: int, sandbox: fuzz.Sandbox) -> None:
    results = [fuzz.run_case(kind, DAILY_SEED, number, sandbox) for number in range(first, first + CHUNK)]
    failures = [
        f"seed {DAILY_SEED}, case {failure.number}: {failure.reason}\n{failure.detail}"
        for failure in results
        if failure
    ]
    assert not failures, "\n\n".join(failures)


def test_a_bug_a_change_and_a_hang_are_failures(sandbox: fuzz.Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks themselves can fail."""

    def write_outside(*_: object) -> fuzz.Command:
        return fuzz.Command(["presets"])

    def fail() -> None:
        raise KeyError("x")

    def compute() -> None:
        while True:
            pass

    def wait() -> None:
        time.sleep(60)

    monkeypatch.setattr(fuzz, "CPU_SECONDS", 0.2)
    monkeypatch.setattr(fuzz, "ELAPSED_SECONDS", 1.5)
    for call, reason in ((fail, "KeyError"), (compute, "TimeoutError"), (wait, "TimeoutError")):
        monkeypatch.setattr(fuzz, "make_call", lambda *_, call=call: call)
        failure = fuzz.run_case("api", DAILY_SEED, 0, sandbox)
        assert failure is not None
        assert reason in failure.reason
    monkeypatch.setattr(fuzz, "make_call", lambda *_: lambda: Path("new").touch())
    failure = fuzz.run_case("api", DAILY_SEED, 0, sandbox)
    assert failure is not None
    assert failure.reason == fuzz.CHANGED
    monkeypatch.setattr(fuzz, "ELAPSED_SECONDS", 60)
    monkeypatch.setattr(fuzz, "CPU_SECONDS", 1)
    monkeypatch.setitem(fuzz.COMMANDS, "settings", lambda *_: fuzz.Command(["train", "dates"]))
    failure = fuzz.run_case("settings", DAILY_SEED, 0, sandbox)
    assert failure is not None
    assert failure.reason == "more than 1 s of CPU time"
    monkeypatch.setattr(fuzz, "CPU_SECONDS", 10)
    hashes = iter("ab")
    monkeypatch.setitem(fuzz.COMMANDS, "data", write_outside)
    monkeypatch.setattr(fuzz.Sandbox, "hash_surroundings", lambda _: next(hashes))
    failure = fuzz.run_case("data", DAILY_SEED, 0, sandbox)
    assert failure is not None
    assert failure.reason == fuzz.CHANGED
