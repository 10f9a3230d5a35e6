"""An explorer of three small models (a GRU, a Transformer and a captioner), and a browser that opens its page."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import PIL.Image
import pytest
from fastapi import FastAPI

import regard
from regard.explorer.app import create_app
from regard.explorer.served_model import load_models
from regard.runs.folder import RunFolder
from regard.yaml_reader import dump_yaml, read_yaml
from screenshots import serve
from tests_browser import browser, page
from tests_explorer import ACCESS
from tests_shared import SMALL

__all__ = ["browser", "page"]

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
def captioners_without_test_set(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The captioner with data that has no test set, and with data that is missing."""
    folder = tmp_path_factory.mktemp("captioners")
    (folder / "images").mkdir()
    names = [f"{number}.png" for number in range(40)]
    for number, name in enumerate(names):
        PIL.Image.linear_gradient("L").rotate(9 * number).save(folder / "images" / name)
    captions = folder / "captions.tsv"
    captions.write_text("".join(f"{name}\ta red circle\n" for name in names))
    for images in ("images", "missing"):
        run = folder / f"run-{images}"
        shutil.copytree(runs[2], run)
        data = {"kind": "captions", "images": str(folder / images), "captions": {"path": str(captions)}}
        settings, _ = read_yaml(run / "config.yaml")
        (run / "config.yaml").write_text(dump_yaml({**settings, "data": data}), "utf-8")
    return [folder / "run-images", folder / "run-missing"]


@pytest.fixture(scope="session")
def app(runs: list[Path]) -> FastAPI:
    return create_app(load_models(list(map(str, runs))), ACCESS)


@pytest.fixture(scope="module")
def url(runs: list[Path]) -> Iterator[str]:
    """The URL of a server with the three models."""
    with serve(list(map(str, runs))) as address:
        yield address
