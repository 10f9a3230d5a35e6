"""Training with several ranks computes the same as training in one process."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import regard
from regard.data.batching import Batch
from regard.models.seq2seq import Seq2Seq
from regard.runs.events import read_events
from regard.runs.folder import RunFolder
from regard.training import distributed, loop
from regard.training.distributed import assign_shares
from regard.training.objective import Objective
from regard.training.ranks import get_rank
from regard.training.state import TrainingState
from regard.training.step import take_step
from tests_command import Result, run_fresh
from tests_ranks import Case, train_with_ranks
from tests_shared import SMALL, stop_at, to_arguments

STEPS = {**SMALL, "training.steps": 20, "training.save_every": 10, "training.warmup": 5, "training.device": "cpu"}
TOKENS = {"training.batch_size": 64, "training.batch_tokens": 300}
RANDOM = {"model.dropout": 0.3, "training.word_dropout": 0.1}


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the weights and the state of the optimizer after the last step."""
    folder = path / "checkpoints" / "step-20"
    return load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")


def losses(path: Path) -> list[float]:
    """Return the losses of training and of validation."""
    return [event["loss"] for event in read_events(path / "events.jsonl") if "loss" in event]


def assert_identical(path: Path, expected: Path) -> None:
    first, second = load_tensors(path), load_tensors(expected)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def relative_error(path: Path, expected: Path) -> float:
    """Return the largest relative difference of two runs in a loss, or in the norm of the weights.

    The biases of the keys have no effect on a softmax. Their gradients are rounding errors, which Adam scales up.
    """
    runs = [load_file(run / "checkpoints" / "step-20" / "model.safetensors") for run in (path, expected)]
    first, second = (torch.cat([run[name].flatten() for name in run if "to_key.bias" not in name]) for run in runs)
    weights = float((first - second).norm() / second.norm())
    return max(weights, *(abs(one / other - 1) for one, other in zip(losses(path), losses(expected), strict=True)))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("accumulate", [1, 2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_ranks_share_all_rows_of_all_batches_equally(ranks: int, accumulate: int, micro_batches: int) -> None:
    rows = list(range(24))
    shares = [assign_shares(rank, ranks, accumulate, micro_batches) for rank in range(ranks)]
    selected = [(share.batch, row) for rank in shares for share in rank for row in share.select(rows)]
    assert sorted(selected) == [(batch, row) for batch in range(accumulate) for row in rows]
    counts = [sum(len(share.select(rows)) for share in rank) for rank in shares]
    assert counts == [24 * accumulate / ranks] * ranks
    assert len({len(rank) for rank in shares}) == 1


def use_small_buckets() -> None:
    distributed._BUCKET_BYTES = 1_000


def test_two_ranks_equal_one_process_bit_for_bit_and_resume_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulated: dict[str, Any] = {**STEPS, **TOKENS, **RANDOM, "training.accumulate": 2, "training.ema_decay": 0.9}
    regard.train("dates", accumulated, out=tmp_path / "one", quiet=True)
    with stop_at(13, monkeypatch):
        regard.train("dates", accumulated, out=tmp_path / "resumed", quiet=True)
    train_with_ranks(2, [Case("dates", accumulated, tmp_path / name) for name in ("two", "resumed")], use_small_buckets)
    assert_identical(tmp_path / "two", tmp_path / "one")
    assert losses(tmp_path / "two") == losses(tmp_path / "one")
    # With accumulation, each rank computes one of the batches that one process computes one after the other.
    assert_identical(tmp_path / "resumed", tmp_path / "one")


RECURRENT: dict[str, Any] = {"config": "dates", **STEPS}
TRANSFORMER: dict[str, Any] = {
    **{key: value for key, value in RECURRENT.items() if not key.startswith("model.")},
    "model": "transformer",
    "model.size": 16,
    "model.heads": 2,
    "model.layers": 1,
    "model.feedforward": 32,
    "tokenizer.shared": True,
}
CAPTIONER: dict[str, Any] = {
    "config": "scenes",
    **{key: value for key, value in STEPS.items() if key.startswith("training.") or key == "model.embedding"},
    "data.train": 64,
    "data.dev": 8,
    "data.test": 8,
    "model.decoder.hidden": 16,
    "training.batch_size": 9,
}
KINDS = {"recurrent": RECURRENT, "transformer": TRANSFORMER, "captioner": CAPTIONER}


def make_cases(folder: Path, changes: dict[str, dict[str, Any]]) -> list[Case]:
    """Return a case for each kind of model, with these changes by kind, or of the key "all"."""
    cases = []
    for name, settings in KINDS.items():
        overrides = {"model.dropout": 0.0, **settings, **changes.get("all", {}), **changes.get(name, {})}
        cases.append(Case(overrides.pop("config"), overrides, folder / name))
    return cases


@pytest.mark.slow
def test_one_two_and_four_ranks_agree_to_rounding_for_every_kind_of_model(tmp_path: Path) -> None:
    for ranks in (1, 2, 4):
        train_with_ranks(ranks, make_cases(tmp_path / str(ranks), {"recurrent": TOKENS}))
    for kind in KINDS:
        for ranks in (2, 4):
            assert relative_error(tmp_path / str(ranks) / kind, tmp_path / "1" / kind) < 1e-6, (kind, ranks)


@pytest.mark.slow
def test_sharded_weights_give_the_same_result_and_resume_with_or_without_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"model.dropout": 0.2, "training.ema_decay": 0.8, "training.accumulate": 2}
    sharded = options | {"training.shard": True}
    train_with_ranks(2, make_cases(tmp_path / "replicated", {"all": options}))
    train_with_ranks(2, make_cases(tmp_path / "sharded", {"all": sharded}))
    for case in make_cases(tmp_path / "resumed", {"all": options}):
        with stop_at(13, monkeypatch):
            regard.train(case.config, case.overrides, out=case.out, quiet=True)
    train_with_ranks(2, make_cases(tmp_path / "resumed", {"all": sharded}))
    for kind in KINDS:
        assert relative_error(tmp_path / "sharded" / kind, tmp_path / "replicated" / kind) < 1e-6, kind
        assert relative_error(tmp_path / "resumed" / kind, tmp_path / "replicated" / kind) < 1e-6, kind


@pytest.mark.slow
def test_the_running_mean_of_rewards_is_the_same_on_all_ranks_and_in_a_resumed_run(tmp_path: Path) -> None:
    hard = {**STEPS, "model.attention": "show-attend-tell-hard", "training.save_every": 10}
    train_with_ranks(2, [Case("dates", hard, tmp_path / "run")])
    baselines = [name for name in load_tensors(tmp_path / "run") if name.endswith("baseline")]
    assert len(baselines) == 1
    shutil.copytree(tmp_path / "run", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / "step-20")
    train_with_ranks(2, [Case("dates", hard, tmp_path / "resumed")])
    assert_identical(tmp_path / "resumed", tmp_path / "run")


def stop_rank_1_after_step_7() -> None:
    def take_step_and_stop(run: TrainingState) -> tuple[float, int]:
        result = take_step(run)
        if run.group.rank == 1 and run.progress.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    loop.take_step = take_step_and_stop  # type: ignore[assignment, attr-defined]


def limit_memory_of_rank_1() -> None:
    unlimited = Objective.__call__

    def limited(self: Objective, model: Seq2Seq, batch: Batch) -> Tensor:
        loss = unlimited(self, model, batch)
        if get_rank() == 1 and model.training and len(batch.ids) > 8:
            torch.empty(2**60)
        return loss

    Objective.__call__ = limited  # type: ignore[method-assign]


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_after_the_same_step_and_the_run_resumes(tmp_path: Path) -> None:
    settings = {**STEPS, **RANDOM}
    train_with_ranks(2, [Case("dates", settings, tmp_path / "undisturbed")])
    case = Case("dates", settings, tmp_path / "stopped")
    train_with_ranks(2, [case], stop_rank_1_after_step_7, code=regard.Interrupted.exit_code)
    newest = RunFolder(case.out).newest()
    assert newest is not None
    assert newest.step == 7
    train_with_ranks(2, [case])
    assert_identical(case.out, tmp_path / "undisturbed")


@pytest.mark.slow
def test_if_one_rank_runs_out_of_memory_all_use_more_micro_batches(tmp_path: Path) -> None:
    settings = {**STEPS, "training.batch_size": 48}
    train_with_ranks(2, [Case("dates", settings, tmp_path / "unlimited")])
    train_with_ranks(2, [Case("dates", settings, tmp_path / "limited")], limit_memory_of_rank_1)
    newest = RunFolder(tmp_path / "limited").newest()
    assert newest is not None
    assert newest.state["micro_batches"] == 4
    assert relative_error(tmp_path / "limited", tmp_path / "unlimited") < 1e-6


@pytest.mark.slow
def test_ranks_follow_the_clock_of_rank_0(tmp_path: Path) -> None:
    timed = {key: value for key, value in STEPS.items() if key != "training.steps"} | {"training.minutes": 0.25}
    train_with_ranks(2, [Case("dates", timed, tmp_path)])
    newest = RunFolder(tmp_path).newest()
    assert newest is not None
    assert len(newest.state["schedule"]["segments"]) > 1
    assert newest.step == newest.state["schedule"]["segments"][-1]["end"]


@pytest.mark.slow
def test_the_command_with_several_devices_prints_once_and_its_run_resumes_with_one(
    cli: Callable[..., Result], tmp_path: Path
) -> None:
    settings = to_arguments({**STEPS, "training.steps": 10, "training.decay": "none"})
    first = cli("train", "dates", *settings, "--devices", "2", "--out", "run", start=run_fresh)
    assert (first.returncode, first.stdout) == (0, "run\n"), first.stderr
    assert first.stderr.count("Training") == first.stderr.count("with 2 ranks") == 1
    assert first.stderr.count("validation at step 10") == 1
    extended = cli("train", "run", "training.steps=20", "training.decay=none")
    assert extended.returncode == 0, extended.stderr
    assert "saved by 2 ranks, and training resumes with 1: the weights differ" in extended.stderr
    assert RunFolder(tmp_path / "run").newest() is not None


@pytest.mark.slow
def test_errors_of_several_devices_are_printed_once_and_have_their_exit_code(cli: Callable[..., Result]) -> None:
    diverging = to_arguments({**STEPS, "training.learning_rate": 1e30, "training.warmup": 0})
    failed = cli("train", "dates", *diverging, "--devices", "2", start=run_fresh)
    assert failed.returncode == regard.DivergedError.exit_code
    assert failed.stderr.count("diverged at step") == 1
    assert "Traceback" not in failed.stderr


def test_a_search_for_settings_needs_one_process(cli: Callable[..., Result]) -> None:
    rejected = cli("train", "dates", "--devices", "2", "--find", "batch")
    assert rejected.returncode == 2
    assert "--find needs one process" in rejected.stderr


@pytest.mark.slow
def test_two_ranks_equal_one_process_bit_for_bit_with_every_feature_of_training(
    small_run: RunFolder, tmp_path: Path
) -> None:
    pairs, alignments = tmp_path / "pairs.tsv", tmp_path / "alignments"
    pairs.write_text("".join(f"a{n} b{n % 7}\tb{n % 7} a{n}\n" for n in range(60)), "utf-8")
    alignments.write_text("0-1 1-0\n" * 60, "utf-8")
    words = {
        "data": "files",
        **{f"data.{split}": str(pairs) for split in ("train", "dev", "test")},
        "tokenizer": "word",
        "training.guided_alignment": str(alignments),
    }
    features: dict[str, dict[str, Any]] = {
        "distillation": {"training.teachers": str(small_run.path)},
        "fine-tuning": {"training.init_from": str(small_run.path)},
        "consistency": {"training.consistency": {"kind": "simcut", "start_step": 5}, "training.average_checkpoints": 2},
        "plateau": {"training.decay": "plateau", "training.plateau_patience": 1, "training.learning_rate": 1e-7},
        "guided": words,
    }
    options = {**STEPS, **TOKENS, **RANDOM, "training.accumulate": 2}
    cases = {name: Case("dates", options | changes, tmp_path / "two" / name) for name, changes in features.items()}
    for name, case in cases.items():
        regard.train(case.config, case.overrides, out=tmp_path / "one" / name, quiet=True)
    train_with_ranks(2, list(cases.values()))
    for name, case in cases.items():
        assert_identical(case.out, tmp_path / "one" / name)
        assert losses(case.out) == losses(tmp_path / "one" / name), name
