"""Weight averaging: an exponential moving average of the weights, and the average of several checkpoints."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from regard.runs.stored_checkpoint import Checkpoint
from regard.runs.tensors import read_tensors


@final
class MovingAverage:
    """An exponential moving average (EMA) of a model's weights: w̄ ← β w̄ + (1 − β) w after each step.

    The decay β is smaller in the first steps: min(β, (1 + n) / (10 + n)) at step n.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self._averages = list(self.weights.values())
        self._parameters = [parameter.detach() for parameter in model.parameters()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after a step. Steps are counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._averages, self._parameters, 1 - decay)

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Within the context, the model has the averaged weights."""
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            weight = parameter.detach().clone()
            parameter.copy_(self.weights[name])
            self.weights[name].copy_(weight)


def average_weights(checkpoints: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """Average the weights of checkpoints. Tensors that are not floating-point are those of the first checkpoint."""
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
def averaged_weights(model: nn.Module, checkpoints: Sequence[Checkpoint]) -> Iterator[None]:
    """Within the context, the model has the averaged weights of the checkpoints."""
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(average_weights(checkpoints), strict=False)  # tied weights are stored once
    try:
        yield
    finally:
        model.load_state_dict(weights)
