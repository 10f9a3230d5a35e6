"""The mean of the last checkpoints: the same whatever stopped the run, and made again where it was lost."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.data.cache import sha256
from regard.runs import checkpoints
from regard.runs.events import read_events
from regard.runs.folder import RunFolder
from regard.training import loop
from tests_shared import SMALL

SETTINGS = {
    **SMALL,
    "model.dropout": 0.1,
    "training.learning_rate": 0.08,
    "training.decay": "none",
    "training.steps": 60,
    "training.validate_every": 30,
    "training.save_every": 5,
    "training.average_checkpoints": 3,
    "training.metric": "loss",
}
"""A recipe in which the mean is better than each."""


def train(path: Path) -> None:
    regard.train("dates", SETTINGS, out=path)


def end(path: Path) -> dict[str, Any]:
    """The model that is used, the last state, and what happened, without the clock."""
    best = RunFolder(path).best().path
    files = {
        file.name: sha256(file) for folder in (best, path / "checkpoints" / "step-60") for file in folder.iterdir()
    }
    events = [{k: v for k, v in event.items() if "time" not in k and "second" not in k} for event in _events(path)]
    return {"best": best.name, **files, "events": events}


def _events(path: Path) -> list[dict[str, Any]]:
    return read_events(RunFolder(path).events)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("means") / "run"
    train(path)
    assert RunFolder(path).best().path.name == "mean-60"
    return path


def test_a_signal_between_saves_does_not_change_what_the_mean_is_of(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = loop.take_step

    def signalled(run: loop.TrainingState) -> tuple[float, int]:
        if run.progress.step == 56:
            os.kill(os.getpid(), signal.SIGTERM)
        return take(run)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "take_step", signalled)
        with pytest.raises(regard.Interrupted, match="after step 57"):
            train(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "step-57").exists()
    train(tmp_path / "run")
    assert end(tmp_path / "run") == end(undisturbed)


@pytest.mark.parametrize("moment", ["save_average", "save"])
def test_killed_before_or_after_the_mean_is_written_it_ends_the_same(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    whole: Callable[..., Any] = getattr(checkpoints, moment)

    def die(*given: Any) -> Any:
        if any(isinstance(part, checkpoints.RunProgress) and part.averaged for part in given):
            raise KeyboardInterrupt
        return whole(*given)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, moment, die)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "mean-60").exists() == (moment == "save")
    assert RunFolder(tmp_path / "run").best().path.name == "step-60"
    train(tmp_path / "run")
    assert end(tmp_path / "run") == end(undisturbed)


@pytest.mark.parametrize("harm", ["flip", "half", "lose"])
def test_a_damaged_mean_is_noticed_and_made_again(
    undisturbed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    shutil.copytree(undisturbed, tmp_path / "run")
    mean = tmp_path / "run" / "checkpoints" / "mean-60"
    if harm == "flip":
        content = bytearray((mean / "model.safetensors").read_bytes())
        content[-7] ^= 1
        (mean / "model.safetensors").write_bytes(content)
    elif harm == "half":
        (mean / "manifest.json").unlink()
    else:
        shutil.rmtree(mean)
    assert RunFolder(tmp_path / "run").best().path.name == "step-60"
    assert "mean-60" in caplog.text
    train(tmp_path / "run")
    assert end(tmp_path / "run") == end(undisturbed)


def test_what_the_mean_is_of_cannot_be_changed_on_the_way(undisturbed: Path) -> None:
    with pytest.raises(regard.ConfigError, match=r"training.save_every was 5 and is now 20"):
        regard.train("dates", {**SETTINGS, "training.save_every": 20}, out=undisturbed)
