"""Recording: taps that hand out weights where they are asked for, and cost nothing where they are not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

_taps: ContextVar[dict[nn.Module, list[list[Tensor]]] | None] = ContextVar("taps", default=None)


class Recordable(nn.Module):
    """A module whose weights can be tapped."""

    @property
    def recorded(self) -> bool:
        """Whether somebody records this module now."""
        taps = _taps.get()
        return taps is not None and self in taps

    def keep(self, weights: Tensor) -> None:
        """Hand the weights to whoever records this module now, if anybody does."""
        taps = _taps.get()
        for sink in (taps or {}).get(self, ()):
            sink.append(weights.detach())


def anything_recorded() -> bool:
    """Whether weights of any module are recorded now."""
    return _taps.get() is not None


@dataclass
class Recording:
    """The weights of each attention of a model, before dropout, under the attention's name in the model."""

    calls: dict[str, list[Tensor]] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, Tensor]:
        """A tensor (B, T, S) or (B, H, T, S) for each name: the calls while recording, joined along the queries."""
        return {name: torch.cat(parts, dim=-2) for name, parts in self.calls.items() if parts}


@contextmanager
def record(model: nn.Module, chosen: Callable[[str], bool] = lambda _: True) -> Iterator[Recording]:
    """Keep the weights of the attentions in `model` while the block runs, in this thread alone.

    `chosen` picks attentions by their names in the model; those not picked run at full speed.
    """
    names = {name: module for name, module in model.named_modules() if isinstance(module, Recordable) and chosen(name)}
    recording = Recording({name: [] for name in names})
    taps = {module: list(sinks) for module, sinks in (_taps.get() or {}).items()}
    for name, module in names.items():
        taps.setdefault(module, []).append(recording.calls[name])
    token = _taps.set(taps)
    try:
        yield recording
    finally:
        _taps.reset(token)
