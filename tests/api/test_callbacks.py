"""Callbacks: they see every step, validation and checkpoint, and cannot change or damage a run."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.runs.folder import RunFolder
from tests_command import NOISE
from tests_shared import SMALL, stop_at

Weights = dict[str, torch.Tensor]


def read_weights(run: Path) -> Weights:
    """Return the weights of the newest checkpoint."""
    newest = RunFolder(run).newest()
    assert newest is not None
    return load_file(newest.path / "model.safetensors")


def are_identical(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Recorder(regard.Callback):
    """Stores every notification, and uses random numbers."""

    def __init__(self) -> None:
        self.steps: list[regard.StepInfo] = []
        self.validations: list[regard.ValidationInfo] = []
        self.saves: list[regard.SaveInfo] = []
        self.order: list[str] = []

    def on_step(self, info: regard.StepInfo) -> None:
        torch.rand(info.step)
        self.steps.append(info)
        self.order.append(f"step {info.step}")

    def on_validation(self, info: regard.ValidationInfo) -> None:
        torch.manual_seed(info.step)
        self.validations.append(info)
        self.order.append(f"validation {info.step}")

    def on_save(self, info: regard.SaveInfo) -> None:
        assert RunFolder(info.path.parent.parent).newest() is not None
        self.saves.append(info)
        self.order.append(f"save {info.step}")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recorder]:
    path, recorder = tmp_path_factory.mktemp("callbacks") / "run", Recorder()
    regard.train("dates", SMALL, out=path, callbacks=recorder)
    return path, recorder


def test_callbacks_are_notified_of_each_step_validation_and_checkpoint(recorded: tuple[Path, Recorder]) -> None:
    path, recorder = recorded
    assert [info.step for info in recorder.steps] == list(range(1, 31))
    assert {info.steps for info in recorder.steps} == {30}
    assert [info.step for info in recorder.validations] == [10, 20, 30]
    assert [info.path for info in recorder.saves] == [path / "checkpoints" / f"step-{step}" for step in (10, 20, 30)]
    assert recorder.order[9:13] == ["step 10", "validation 10", "save 10", "step 11"]


def test_callbacks_see_the_values_of_the_event_log(recorded: tuple[Path, Recorder]) -> None:
    path, recorder = recorded
    events = regard.Run(path, None, 30).events
    logged = {event["step"]: event for event in events if event["event"] == "train"}
    assert sorted(logged) == [5, 10, 15, 20, 25, 30]
    for info in recorder.steps:
        if info.step in logged:
            assert (info.loss, info.learning_rate) == (logged[info.step]["loss"], logged[info.step]["learning_rate"])
            assert round(info.tokens_per_second) == logged[info.step]["tokens_per_second"]
    validations = [event for event in events if event["event"] == "validation"]
    assert [(info.best, info.metrics["accuracy"]) for info in recorder.validations] == [
        (event["best"], event["accuracy"]) for event in validations
    ]


def test_callbacks_do_not_change_the_weights(recorded: tuple[Path, Recorder], small_run: RunFolder) -> None:
    assert are_identical(read_weights(recorded[0]), read_weights(small_run.path))


class Failing(regard.Callback):
    """Raises an exception at a step, in one of the methods."""

    def __init__(self, method: str, step: int, error: BaseException) -> None:
        setattr(self, method, self._fail)
        self.step, self.error = step, error

    def _fail(self, info: Any) -> None:
        if info.step == self.step:
            raise self.error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "step", "last"),
    [("on_step", 17, 10), ("on_step", 20, 10), ("on_validation", 20, 10), ("on_save", 20, 20)],
)
def test_an_exception_stops_the_run_which_resumes_with_the_same_weights(
    tmp_path: Path, small_run: RunFolder, method: str, step: int, last: int
) -> None:
    error = RuntimeError("from the callback")
    with pytest.raises(RuntimeError) as raised:
        regard.train("dates", SMALL, out=tmp_path / "run", callbacks=[Recorder(), Failing(method, step, error)])
    assert raised.value is error
    assert next(entry.step for entry in RunFolder(tmp_path / "run").complete_checkpoints()) == last
    regard.train("dates", SMALL, out=tmp_path / "run")
    assert are_identical(read_weights(tmp_path / "run"), read_weights(small_run.path))
    logged = [event["step"] for event in regard.Run(tmp_path / "run", None, 30).events if event["event"] == "train"]
    assert logged == [5, 10, 15, 20, 25, 30]


def test_a_full_disk_in_a_callback_is_not_reported_as_that_of_the_run(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, "No space left on device", "elsewhere.log")
    with pytest.raises(OSError, match="elsewhere") as raised:
        regard.train("dates", SMALL, out=tmp_path / "run", callbacks=Failing("on_step", 1, error))
    assert raised.value is error


class OnlySaves:
    """Has one of the methods, and is not a subclass of Callback."""

    def __init__(self) -> None:
        self.paths: list[Path] = []

    def on_save(self, info: regard.SaveInfo) -> None:
        self.paths.append(info.path)


def test_any_object_with_one_of_the_methods_is_a_callback(tmp_path: Path) -> None:
    saves = OnlySaves()
    settings = {**SMALL, "training.steps": 2, "training.save_every": 1, "training.validate_every": 2}
    regard.train("dates", settings, out=tmp_path / "run", callbacks=(saves,))
    assert [path.name for path in saves.paths] == ["step-1", "step-2"]


@pytest.mark.parametrize("callbacks", [3, print, [None], [Recorder(), object()], Recorder, "on_step"])
def test_what_is_not_a_callback_is_rejected_before_training(tmp_path: Path, callbacks: Any) -> None:
    with pytest.raises(regard.ArgumentTypeError, match=r"is not a callback\. A callback is an object with one of"):
        regard.train("dates", SMALL, out=tmp_path / "run", callbacks=callbacks)
    assert not (tmp_path / "run").exists()


def test_an_average_of_checkpoints_is_reported_with_its_name(tmp_path: Path) -> None:
    recorder = Recorder()
    settings = {**SMALL, "training.steps": 4, "training.validate_every": 2, "training.average_checkpoints": 2}
    regard.train("dates", settings, out=tmp_path / "run", callbacks=recorder)
    assert [info.average for info in recorder.validations] == [None, None, "average-4"]
    names = [info.path.name for info in recorder.saves]
    assert names == ["step-2", "step-4", *["average-4"] * recorder.validations[-1].best, "step-4"]


def test_a_resumed_run_notifies_of_the_remaining_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stop_at(15, monkeypatch):
        regard.train("dates", SMALL, out=tmp_path / "run")
    recorder = Recorder()
    regard.train("dates", SMALL, out=tmp_path / "run", callbacks=recorder)
    assert [info.step for info in recorder.steps] == list(range(11, 31))


TRUNCATING = {**SMALL, "training.steps": 2, "training.log_every": 1, "tokenizer.max_length": 5}
"""Settings that give a warning: texts are truncated."""


@pytest.mark.slow
@pytest.mark.parametrize("quiet", [True, False])
def test_a_quiet_run_prints_nothing(tmp_path: Path, quiet: bool) -> None:
    script = f"import regard; regard.train('dates', {TRUNCATING!r}, out='run', quiet={quiet})"
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout == ""
    if quiet:
        assert NOISE.sub("", result.stderr) == ""
    else:
        assert all(text in result.stderr for text in ("Training", "Truncated", "step 2/2", "Best model"))


def test_a_quiet_run_does_not_hide_warnings_from_configured_logging(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    regard.train("dates", TRUNCATING, out=tmp_path / "run", quiet=True)
    assert "Truncated" in caplog.text


@pytest.mark.parametrize("config", ["dates", None], ids=["preset", "pairs"])
def test_a_callback_may_change_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    class Leave(regard.Callback):
        def on_step(self, info: regard.StepInfo) -> None:
            del info
            os.chdir(tmp_path / "elsewhere")

    pairs = None if config else [(f"{number} a", f"{number} b") for number in range(40)]
    overrides = {**SMALL, "training.steps": 4, "training.save_every": 2} if config else {"training.steps": 4}
    run = regard.train(config, overrides, pairs=pairs, out="run", callbacks=Leave(), quiet=True)
    assert run.path == tmp_path / "run"
    assert run.load().step
    assert not list((tmp_path / "elsewhere").iterdir())
