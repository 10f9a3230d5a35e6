"""Weight averaging: values computed by hand, and runs that are stopped, killed or damaged end with the same average."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import regard
from regard.data.cache import sha256
from regard.runs import checkpoints
from regard.runs.events import read_events
from regard.runs.folder import RunFolder
from regard.runs.progress import RunProgress
from regard.runs.stored_checkpoint import Checkpoint
from regard.training import loop
from regard.training.checkpointing import average_weights
from regard.training.optim import MovingAverage
from regard.training.state import TrainingState
from regard.training.step import take_step
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
"""With these settings, the average is better than each checkpoint."""


def build_linear(weight: float) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(weight)
    return model


def test_moving_average_decays_exponentially() -> None:
    model = build_linear(0.0)
    average = MovingAverage(model, 0.5)
    model.weight.data.fill_(1.0)
    average.update(100)
    assert average.weights["weight"].item() == 0.5
    average.update(101)
    assert average.weights["weight"].item() == 0.75


def test_moving_average_has_a_smaller_decay_in_the_first_steps() -> None:
    model = build_linear(0.0)
    average = MovingAverage(model, 0.999)
    model.weight.data.fill_(1.0)
    average.update(1)
    assert average.weights["weight"].item() == pytest.approx(1 - 2 / 11)


def test_moving_average_is_applied_to_the_model_within_a_context() -> None:
    model = build_linear(2.0)
    average = MovingAverage(model, 0.5)
    model.weight.data.fill_(3.0)
    with average.applied_to(model):
        assert model.weight.item() == 2.0
    assert model.weight.item() == 3.0
    assert average.weights["weight"].item() == 2.0


def test_average_weights_averages_floating_point_tensors(tmp_path: Path) -> None:
    for step, value in ((1, 1.0), (2, 2.0), (3, 6.0)):
        (tmp_path / f"step-{step}").mkdir()
        tensors = {"w": torch.full((2,), value), "count": torch.tensor(step)}
        save_file(tensors, tmp_path / f"step-{step}" / "model.safetensors")
    average = average_weights([Checkpoint(tmp_path / f"step-{step}") for step in (1, 2, 3)])
    assert average["w"].tolist() == [3.0, 3.0]
    assert average["w"].dtype == torch.float32
    assert average["count"].item() == 1


@pytest.mark.slow
def test_a_run_uses_the_average_of_its_last_checkpoints_if_it_is_better(tmp_path: Path) -> None:
    noisy = {"training.learning_rate": 0.04, "training.decay": "none", "training.steps": 90}
    settings = {**SMALL, **noisy, "training.average_checkpoints": 3, "training.metric": "loss"}
    run = regard.train("dates", settings, out=tmp_path / "run")
    steps = [RunFolder(run.path).checkpoints / f"step-{step}" for step in (70, 80, 90)]
    average = average_weights([Checkpoint(path) for path in steps])
    last, averaged = [event for event in run.events if event["event"] == "validation"][-2:]
    assert (last["step"], averaged["step"]) == (90, 90)
    best = RunFolder(run.path).best().path.name
    assert best == ("average-90" if averaged["best"] else f"step-{last['step']}")
    assert averaged["best"], "this test needs settings with which the average is better"
    saved = load_file(run.path / "checkpoints" / "average-90" / "model.safetensors")
    assert all(torch.equal(saved[name], average[name]) for name in average)
    assert regard.load(run.path).predict("3 mai 2009").text is not None
    again = regard.train("dates", settings, out=run.path)
    assert again.events == run.events


@pytest.mark.slow
def test_a_run_uses_its_moving_average(tmp_path: Path) -> None:
    run = regard.train("dates", {**SMALL, "training.ema_decay": 0.9}, out=tmp_path / "run")
    best = RunFolder(run.path).best().path
    model = load_file(best / "model.safetensors")
    optimizer = load_file(best / "optimizer.safetensors")
    assert not torch.equal(model["encoder.embedding.weight"], optimizer["weights/encoder.embedding.weight"])


def train(path: Path) -> None:
    regard.train("dates", SETTINGS, out=path)


def read_result(path: Path) -> dict[str, Any]:
    """The best checkpoint, hashes of its files and of the last checkpoint's, and the events without times."""
    best = RunFolder(path).best().path
    files = {
        file.name: sha256(file) for folder in (best, path / "checkpoints" / "step-60") for file in folder.iterdir()
    }
    events = read_events(RunFolder(path).events)
    untimed = [{k: v for k, v in event.items() if "time" not in k and "second" not in k} for event in events]
    return {"best": best.name, **files, "events": untimed}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("averages") / "run"
    train(path)
    assert RunFolder(path).best().path.name == "average-60"
    return path


@pytest.mark.slow
def test_a_checkpoint_saved_on_a_signal_is_not_averaged(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(run: TrainingState) -> tuple[float, int]:
        if run.progress.step == 56:
            os.kill(os.getpid(), signal.SIGTERM)
        return take_step(run)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "take_step", signalled)
        with pytest.raises(regard.Interrupted, match="after step 57"):
            train(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "step-57").exists()
    train(tmp_path / "run")
    assert read_result(tmp_path / "run") == read_result(uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["save_average", "save"])
def test_a_run_killed_before_or_after_the_average_is_saved_ends_the_same(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    save: Callable[..., Any] = getattr(checkpoints, function)

    def die(*args: Any) -> Any:
        if any(isinstance(arg, RunProgress) and arg.average_tried for arg in args):
            raise KeyboardInterrupt
        return save(*args)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, function, die)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "average-60").exists() == (function == "save")
    assert RunFolder(tmp_path / "run").best().path.name == "step-60"
    train(tmp_path / "run")
    assert read_result(tmp_path / "run") == read_result(uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flip a bit", "remove the manifest", "remove the folder"])
def test_a_damaged_average_is_detected_and_computed_again(
    uninterrupted: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    shutil.copytree(uninterrupted, tmp_path / "run")
    average = tmp_path / "run" / "checkpoints" / "average-60"
    if damage == "flip a bit":
        flip_bit(average / "model.safetensors")
    elif damage == "remove the manifest":
        (average / "manifest.json").unlink()
    else:
        shutil.rmtree(average)
    assert RunFolder(tmp_path / "run").best().path.name == "step-60"
    assert "average-60" in caplog.text
    train(tmp_path / "run")
    assert read_result(tmp_path / "run") == read_result(uninterrupted)


def flip_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-7] ^= 1
    file.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["at the end", "before a resume"])
def test_a_damaged_checkpoint_is_named_and_not_replaced_in_the_average(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    """Steps 50, 55 and 60 are averaged. If step 55 is damaged, step 45 must not take its place."""
    out, damaged = tmp_path / "run", tmp_path / "run" / "checkpoints" / "step-55"

    def damage_then_step(run: TrainingState) -> tuple[float, int]:
        if run.progress.step == 58:
            flip_bit(damaged / "model.safetensors")
            if lost == "before a resume":
                os.kill(os.getpid(), signal.SIGTERM)
        return take_step(run)

    settings = {**SETTINGS, "training.keep_checkpoints": 12}
    with monkeypatch.context() as patch:
        patch.setattr(loop, "take_step", damage_then_step)
        if lost == "at the end":
            regard.train("dates", settings, out=out)
        else:
            with pytest.raises(regard.Interrupted, match="after step 59"):
                regard.train("dates", settings, out=out)
    if lost == "before a resume":
        regard.train("dates", settings, out=out)
        assert "step-55/model.safetensors is damaged" in caplog.text
        assert f"{damaged} is missing. The average of the last 3 checkpoints is computed without it" in caplog.text
    else:
        assert f"{damaged / 'model.safetensors'} is damaged" in caplog.text
        assert "The average of the last 3 checkpoints is computed without it" in caplog.text
    average = average_weights([Checkpoint(damaged.with_name(f"step-{step}")) for step in (60, 50)])
    saved = load_file(damaged.with_name("average-60") / "model.safetensors")
    assert all(torch.equal(saved[name], average[name]) for name in average)


def test_an_average_is_not_restored_from_other_checkpoints(
    uninterrupted: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(uninterrupted, tmp_path / "run")
    average = tmp_path / "run" / "checkpoints" / "average-60"
    shutil.rmtree(average)
    flip_bit(average.with_name("step-50") / "model.safetensors")
    train(tmp_path / "run")
    assert f"{average} is missing. The average cannot be computed again" in caplog.text
    assert not average.exists()


def test_save_every_cannot_change_on_resume_if_checkpoints_are_averaged(uninterrupted: Path) -> None:
    with pytest.raises(regard.ConfigError, match=r"training.save_every was 5 and is now 20"):
        regard.train("dates", {**SETTINGS, "training.save_every": 20}, out=uninterrupted)
