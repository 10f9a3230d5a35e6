"""Recording of attention weights. Attention that is not recorded runs at full speed."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor, nn

from regard.errors import ArgumentTypeError, ConfigError

Role = Literal["encoder-self", "decoder-self", "cross"]
"""What attends to what: the source to itself, the target to itself, or the target to the source."""

ROLES: tuple[Role, ...] = get_args(Role)

_sinks: ContextVar[dict[nn.Module, list[list[Tensor]]] | None] = ContextVar("sinks", default=None)


@runtime_checkable
class HasModules(Protocol):
    """A model whose modules have names: a torch module, or a `regard.Model`."""

    def named_modules(self) -> Iterable[tuple[str, nn.Module]]: ...


class Recordable(nn.Module):
    """A module whose weights can be recorded, with its role in the model."""

    def __init__(self, role: Role = "cross") -> None:
        super().__init__()
        if role not in ROLES:
            raise ConfigError(f"{role!r} is not a valid role. Available: {', '.join(ROLES)}.")
        self.role: Role = role

    @property
    def is_recorded(self) -> bool:
        """Whether this module is being recorded."""
        sinks = _sinks.get()
        return sinks is not None and self in sinks

    def record_weights(self, weights: Tensor) -> None:
        """Append the weights to every active recording of this module."""
        sinks = _sinks.get()
        for calls in (sinks or {}).get(self, ()):
            calls.append(weights.detach())


def is_recording() -> bool:
    """Whether any recording is active."""
    return _sinks.get() is not None


@dataclass
class Recording:
    """The weights of each attention in a model, before dropout, under the attention's name in the model.

    Attributes:
        calls: The weights of each call of each attention.
        roles: The role of each attention: `encoder-self`, `decoder-self` or `cross`.
    """

    calls: dict[str, list[Tensor]] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, Tensor]:
        """A tensor (B, T, S) or (B, H, T, S) for each name: all recorded calls, concatenated along the queries."""
        return {name: torch.cat(calls, dim=-2) for name, calls in self.calls.items() if calls}


@contextmanager
def record(model: HasModules, chosen: Callable[[str], bool] = lambda _: True) -> Iterator[Recording]:
    """Record the attention weights of `model` within the block, in this thread only.

    Args:
        model: A `regard.Model`, or a torch module.
        chosen: Selects attentions by their name in the model. The others run at full speed.

    Returns:
        A context manager that returns the recording.

    Raises:
        ArgumentTypeError: `model` is not a model, or `chosen` is not a function.

    >>> with regard.record(model) as recording:
    ...     model.predict("3 mai 2009")
    >>> recording.weights
    """
    if not isinstance(model, HasModules) or isinstance(model, type):
        raise ArgumentTypeError(f"model must be a regard.Model or a torch.nn.Module, not {type(model).__name__}.")
    if not callable(chosen):
        raise ArgumentTypeError(f"chosen must be a function of a name, not {type(chosen).__name__}.")
    modules = {name: module for name, module in _recordable_modules(model) if chosen(name)}
    recording = Recording({name: [] for name in modules}, {name: module.role for name, module in modules.items()})
    sinks = {module: list(calls) for module, calls in (_sinks.get() or {}).items()}
    for name, module in modules.items():
        sinks.setdefault(module, []).append(recording.calls[name])
    token = _sinks.set(sinks)
    try:
        yield recording
    finally:
        _sinks.reset(token)


def attention_roles(model: HasModules) -> dict[str, Role]:
    """Return the role of each attention of a model, by its name in the model."""
    return {name: module.role for name, module in _recordable_modules(model)}


def _recordable_modules(model: HasModules) -> Iterator[tuple[str, Recordable]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, Recordable))
