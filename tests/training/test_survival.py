"""An interrupted run resumes bit-identically; negative controls show that these tests can fail."""

import json
import shutil
import signal
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
from regard.runs.progress import RunProgress, Schedule
from regard.training import loop
from regard.training import state as state_module
from regard.training.state import TrainingState
from regard.training.step import take_step
from tests_shared import SMALL, stop_at

ROOT = Path(__file__).parents[2]
SETTINGS = {
    **SMALL,
    "model.dropout": 0.3,
    "training.steps": 20,
    "training.save_every": 5,
    "training.keep_checkpoints": 9,
}


def load_final_weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "checkpoints" / "step-20" / "model.safetensors")


def have_equal_weights(first: Path, second: Path) -> bool:
    weights, other_weights = load_final_weights(first), load_final_weights(second)
    return all(torch.equal(weights[name], other_weights[name]) for name in weights | other_weights)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("uninterrupted") / "run"
    regard.train("dates", SETTINGS, out=path)
    return path


@pytest.mark.parametrize("step", [3, 7, 13])
def test_a_stopped_run_ends_with_identical_weights(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    with stop_at(step, monkeypatch):
        regard.train("dates", SETTINGS, out=tmp_path / "run")
    run = regard.train("dates", SETTINGS, out=tmp_path / "run")
    assert run.steps == 20
    assert have_equal_weights(uninterrupted, run.path)
    assert [event["step"] for event in run.events if event["event"] == "train"] == [5, 10, 15, 20]
    for name in ("validation", "attention"):
        assert [event["step"] for event in run.events if event["event"] == name] == [10, 20]


ALL_FEATURES = {
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
"""Optional features of training that have a state or use random numbers."""


@pytest.mark.slow
def test_a_stopped_run_with_all_features_ends_with_identical_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SETTINGS, **ALL_FEATURES}
    uninterrupted = regard.train("dates", settings, out=tmp_path / "uninterrupted")
    for step in (3, 12):
        with stop_at(step, monkeypatch):
            regard.train("dates", settings, out=tmp_path / "stopped")
    regard.train("dates", settings, out=tmp_path / "stopped")
    assert have_equal_weights(uninterrupted.path, tmp_path / "stopped")
    optimizers = [
        load_file(path / "checkpoints" / "step-20" / "optimizer.safetensors")
        for path in (uninterrupted.path, tmp_path / "stopped")
    ]
    assert all(torch.equal(optimizers[0][name], optimizers[1][name]) for name in optimizers[0])
    assert any(name.startswith("weights/") for name in optimizers[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "safeguard",
    [
        pytest.param((state_module, "derive_seed", lambda *key: sum(key) + 1), id="seed of dropout"),
        pytest.param(
            (
                RunProgress,
                "from_json",
                lambda state: RunProgress(state["data"], Schedule.of(int(SETTINGS["training.steps"]))),
            ),
            id="step",
        ),
    ],
)
def test_without_the_saved_state_the_weights_differ(
    uninterrupted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    safeguard: tuple[object, str, Callable[..., object]],
) -> None:
    with stop_at(12, monkeypatch):
        regard.train("dates", SETTINGS, out=tmp_path / "run")
    monkeypatch.setattr(*safeguard)
    regard.train("dates", SETTINGS, out=tmp_path / "run")
    assert not have_equal_weights(uninterrupted, tmp_path / "run")


def test_a_damaged_checkpoint_is_detected_and_the_previous_one_is_used(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with stop_at(12, monkeypatch):
        regard.train("dates", SETTINGS, out=tmp_path / "run")
    damaged = tmp_path / "run" / "checkpoints" / "step-10" / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-7] ^= 1
    damaged.write_bytes(content)
    assert regard.load(tmp_path / "run").step == 5
    assert "step-10/model.safetensors is damaged" in caplog.text
    regard.train("dates", SETTINGS, out=tmp_path / "run")
    assert have_equal_weights(uninterrupted, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "damaged-step-10").exists()


def test_a_run_is_not_resumed_with_another_tokenizer(uninterrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted, tmp_path / "run")
    path = tmp_path / "run" / "tokenizer.json"
    path.write_text(path.read_text("utf-8").replace('"m": ', '"ǂ": '), "utf-8")
    with pytest.raises(regard.ModelError, match=r"another tokenizer: tokenizer.json has a different model.vocab"):
        regard.train("dates", SETTINGS, out=tmp_path / "run")


def test_a_state_of_another_version_is_rejected(uninterrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted, tmp_path / "run")
    newest = RunFolder(tmp_path / "run").all_checkpoints()[0].path
    state = newest / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "unknown_field": 1}))
    manifest = json.loads((newest / "manifest.json").read_text())
    manifest["files"]["state.json"] = sha256(state)
    (newest / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(regard.ModelError, match=r"state.json was written by another version of regard .*unknown_field"):
        regard.train("dates", SETTINGS, out=tmp_path / "run")
    assert regard.load(tmp_path / "run").predict("3 mai 2009").text is not None


def test_only_valid_checkpoints_count_when_old_ones_are_removed(uninterrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted, tmp_path / "run")
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


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_killed_process_resumes_with_identical_weights(ranks: str) -> None:
    """Run the benchmark with fewer kills and steps than by default."""
    script = ROOT / "benchmarks" / "survival.py"
    options = ["--kills", "3", "--steps", "90", "--seed", "7", "--ranks", ranks]
    done = subprocess.run([sys.executable, str(script), *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bit-identical" in done.stdout


def test_a_finished_run_is_not_changed(uninterrupted: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (uninterrupted / "checkpoints").rglob("*")}
    assert regard.train("dates", SETTINGS, out=uninterrupted).steps == 20
    assert {path: path.stat().st_mtime_ns for path in (uninterrupted / "checkpoints").rglob("*")} == before


@pytest.mark.slow
def test_training_stops_early_without_improvement(tmp_path: Path) -> None:
    no_progress = {**SMALL, "training.learning_rate": 1e-9, "training.metric": "accuracy", "training.patience": 2}
    run = regard.train("dates", {**no_progress, "training.steps": 200, "training.validate_every": 5}, out=tmp_path)
    assert run.steps < 200


@pytest.mark.slow
def test_running_out_of_memory_halves_the_micro_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch of more than eight pairs raises the error of a failed allocation."""
    from regard.training import objective

    unlimited = objective.Objective.__call__
    sizes = []

    def limited(self: objective.Objective, model: object, batch: object) -> object:
        if model.training:  # type: ignore[attr-defined]
            sizes.append(len(batch.ids))  # type: ignore[attr-defined]
            if sizes[-1] > 8:
                torch.empty(2**60)
        return unlimited(self, model, batch)  # type: ignore[arg-type]

    settings = SETTINGS | {"model.dropout": 0.0, "training.cuda_graphs": False}
    with monkeypatch.context() as patch:
        patch.setattr(objective.Objective, "__call__", limited)
        regard.train("dates", settings, out=tmp_path / "limited")
    regard.train("dates", settings, out=tmp_path / "unlimited")
    assert sizes[:3] == [32, 16, 8]
    weights, expected = load_final_weights(tmp_path / "limited"), load_final_weights(tmp_path / "unlimited")
    for name in weights:
        torch.testing.assert_close(weights[name], expected[name], rtol=1e-2, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("memory_returns", [False, True])
def test_a_run_killed_after_it_ran_out_of_memory_ends_with_identical_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, memory_returns: bool
) -> None:
    """Memory runs out at step 7, between two checkpoints, in the middle of a batch; later there may be enough again."""
    from regard.training import objective

    unlimited, scarce = objective.Objective.__call__, [True]

    def limited(self: objective.Objective, model: torch.nn.Module, batch: Batch) -> object:
        loss = unlimited(self, model, batch)  # type: ignore[arg-type]
        if model.training and steps[-1] >= 6 and scarce[0] and len(batch.ids) > 8:
            torch.empty(2**60)
        return loss

    steps = [0]

    def counted(run: TrainingState) -> tuple[float, int]:
        steps.append(run.progress.step)
        return take_step(run)

    monkeypatch.setattr(objective.Objective, "__call__", limited)
    monkeypatch.setattr(loop, "take_step", counted)
    uninterrupted = regard.train("dates", SETTINGS, out=tmp_path / "uninterrupted")
    assert "Out of memory at step 7: from now on, each batch is processed as 4 micro-batches" in caplog.text
    steps.append(0)
    with stop_at(8, monkeypatch):
        regard.train("dates", SETTINGS, out=tmp_path / "killed")
    steps.append(0)
    scarce[0] = not memory_returns
    killed = regard.train("dates", SETTINGS, out=tmp_path / "killed")
    assert have_equal_weights(uninterrupted.path, killed.path)


def test_too_little_memory_for_one_pair_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.training import objective

    monkeypatch.setattr(objective.Objective, "__call__", lambda *_: torch.empty(2**60))
    with pytest.raises(regard.ResourceError, match=r"even with a batch of one pair.*tokenizer\.max_length"):
        regard.train("dates", SETTINGS, out=tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"training.accumulate": 2},
        {"training.consistency": "r-drop"},
        {"training.consistency": "simcut", "training.ema_decay": 0.9},
        {"training.precision": "bfloat16"},
    ],
    ids=str,
)
def test_a_run_that_diverges_keeps_the_weights_of_the_previous_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    before: dict[str, torch.Tensor] = {}
    runs: list[TrainingState] = []

    def watched(run: TrainingState) -> tuple[float, int]:
        runs.append(run)
        before.update({name: value.clone() for name, value in run.model.state_dict().items()})
        return take_step(run)

    monkeypatch.setattr(loop, "take_step", watched)
    diverging = {"training.learning_rate": 1e30, "training.warmup": 0, "training.batch_size": 5}
    pairs = 5 * int(str(options.get("training.accumulate", 1)))
    with pytest.raises(
        regard.DivergedError, match=rf"step \d+: the loss is .* pairs \d+(, \d+){{{min(pairs, 8) - 1}}}"
    ):
        regard.train("dates", {**SETTINGS, **diverging, **options}, out=tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in runs[-1].model.state_dict().items())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_loss_that_is_not_finite_does_not_change_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    from regard.training import objective

    seen: list[dict[str, torch.Tensor]] = []

    def not_finite(self: object, model: torch.nn.Module, batch: object) -> torch.Tensor:
        seen.append(model.state_dict())
        before.update({name: value.clone() for name, value in model.state_dict().items()})
        return sum(p.sum() for p in model.parameters()) * value  # type: ignore[return-value]

    before: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(objective.Objective, "__call__", not_finite)
    with pytest.raises(regard.DivergedError, match=r"at step 1: .* The batch holds the training pairs \d+"):
        regard.train("dates", SETTINGS, out=tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in seen[0].items())


def test_a_signal_between_saving_and_stopping_loses_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def signal_after_the_check(state: TrainingState, step: int) -> bool:
        if step == 3:
            signal.raise_signal(signal.SIGTERM)
        return False

    monkeypatch.setattr(loop, "is_save_step", signal_after_the_check)
    with pytest.raises(regard.Interrupted, match="after step 4; the state is saved"):
        regard.train("dates", SETTINGS, out=tmp_path)
    newest = RunFolder(tmp_path).newest()
    assert newest is not None
    assert newest.step == 4
