"""The optimizer: AdamW, a learning rate that is a pure function of progress, clipping."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from regard.runs.settings import TrainingSettings


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW; matrices decay, vectors (biases, gains) do not."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    betas = (0.9, settings.adam_beta2)
    device = next(model.parameters()).device
    if device.type != "cuda":
        return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=betas, foreach=True)
    # With the rate in a tensor, a recorded step can be played at any.
    rate = torch.tensor(settings.learning_rate, device=device)
    return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=True, capturable=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the next step."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


_DECAYS: dict[str, Callable[[float], float]] = {
    "none": lambda _: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}


def learning_rate(position: float, settings: TrainingSettings, falls: int = 0) -> float:
    """The learning rate at a position of the schedule: a linear increase to the peak, then the decay.

    The position is the step, counted from 1, unless a deadline rescales the schedule. `falls` is the number of plateaus
    that validation has found; only the decay `plateau` uses it.
    """
    peak = settings.learning_rate
    if position <= settings.warmup:
        return peak * position / settings.warmup
    if settings.decay == "inverse_sqrt":
        return peak * math.sqrt(max(1, settings.warmup) / position)
    if settings.decay == "plateau":
        return float(peak * settings.plateau_factor**falls)
    done = (position - settings.warmup) / max(1, settings.steps - settings.warmup)
    return peak * _DECAYS[settings.decay](min(1.0, done))


def clip_gradients(parameters: Iterable[nn.Parameter], largest: float) -> Tensor:
    """Scale the gradient to a norm of at most `largest` → its norm before. Where that is not finite, the gradient is
    left as it is, and no step may be taken.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    factor = (largest / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, torch.where(norm.isfinite(), factor, 1.0))
    return norm
