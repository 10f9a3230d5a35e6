"""Training with several ranks computes the same as training in one process."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import regard
from regard.runs.events import read_events
from regard.training.distributed import assign_shares
from tests_ranks import Case, train_with_ranks
from tests_shared import SMALL, stop_at

STEPS = {**SMALL, "training.steps": 20, "training.save_every": 10, "training.warmup": 5}
TOKENS = {"training.batch_size": 64, "training.batch_tokens": 300}
RANDOM = {"model.dropout": 0.3, "training.word_dropout": 0.1}


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the weights and the state of the optimizer after the last step."""
    folder = path / "checkpoints" / "step-20"
    return load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")


def losses(path: Path) -> list[float]:
    return [event["loss"] for event in read_events(path / "events.jsonl") if event["event"] == "train"]


def assert_identical(path: Path, expected: Path) -> None:
    first, second = load_tensors(path), load_tensors(expected)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def relative_error(path: Path, expected: Path) -> float:
    """Return the largest difference of two runs in a weight, relative to the largest value of its tensor."""
    first, second = (load_file(run / "checkpoints" / "step-20" / "model.safetensors") for run in (path, expected))
    return max(float((first[name] - second[name]).abs().max() / second[name].abs().max()) for name in first)


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


def test_two_ranks_equal_one_process_bit_for_bit_and_either_resumes_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    accumulated: dict[str, Any] = {**STEPS, **TOKENS, **RANDOM, "training.accumulate": 2, "training.ema_decay": 0.9}
    regard.train("dates", accumulated, out=tmp_path / "one", quiet=True)
    for name in ("resumed", "moved"):
        with stop_at(13, monkeypatch):
            regard.train("dates", accumulated, out=tmp_path / name, quiet=True)
    train_with_ranks(2, [Case("dates", accumulated, tmp_path / name) for name in ("two", "resumed")])
    assert_identical(tmp_path / "two", tmp_path / "one")
    assert losses(tmp_path / "two") == losses(tmp_path / "one")
    # With accumulation, each rank computes one of the batches that one process computes one after the other.
    assert_identical(tmp_path / "resumed", tmp_path / "one")
