"""The optimizer (AdamW), the learning rate as a pure function of the step, gradient clipping, and the moving average of
the weights.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from regard.runs.settings import TrainingSettings


class _AdamW(torch.optim.AdamW):
    """AdamW without the decorators of torch. They import its compiler, which can take longer than a short training."""

    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        inspect.unwrap(torch.optim.AdamW.step)(self)


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """Build AdamW. Weight decay applies to matrices, not to vectors (biases, gains). Frozen parameters are left out."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    vectors = [parameter for parameter in parameters if parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    betas = (0.9, settings.adam_beta2)
    device = next(model.parameters()).device
    if device.type != "cuda":
        return _AdamW(groups, lr=settings.learning_rate, betas=betas, fused=True)
    # A captured CUDA graph reads the learning rate from this tensor, so it can be replayed with any rate.
    rate = torch.tensor(settings.learning_rate, device=device)
    return _AdamW(groups, lr=rate, betas=betas, fused=True, capturable=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


_DECAYS: dict[str, Callable[[float], float]] = {
    "none": lambda _: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


def learning_rate(position: float, settings: TrainingSettings, lr_reductions: int = 0) -> float:
    """Return the learning rate at a position of the schedule: a linear warm-up to the peak, then the decay.

    The position is the step, counted from 1, unless a deadline rescales the schedule. `lr_reductions` is the
    number of reductions at plateaus of the validation metric so far; only `decay="plateau"` uses it.
    """
    peak = settings.learning_rate
    if position <= settings.warmup:
        return peak * position / settings.warmup
    if settings.decay == "inverse_sqrt":
        return peak * math.sqrt(max(1, settings.warmup) / position)
    if settings.decay == "plateau":
        return float(peak * settings.plateau_factor**lr_reductions)
    progress = (position - settings.warmup) / max(1, settings.steps - settings.warmup)
    return peak * _DECAYS[settings.decay](min(1.0, progress))


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """Return the gradient; create it, as zeros, if there is none. It stays at its address, which CUDA graphs hold."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def clip_gradients(
    parameters: Iterable[nn.Parameter], max_norm: float, combine: Callable[[Tensor], Tensor] = lambda norm: norm
) -> Tensor:
    """Scale the gradient to a norm of at most `max_norm`, and return its norm before scaling.

    A gradient whose norm is not finite is left unchanged. Do not update the weights with it. `combine` computes the
    norm of a sharded gradient from that of its part on this rank.
    """
    gradients = [get_local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    norm = combine(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, torch.where(norm.isfinite(), factor, 1.0))
    return norm


def get_local(tensor: Tensor) -> Tensor:
    """Return the part of a sharded tensor (`DTensor`) that this rank stores, or the tensor itself."""
    is_plain = type(tensor) in (Tensor, nn.Parameter)  # the import of DTensor takes a second
    return tensor if is_plain else tensor.to_local()  # type: ignore[attr-defined]


@final
class MovingAverage:
    """An exponential moving average (EMA) of a model's weights: w̄ ← β w̄ + (1 − β) w after each step.

    The decay β is smaller in the first steps: min(β, (1 + n) / (10 + n)) at step n.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self._averages = [get_local(weight) for weight in self.weights.values()]
        self._parameters = [get_local(parameter.detach()) for parameter in model.parameters()]

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
