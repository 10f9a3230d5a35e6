"""A copy of a model in the format of other software, for an engine."""

import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Generic, TypeVar, final

import torch

from regard.decoding.predictor import Predictor
from regard.export.exporter import Exporter, TrainedModel
from regard.ops.int8 import has_int8_weights

T = TypeVar("T")


def find_conversion_obstacle(
    predictor: Predictor, model: TrainedModel, exporter: Exporter, packages: Sequence[str], extra: str
) -> str | None:
    """Return why an engine with a converted model cannot replace torch; None if it can. Nothing is loaded."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        return f"the package {missing[0]} is not installed. Run pip install 'regard[{extra}]'."
    if model.members > 1:
        return "it does not support ensembles. Use a single model, or the engine torch."
    obstacle = exporter.find_obstacle(model)
    if obstacle is not None:
        return obstacle
    dtype = torch.int8 if has_int8_weights(predictor.model) else predictor.dtype
    if predictor.device.type != "cpu" or dtype != torch.float32:
        return f"the model is on the device {predictor.device} in {dtype}. Use the CPU and float32."
    return None


@final
class Conversion(Generic[T]):
    """Converts a model on the first prediction, and again if its weights have changed. The files are temporary.

    Args:
        load: A function that opens the folder that the exporter has written.
    """

    def __init__(self, model: TrainedModel, exporter: Exporter, load: Callable[[Path], T]) -> None:
        self._model, self._exporter, self._load = model, exporter, load
        self._converted: tuple[list[tuple[int, int]], T] | None = None
        """The versions of the weights, and what they were converted to."""

    def open(self) -> T:
        versions = [(weight.data_ptr(), weight._version) for weight in self._model.network.parameters()]
        if self._converted is None or self._converted[0] != versions:
            with tempfile.TemporaryDirectory(prefix="regard-") as folder:
                self._exporter.write(self._model, Path(folder))
                self._converted = versions, self._load(Path(folder))
        return self._converted[1]
