"""Do two runs with the same settings end with the same weights, bit for bit, on this device?

Trains every kind of model twice for a few steps, and compares the weights. On a GPU, some operations add numbers in an
order that depends on the scheduling of threads, so their sums differ. This shows which models contain such operations.

    python benchmarks/determinism.py
    python benchmarks/determinism.py --only scenes captcha --captcha corpora/captcha
    python benchmarks/determinism.py --cost --only scenes efficientnet   # of deterministic convolutions, on a GPU
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import regard
from regard.data.cache import sha256
from regard.runs.folder import RunFolder

SHORT = {
    "training.steps": 60,
    "training.warmup": 5,
    "training.validate_every": 60,
    "training.save_every": 60,
    "data.dev": 20,
    "data.test": 1,
}
DATES = {"data.train": 5_000}
SCENES = {"data.train": 500, "training.batch_size": 32}


def scenes_with(**encoder: Any) -> dict[str, Any]:
    """Return overrides of the preset scenes with another encoder."""
    return {**SCENES, "model.encoder": encoder}


def list_kinds(captcha: Path | None) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the preset and the overrides of each kind of model."""
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        mechanism.name: ("dates", {**DATES, "model.attention": mechanism.name}) for mechanism in regard.mechanisms()
    }
    kinds |= {
        "fixed": ("dates", {**DATES, "model": "fixed"}),
        "copy": ("dates", {**DATES, "model.decoder.copy_source": True, "tokenizer.shared": True}),
        "lstm": ("dates", {**DATES, "model.encoder.cell": "lstm", "model.decoder.cell": "lstm"}),
        "luong order": ("dates", {**DATES, "model.decoder.order": "luong"}),
        "transformer model": ("dates", {**DATES, "model": "transformer-tiny", "tokenizer.shared": True}),
        "scenes": ("scenes", SCENES),
        "scenes-hard": ("scenes-hard", SCENES),
        "pooled": ("scenes", {**SCENES, "model.encoder.grid": [5, 6]}),
        "augmented": ("scenes", {**SCENES, "data.augmentation": {"flip": 0.5, "crop": 0.7}}),
        "patches": ("scenes", scenes_with(kind="patches", height=64, width=64, patch=16, size=64, heads=4, layers=2)),
        "efficientnet": (
            "scenes",
            scenes_with(kind="efficientnet_lite0", height=96, width=96, weights="none", frozen=False, stage="stage5"),
        ),
    }
    if captcha is not None:
        kinds["captcha"] = ("captcha", {"data.folder": str(captcha)})
    try:
        import timm  # noqa: F401
    except ImportError:
        return kinds
    for name in ("resnet18", "mobilenetv3_small_100", "convnext_atto"):
        encoder = {"kind": "timm", "model": name, "height": 96, "width": 96, "pretrained": False, "frozen": False}
        kinds[f"timm {name}"] = ("scenes", scenes_with(**encoder))
    return kinds


def train(preset: str, overrides: dict[str, Any], out: Path, *callbacks: regard.Callback) -> str:
    """Train a run. Return the hash of its weights."""
    settings = {key: value for key, value in SHORT.items() if preset != "captcha" or not key.startswith("data.")}
    regard.train(preset, {**settings, **overrides}, out=out, quiet=True, callbacks=callbacks)
    return "".join(sha256(path) for path in sorted(RunFolder(out).checkpoints.glob("*/*.safetensors")))


class StepClock(regard.Callback):
    """Measures the duration of each step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step(self, info: object) -> None:
        del info
        torch.cuda.synchronize()
        self.times.append(time.perf_counter())

    def median(self) -> float:
        """Return the median duration in milliseconds, without the first steps."""
        times = self.times[50:]
        return 1e3 * statistics.median(after - before for before, after in itertools.pairwise(times))


@contextmanager
def allow_any_convolution() -> Iterator[None]:
    """Ignore that training requests deterministic convolutions."""
    cudnn: Any = type(torch.backends.cudnn)
    option = vars(cudnn)["deterministic"]
    cudnn.deterministic = property(lambda _: False, lambda *_: None)
    try:
        yield
    finally:
        cudnn.deterministic = option


def measure_cost(preset: str, overrides: dict[str, Any]) -> list[float]:
    """Return the time of a step with deterministic convolutions, divided by that with any convolutions, three times."""
    long = {"training.steps": 150, "training.validate_every": 150, "training.save_every": 150}
    ratios = []
    for _ in range(3):
        clocks = StepClock(), StepClock()
        with tempfile.TemporaryDirectory() as folder:
            with allow_any_convolution():
                train(preset, {**overrides, **long}, Path(folder, "any"), clocks[0])
            train(preset, {**overrides, **long}, Path(folder, "deterministic"), clocks[1])
        ratios.append(clocks[1].median() / clocks[0].median())
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names of the models to train; by default all")
    parser.add_argument("--cost", action="store_true", help="measure the time of a step instead, on a GPU")
    parser.add_argument("--captcha", type=Path, help="folder with the images of the corpus captcha")
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    differing = []
    for name, (preset, overrides) in list_kinds(options.captcha).items():
        if options.only and name not in options.only:
            continue
        if options.cost:
            ratios = measure_cost(preset, overrides)
            print(f"{name:24} {' '.join(f'{ratio:.3f}' for ratio in ratios)} × the time of a step", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            first, second = (train(preset, overrides, Path(folder, str(number))) for number in range(2))
        print(f"{name:24} {'identical' if first == second else 'DIFFERENT'}", flush=True)
        differing += [name] if first != second else []
    if not options.cost:
        print(f"{device}, torch {torch.__version__}: {len(differing)} of the models differ between two runs.")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
