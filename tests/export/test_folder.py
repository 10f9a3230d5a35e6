"""Export: the interface, and model folders without optimizer and data."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch

import regard
from regard.export.settings import ExportTarget
from regard.runs.folder import RunFolder
from tests_command import Result
from tests_shared import SMALL

TEXTS = ["3 mai 2009", "May 3, 2009", "12.11.1984"]


def test_an_exported_folder_contains_the_model_without_optimizer_and_predicts_the_same(
    small_run: RunFolder, tmp_path: Path
) -> None:
    model = regard.load(small_run.path)
    assert model.export(tmp_path / "new" / "dates") == tmp_path / "new" / "dates"
    files = {path.name for path in (tmp_path / "new" / "dates").rglob("*") if path.is_file()}
    tokenizers = {path.name for path in small_run.path.glob("tokenizer*.json")}
    assert (
        files
        == {"config.yaml", "model.safetensors", "state.json", "manifest.json", "events.jsonl", "card.md"} | tokenizers
    )
    exported = regard.load(tmp_path / "new" / "dates")
    assert [str(one) for one in exported.predict(TEXTS)] == [str(one) for one in model.predict(TEXTS)]
    assert exported.step == model.step
    assert exported.scores == model.scores
    weights = exported.network.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.network.state_dict().items())


@pytest.mark.slow
def test_an_exported_folder_can_be_moved_looked_at_and_fine_tuned(
    small_run: RunFolder, tmp_path: Path, cli: Callable[..., Result]
) -> None:
    done = cli("export", small_run.path, "--out", tmp_path / "first")
    assert done.stdout.strip() == str(tmp_path / "first")
    (tmp_path / "first").rename(tmp_path / "moved")
    assert cli("look", tmp_path / "moved", TEXTS[0]).returncode == 0
    settings = {**SMALL, "training.init_from": str(tmp_path / "moved"), "training.steps": 1}
    regard.train("dates", settings, out=tmp_path / "tuned")
    assert RunFolder(tmp_path / "tuned").best().step == 1
    resumed = cli("train", tmp_path / "moved")
    assert resumed.returncode == 4
    assert "optimizer" in resumed.stderr


@pytest.mark.parametrize("content", ["file", "folder"])
def test_nothing_is_replaced(small_run: RunFolder, tmp_path: Path, content: str) -> None:
    out = tmp_path / "out"
    if content == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "mine.txt").write_text("mine")
    with pytest.raises(regard.ConfigError, match="exists already"):
        regard.load(small_run.path).export(out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out if content == "file" else out / "mine.txt").read_text() == "mine"


class Picky(regard.Exporter):
    """Refuses some models, and fails while it writes others."""

    def __init__(self, mood: Literal["refuse", "fail"] = "refuse") -> None:
        self.mood = mood

    def find_obstacle(self, model: regard.TrainedModel) -> str | None:
        return f"{model.settings.model.kind} is too plain. Set model=transformer." if self.mood == "refuse" else None

    def write(self, model: regard.TrainedModel, folder: Path) -> None:
        (folder / "half").write_text(str(model.step))
        raise RuntimeError("the disk is full")


def test_a_refused_or_failed_export_leaves_nothing(small_run: RunFolder, tmp_path: Path) -> None:
    regard.register_exporter("picky", Picky)
    try:
        model = regard.load(small_run.path)
        with pytest.raises(regard.ConfigError, match=r"exported to picky: recurrent is too plain\. Set model=transf"):
            model.export(tmp_path / "out", "picky")
        with pytest.raises(RuntimeError, match="disk is full"):
            model.export(tmp_path / "out", "picky:mood=fail")
        with pytest.raises(regard.ConfigError, match="mood"):
            model.export(tmp_path / "out", {"kind": "picky", "mood": "calm"})
    finally:
        for registered in (ExportTarget.registry.settings, ExportTarget.registry.builders):
            registered.pop("picky")
        ExportTarget.registry.plugins.pop("picky")
    assert not list(tmp_path.iterdir())


def test_unknown_formats_and_ensembles_are_rejected(
    small_run: RunFolder, second_run: RunFolder, tmp_path: Path, cli: Callable[..., Result]
) -> None:
    done = cli("export", small_run.path, "--to", "foldr", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "Did you mean 'folder'?" in done.stderr
    with pytest.raises(regard.ConfigError, match="one by one"):
        regard.load(small_run.path, second_run.path).export(tmp_path / "out")
    assert not list(tmp_path.iterdir())
