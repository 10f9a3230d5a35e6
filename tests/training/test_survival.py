"""A run goes on to the bit, whatever stopped it; with negative controls that show the test can fail."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.data.batching import Batch
from regard.data.cache import sha256
from regard.runs import checkpoints
from regard.runs.folder import RunFolder
from regard.runs.schedule import Schedule
from regard.training import loop
from tests_shared import SMALL, stopped_at

ROOT = Path(__file__).parents[2]
SETTINGS = {
    **SMALL,
    "model.dropout": 0.3,
    "training.steps": 20,
    "training.save_every": 5,
    "training.keep_checkpoints": 9,
}


def final_weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "checkpoints" / "step-20" / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    ours, theirs = final_weights(one), final_weights(other)
    return all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    regard.train("dates", SETTINGS, out=path)
    return path


@pytest.mark.parametrize("step", [3, 7, 13])
def test_stopped_anywhere_it_ends_with_the_same_bits(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    with stopped_at(step, monkeypatch):
        regard.train("dates", SETTINGS, out=tmp_path / "run")
    run = regard.train("dates", SETTINGS, out=tmp_path / "run")
    assert run.steps == 20
    assert same(undisturbed, run.path)
    clockless = [{k: v for k, v in event.items() if k not in {"time", "tokens_per_second"}} for event in run.events]
    assert [event["step"] for event in clockless] == [5, 10, 10, 15, 20, 20]


RECIPE = {
    "training.batch_tokens": 400,
    "training.max_pair_length": 60,
    "training.accumulate": 2,
    "training.ema_decay": 0.9,
    "training.decay": "plateau",
    "training.plateau_patience": 1,
    "training.consistency": {"kind": "simcut", "start_step": 8},
    "training.word_dropout": 0.1,
    "training.precision": "bfloat16",
}
"""All that training keeps or draws beyond the usual."""


def test_a_run_with_every_part_of_a_recipe_goes_on_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**SETTINGS, **RECIPE}
    whole = regard.train("dates", settings, out=tmp_path / "whole")
    for step in (3, 12):
        with stopped_at(step, monkeypatch):
            regard.train("dates", settings, out=tmp_path / "stopped")
    regard.train("dates", settings, out=tmp_path / "stopped")
    assert same(whole.path, tmp_path / "stopped")
    optimizers = [
        load_file(path / "checkpoints" / "step-20" / "optimizer.safetensors")
        for path in (whole.path, tmp_path / "stopped")
    ]
    assert all(torch.equal(optimizers[0][name], optimizers[1][name]) for name in optimizers[0])
    assert any(name.startswith("weights/") for name in optimizers[0])


@pytest.mark.parametrize(
    "guard",
    [
        pytest.param((checkpoints, "set_random_state", lambda *_: None), id="random state"),
        pytest.param(
            (
                checkpoints.RunProgress,
                "from_json",
                lambda state: checkpoints.RunProgress(state["data"], Schedule.of(SETTINGS["training.steps"])),
            ),
            id="step",
        ),
    ],
)
def test_without_what_the_checkpoint_keeps_the_bits_differ(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: tuple[object, str, Callable[..., object]]
) -> None:
    with stopped_at(12, monkeypatch):
        regard.train("dates", SETTINGS, out=tmp_path / "run")
    monkeypatch.setattr(*guard)
    regard.train("dates", SETTINGS, out=tmp_path / "run")
    assert not same(undisturbed, tmp_path / "run")


def test_a_flipped_byte_is_noticed_and_the_checkpoint_before_is_used(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with stopped_at(12, monkeypatch):
        regard.train("dates", SETTINGS, out=tmp_path / "run")
    damaged = tmp_path / "run" / "checkpoints" / "step-10" / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-7] ^= 1
    damaged.write_bytes(content)
    assert regard.load(tmp_path / "run").step == 5
    assert "step-10/model.safetensors is damaged" in caplog.text
    regard.train("dates", SETTINGS, out=tmp_path / "run")
    assert same(undisturbed, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "damaged-step-10").exists()


def test_a_tokenizer_that_is_not_the_runs_own_is_not_trained_on_with(undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "run")
    path = tmp_path / "run" / "tokenizer.json"
    path.write_text(path.read_text("utf-8").replace('"m": ', '"ǂ": '), "utf-8")
    with pytest.raises(regard.ModelError, match=r"tokenizer.json is missing, damaged or of another run"):
        regard.train("dates", SETTINGS, out=tmp_path / "run")


def test_a_state_of_another_version_is_told(undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "run")
    newest = RunFolder(tmp_path / "run").all_checkpoints()[0].path
    state = newest / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "novelty": 1}))
    manifest = json.loads((newest / "manifest.json").read_text())
    manifest["files"]["state.json"] = sha256(state)
    (newest / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(regard.ModelError, match=r"state.json was written by another version of regard .*novelty"):
        regard.train("dates", SETTINGS, out=tmp_path / "run")
    assert regard.load(tmp_path / "run").predict("3 mai 2009").text is not None


def test_only_whole_checkpoints_count_when_old_ones_are_removed(undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert [entry.step for entry in folder.all_checkpoints()] == [20, 15, 10, 5]
    for step in (20, 15):
        (folder.checkpoints / f"step-{step}" / "state.json").write_text("{}")
    with folder.lock() as locked:
        checkpoints.prune(locked, keep=1, best_step=5)
    assert [entry.step for entry in folder.all_checkpoints()] == [20, 15, 10, 5]
    with folder.lock() as locked:
        checkpoints.prune(locked, keep=1, best_step=10)
    assert [entry.step for entry in folder.all_checkpoints()] == [20, 15, 10]


def test_killed_for_real(tmp_path: Path) -> None:
    """The script with its ten kills stands in benchmarks/; here a few."""
    script = ROOT / "benchmarks" / "survival.py"
    done = subprocess.run(
        [sys.executable, str(script), "--kills", "3", "--seed", "7"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bit-identical" in done.stdout


def test_a_finished_run_is_left_as_it_is(undisturbed: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (undisturbed / "checkpoints").rglob("*")}
    assert regard.train("dates", SETTINGS, out=undisturbed).steps == 20
    assert {path: path.stat().st_mtime_ns for path in (undisturbed / "checkpoints").rglob("*")} == before


def test_training_stops_early_when_no_better_model_is_in_sight(tmp_path: Path) -> None:
    never_better = {**SMALL, "training.learning_rate": 1e-9, "training.metric": "accuracy", "training.patience": 2}
    run = regard.train("dates", {**never_better, "training.steps": 200, "training.validate_every": 5}, out=tmp_path)
    assert run.steps < 200


def test_memory_that_gives_out_halves_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch raises when it cannot allocate, raised for every batch of more than eight pairs."""
    from regard.training import objective

    whole = objective.Objective.__call__
    sizes = []

    def limited(self: objective.Objective, model: object, batch: object) -> object:
        if model.training:  # type: ignore[attr-defined]
            sizes.append(len(batch.ids))  # type: ignore[attr-defined]
            if sizes[-1] > 8:
                torch.empty(2**60)
        return whole(self, model, batch)  # type: ignore[arg-type]

    settings = SETTINGS | {"model.dropout": 0.0, "training.cuda_graphs": False}
    with monkeypatch.context() as patch:
        patch.setattr(objective.Objective, "__call__", limited)
        regard.train("dates", settings, out=tmp_path / "little")
    regard.train("dates", settings, out=tmp_path / "plenty")
    assert sizes[:3] == [32, 16, 8]
    ours, theirs = final_weights(tmp_path / "little"), final_weights(tmp_path / "plenty")
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("memory_returns", [False, True])
def test_a_run_that_is_killed_after_memory_ran_out_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, memory_returns: bool
) -> None:
    """Memory runs out at step 7, between two checkpoints, in the middle of a batch; and may be there again later."""
    from regard.training import objective

    whole, scarce = objective.Objective.__call__, [True]

    def limited(self: objective.Objective, model: torch.nn.Module, batch: Batch) -> object:
        found = whole(self, model, batch)  # type: ignore[arg-type]
        if model.training and steps[-1] >= 6 and scarce[0] and len(batch.ids) > 8:
            torch.empty(2**60)
        return found

    take, steps = loop.take_step, [0]

    def counted(run: loop.TrainingState) -> tuple[float, int]:
        steps.append(run.progress.step)
        return take(run)

    monkeypatch.setattr(objective.Objective, "__call__", limited)
    monkeypatch.setattr(loop, "take_step", counted)
    undisturbed = regard.train("dates", SETTINGS, out=tmp_path / "undisturbed")
    assert "Out of memory at step 7: from now on, each batch is processed as 4 micro-batches" in caplog.text
    steps.append(0)
    with stopped_at(8, monkeypatch):
        regard.train("dates", SETTINGS, out=tmp_path / "killed")
    steps.append(0)
    scarce[0] = not memory_returns
    killed = regard.train("dates", SETTINGS, out=tmp_path / "killed")
    assert same(undisturbed.path, killed.path)


def test_memory_that_holds_not_even_one_pair_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.training import objective

    monkeypatch.setattr(objective.Objective, "__call__", lambda *_: torch.empty(2**60))
    with pytest.raises(regard.ResourceError, match=r"even with a batch of one pair.*tokenizer\.max_length"):
        regard.train("dates", SETTINGS, out=tmp_path)


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"training.accumulate": 2},
        {"training.consistency": "r-drop"},
        {"training.consistency": "simcut", "training.ema_decay": 0.9},
        {"training.precision": "bfloat16"},
    ],
    ids=str,
)
def test_a_run_that_diverges_by_itself_keeps_the_weights_of_the_step_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: dict[str, object]
) -> None:
    take = loop.take_step
    before: dict[str, torch.Tensor] = {}
    runs: list[loop.TrainingState] = []

    def watched(run: loop.TrainingState) -> tuple[float, int]:
        runs.append(run)
        before.update({name: value.clone() for name, value in run.model.state_dict().items()})
        return take(run)

    monkeypatch.setattr(loop, "take_step", watched)
    wild = {"training.learning_rate": 1e30, "training.warmup": 0, "training.batch_size": 5}
    pairs = 5 * int(str(recipe.get("training.accumulate", 1)))
    with pytest.raises(
        regard.DivergedError, match=rf"step \d+: the loss is .* pairs \d+(, \d+){{{min(pairs, 8) - 1}}}"
    ):
        regard.train("dates", {**SETTINGS, **wild, **recipe}, out=tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in runs[-1].model.state_dict().items())


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_loss_that_is_no_number_leaves_the_weights_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poison: float
) -> None:
    from regard.training import objective

    seen: list[dict[str, torch.Tensor]] = []

    def spoilt(self: object, model: torch.nn.Module, batch: object) -> torch.Tensor:
        seen.append(model.state_dict())
        before.update({name: value.clone() for name, value in model.state_dict().items()})
        return sum(p.sum() for p in model.parameters()) * poison  # type: ignore[return-value]

    before: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(objective.Objective, "__call__", spoilt)
    with pytest.raises(regard.DivergedError, match=r"at step 1: .* The batch holds the training pairs \d+"):
        regard.train("dates", SETTINGS, out=tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in seen[0].items())
