"""Weights in place of those that the optimiser moves: their moving average, or the mean of checkpoints."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import final

import torch
from safetensors import SafetensorError
from safetensors.torch import load as deserialize
from torch import Tensor, nn

from regard.errors import ModelError
from regard.training.folder import Checkpoint, UnreadableError


@final
class MovingAverage:
    """w̄ ← β w̄ + (1 − β) w after each step, with β smaller in the first steps: min(β, (1 + n) / (10 + n))."""

    def __init__(self, model: nn.Module, memory: float) -> None:
        self.memory = memory
        self.weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self._both = list(self.weights.values()), [parameter.detach() for parameter in model.parameters()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After a step, counted from 1."""
        memory = min(self.memory, (1 + step) / (10 + step))
        torch._foreach_lerp_(*self._both, 1 - memory)

    @contextmanager
    def in_place_of(self, model: nn.Module) -> Iterator[None]:
        """For a while, the model has the average's weights."""
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            kept = parameter.detach().clone()
            parameter.copy_(self.weights[name])
            self.weights[name].copy_(kept)


def mean_of(checkpoints: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """The mean of each weight over some checkpoints; what is no floating-point number is taken from the first."""
    total: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        for name, tensor in read_tensors(checkpoint, "model.safetensors").items():
            if name not in total:
                total[name] = tensor.double() if tensor.is_floating_point() else tensor
            elif tensor.is_floating_point():
                total[name] += tensor.double()
    return {
        name: (tensor / len(checkpoints)).float() if tensor.is_floating_point() else tensor
        for name, tensor in total.items()
    }


@contextmanager
def mean_in_place(model: nn.Module, checkpoints: Sequence[Checkpoint]) -> Iterator[None]:
    """Within the context, the model has the average of the checkpoints' weights."""
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(mean_of(checkpoints), strict=False)  # tied weights are stored once
    try:
        yield
    finally:
        model.load_state_dict(weights)


def read_tensors(checkpoint: Checkpoint, name: str) -> dict[str, Tensor]:
    """The tensors in a file of a checkpoint."""
    path = checkpoint.path / name
    try:
        # Read by Python: a read error of a mapped file would end the process.
        return deserialize(path.read_bytes())
    except OSError as error:
        raise UnreadableError(path, error) from None
    except SafetensorError as error:
        raise ModelError(f"{path} is damaged: {error}. Copy it again from where it was trained.") from None


def check_tensors(tensors: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype], path: Path) -> None:
    """Raise ModelError, with the name of the tensor, unless each has its dtype and only finite values."""
    for name, tensor in tensors.items():
        if tensor.dtype != dtypes[name]:
            found, expected = (str(dtype).removeprefix("torch.") for dtype in (tensor.dtype, dtypes[name]))
            raise ModelError(
                f"{path}: the tensor {name} has the type {found} and must have {expected}. Copy the file again from "
                "where it was trained."
            )
    broken = first_not_finite(tensors)
    if broken is not None:
        raise ModelError(
            f"{path}: the tensor {broken} contains NaN or infinity, and the model cannot be used. Copy the file again "
            "from where it was trained."
        )


def first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor in which a number is not finite."""
    if not tensors:
        return None
    finite = [tensor.isfinite().all() for tensor in tensors.values()]
    all_finite = torch.stack([entry.cpu() for entry in finite])
    return None if bool(all_finite.all()) else list(tensors)[int(all_finite.int().argmin())]
