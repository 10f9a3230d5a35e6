"""Extending a run by steps or patience gives the weights of a run that had these settings from the start."""

from pathlib import Path
from typing import Any

import pytest

import regard
from regard.data.cache import sha256
from regard.runs.folder import RunFolder
from tests_shared import SMALL, stop_at

OPEN_ENDED = {
    **SMALL,
    "data.dev": 8,
    "model.dropout": 0.1,
    "training.batch_size": 8,
    "training.decay": "inverse_sqrt",
    "training.patience": 50,
}


def train(path: Path, settings: dict[str, Any]) -> regard.Run:
    return regard.train("dates", {**OPEN_ENDED, **settings}, out=path)


def hash_weights(path: Path, step: int) -> list[str]:
    checkpoint = RunFolder(path).checkpoints / f"step-{step}"
    return [sha256(checkpoint / name) for name in ("model.safetensors", "optimizer.safetensors")]


def read_validations(run: regard.Run) -> list[tuple[int, float]]:
    return [(event["step"], event["loss"]) for event in run.events if event["event"] == "validation"]


@pytest.mark.slow
def test_a_finished_run_can_be_extended(tmp_path: Path) -> None:
    longer = train(tmp_path / "longer", {"training.steps": 40})
    train(tmp_path / "run", {"training.steps": 20})
    extended = regard.train(tmp_path / "run", {"training.steps": 40})
    assert extended.steps == 40
    assert hash_weights(tmp_path / "run", 40) == hash_weights(tmp_path / "longer", 40)
    assert read_validations(extended) == read_validations(longer)
    assert RunFolder(tmp_path / "run").settings().training.steps == 40


@pytest.mark.slow
def test_an_unfinished_run_can_be_extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longer = train(tmp_path / "longer", {"training.steps": 30})
    with stop_at(15, monkeypatch):
        train(tmp_path / "run", {"training.steps": 20})
    extended = regard.train(tmp_path / "run", {"training.steps": 30})
    assert read_validations(extended) == read_validations(longer)
    assert hash_weights(tmp_path / "run", 30) == hash_weights(tmp_path / "longer", 30)


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_a_decay_that_depends_on_the_steps_cannot_be_extended(tmp_path: Path, decay: str) -> None:
    path = tmp_path / "run"
    train(path, {"training.decay": decay, "training.steps": 10})
    with pytest.raises(
        regard.ConfigError, match=r"cannot be extended from 10 to 30 steps.*--from .* training.steps=20"
    ):
        regard.train(path, {"training.steps": 30})
    assert RunFolder(path).settings().training.steps == 10


def test_a_run_cannot_be_shortened(tmp_path: Path) -> None:
    train(tmp_path / "run", {"training.steps": 20})
    with pytest.raises(regard.ConfigError, match=r"training.steps was 20 and is now 10"):
        regard.train(tmp_path / "run", {"training.steps": 10})


@pytest.mark.slow
def test_more_patience_continues_a_run_that_stopped_early(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    settings = {"training.learning_rate": 1e-30, "training.weight_decay": 0.0, "training.validate_every": 5}
    stopped = train(path, {**settings, "training.decay": "cosine", "training.steps": 40, "training.patience": 2})
    assert stopped.steps < 40
    capfd.readouterr()
    again = regard.train(path)
    assert again.steps == stopped.steps
    assert "already been trained. Raise training.patience (2) to continue." in capfd.readouterr().err
    assert regard.train(path, {"training.patience": 3}).steps == stopped.steps + 5
    assert regard.train(path, {"training.patience": 100}).steps == 40


def test_checkpoints_are_averaged_at_the_new_end(tmp_path: Path) -> None:
    settings = {"training.average_checkpoints": 2, "training.learning_rate": 0.08, "training.metric": "loss"}
    train(tmp_path / "run", {**settings, "training.steps": 20})
    extended = regard.train(tmp_path / "run", {"training.steps": 40})
    averages = [event["of"] for event in extended.events if event["event"] == "validation" and "of" in event]
    assert averages == ["average-20", "average-40"]
    assert RunFolder(tmp_path / "run").best().find_problem() is None
