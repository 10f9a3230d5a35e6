"""Attention is diagnosed at each validation, and this does not change what is trained."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import regard
from regard.runs.callbacks import Callback, ValidationInfo
from regard.runs.events import find_attention, read_events
from regard.runs.folder import RunFolder
from tests_shared import SMALL

NOT_RECURRENT: dict[str, Any] = {key: value for key, value in SMALL.items() if not key.startswith("model.")}
TRANSFORMER = {"kind": "transformer", "size": 16, "heads": 2, "layers": 2, "feedforward": 16, "dropout": 0.1}
MODELS: dict[str, dict[str, Any]] = {
    "recurrent": {**SMALL, "model.dropout": 0.1},
    "hard attention": {**SMALL, "model.attention": "show-attend-tell-hard"},
    "transformer": {**NOT_RECURRENT, "model": TRANSFORMER, "training.ema_decay": 0.9},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_diagnostics_do_not_change_the_weights(tmp_path: Path, name: str) -> None:
    settings = {**MODELS[name], "training.steps": 20}
    runs = [
        regard.train("dates", {**settings, "training.diagnostics": pairs}, out=tmp_path / f"{pairs}", quiet=True)
        for pairs in (0, 16)
    ]
    off, on = (load_file(run.path / "checkpoints" / "step-20" / "model.safetensors") for run in runs)
    assert all(off[key].equal(on[key]) for key in off)
    assert [event["event"] for event in runs[0].events if event["event"] == "attention"] == []
    steps = [event["step"] for event in runs[1].events if event["event"] == "attention"]
    assert steps == [10, 20]


def test_each_attention_of_a_transformer_is_diagnosed(tmp_path: Path) -> None:
    seen: list[ValidationInfo] = []

    class Keeper(Callback):
        def on_validation(self, info: ValidationInfo) -> None:
            seen.append(info)

    settings = {**NOT_RECURRENT, "model": TRANSFORMER, "training.steps": 10}
    run = regard.train("dates", settings, out=tmp_path / "run", quiet=True, callbacks=[Keeper()])
    found = find_attention(RunFolder(run.path).events, 10)
    assert found is not None
    assert seen[0].attention is not None
    assert found.to_json()["attentions"] == seen[0].attention.to_json()["attentions"]
    assert found.pairs == 40  # the dev set has fewer than 64
    assert [(attention.role, attention.layer, len(attention.heads)) for attention in found.attentions] == [
        (role, layer, 2) for role, layer in
        [("encoder-self", 1), ("encoder-self", 2), ("decoder-self", 1), ("cross", 1), ("decoder-self", 2), ("cross", 2)]
    ]  # fmt: skip
    for attention in found.attentions:
        assert 0 < attention.redundancy <= 1
        for head in attention.heads:
            assert 0 < head.entropy <= 1
            assert 0 < head.coverage <= 1
            assert 0 <= head.monotonicity <= 1
            assert 0 < head.diagonal_distance < 1


def test_the_end_of_training_names_dead_heads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Before training, the scores of additive attention hardly differ.
    regard.train("dates", {**SMALL, "training.steps": 1, "training.learning_rate": 1e-9}, out=tmp_path / "run")
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "1 of 1 head has uniform weights: cross layer 1 head 1."


def test_a_model_without_attention_is_not_diagnosed(tmp_path: Path) -> None:
    run = regard.train(
        "dates", {**NOT_RECURRENT, "model": "fixed", "training.steps": 1}, out=tmp_path / "run", quiet=True
    )
    assert {event["event"] for event in run.events} == {"validation"}


def test_the_grid_of_a_picture_has_no_diagonal(tmp_path: Path) -> None:
    settings = {"data.train": 16, "data.dev": 4, "data.test": 4, "training.steps": 1, "training.batch_size": 4}
    run = regard.train("scenes", settings, out=tmp_path / "run", quiet=True)
    (event,) = [event for event in read_events(RunFolder(run.path).events) if event["event"] == "attention"]
    (attention,) = event["attentions"]
    assert attention["role"] == "cross"
    assert 0 < event["cross/entropy"] <= 1
    assert 0 < event["cross/coverage"] <= 1
    assert "cross/monotonicity" not in event
    assert attention["heads"][0]["diagonal_distance"] is None
