"""An explorer of three small models: a GRU, a Transformer and a captioner."""

from pathlib import Path

import pytest
from fastapi import FastAPI

import regard
from regard.explorer.app import create_app
from regard.explorer.served_model import load_models
from regard.runs.folder import RunFolder
from tests_explorer import ACCESS
from tests_shared import SMALL

TRANSFORMER = {
    "kind": "transformer", "size": 16, "feedforward": 32, "layers": 2, "heads": 2, "dropout": 0, "positions": "rotary",
}  # fmt: skip


@pytest.fixture(scope="session")
def runs(small_run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders of a GRU, a Transformer and a captioner."""
    folder = tmp_path_factory.mktemp("explorer")
    settings = {key: value for key, value in SMALL.items() if not key.startswith("model.")}
    regard.train("dates", {**settings, "model": TRANSFORMER}, out=folder / "transformer", quiet=True)
    scenes = {"data.train": 40, "data.dev": 4, "data.test": 4, "training.steps": 4, "training.validate_every": 4}
    regard.train("scenes", scenes, out=folder / "captioner", quiet=True)
    return [small_run.path, folder / "transformer", folder / "captioner"]


@pytest.fixture(scope="session")
def app(runs: list[Path]) -> FastAPI:
    return create_app(load_models(list(map(str, runs))), ACCESS)
