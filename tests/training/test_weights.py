"""Averages of weights: worked by hand, used where they are asked for, and left out where they are no better."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import regard
from regard.runs.folder import Checkpoint, RunFolder
from regard.training.averaging import MovingAverage, mean_of
from tests_shared import SMALL


def test_a_moving_average_forgets_as_fast_as_it_is_told() -> None:
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(0.0)
    average = MovingAverage(model, 0.5)
    model.weight.data.fill_(1.0)
    average.update(100)
    assert average.weights["weight"].item() == 0.5
    average.update(101)
    assert average.weights["weight"].item() == 0.75


def test_in_the_first_steps_it_forgets_faster() -> None:
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(0.0)
    average = MovingAverage(model, 0.999)
    model.weight.data.fill_(1.0)
    average.update(1)
    assert average.weights["weight"].item() == pytest.approx(1 - 2 / 11)


def test_for_a_while_the_model_has_the_average_and_then_its_own_again() -> None:
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(2.0)
    average = MovingAverage(model, 0.5)
    model.weight.data.fill_(3.0)
    with average.in_place_of(model):
        assert model.weight.item() == 2.0
    assert model.weight.item() == 3.0
    assert average.weights["weight"].item() == 2.0


def test_the_mean_of_checkpoints_is_the_mean_of_their_weights(tmp_path: Path) -> None:
    for step, value in ((1, 1.0), (2, 2.0), (3, 6.0)):
        (tmp_path / f"step-{step}").mkdir()
        tensors = {"w": torch.full((2,), value), "count": torch.tensor(step)}
        save_file(tensors, tmp_path / f"step-{step}" / "model.safetensors")
    mean = mean_of([Checkpoint(tmp_path / f"step-{step}") for step in (1, 2, 3)])
    assert mean["w"].tolist() == [3.0, 3.0]
    assert mean["w"].dtype == torch.float32
    assert mean["count"].item() == 1


def test_a_run_uses_the_mean_of_its_last_checkpoints_where_it_is_better(tmp_path: Path) -> None:
    noisy = {"training.learning_rate": 0.04, "training.decay": "none", "training.steps": 90}
    settings = {**SMALL, **noisy, "training.average_checkpoints": 3, "training.metric": "loss"}
    run = regard.train("dates", settings, out=tmp_path / "run")
    steps = [RunFolder(run.path).checkpoints / f"step-{step}" for step in (70, 80, 90)]
    mean = mean_of([Checkpoint(path) for path in steps])
    last, tried = run.events[-2], run.events[-1]
    assert (last["step"], tried["step"]) == (90, 90)
    used = RunFolder(run.path).best().path.name
    assert used == ("mean-90" if tried["best"] else f"step-{last['step']}")
    assert tried["best"], "the recipe of this test is one in which the mean is better"
    found = load_file(run.path / "checkpoints" / "mean-90" / "model.safetensors")
    assert all(torch.equal(found[name], mean[name]) for name in mean)
    assert regard.load(run.path).predict("3 mai 2009").text is not None
    again = regard.train("dates", settings, out=run.path)
    assert again.events == run.events


def test_a_run_uses_its_moving_average(tmp_path: Path) -> None:
    run = regard.train("dates", {**SMALL, "training.ema_decay": 0.9}, out=tmp_path / "run")
    best = RunFolder(run.path).best().path
    used = load_file(best / "model.safetensors")
    moving = load_file(best / "optimizer.safetensors")
    assert not torch.equal(used["encoder.embedding.weight"], moving["weights/encoder.embedding.weight"])
