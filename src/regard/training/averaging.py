"""Weights in place of those that the optimizer moves: their moving average, or the mean of checkpoints."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from regard.runs.folder import Checkpoint
from regard.runs.tensors import read_tensors


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
