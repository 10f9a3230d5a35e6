"""Hooks: observe or change what modules compute, from outside. A module without hooks runs at full speed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

Parts = dict[str, list[Tensor]]
"""The tensors of each call of a module, by the name of the part."""

_active: ContextVar[Mapping[nn.Module, Sequence[Any]] | None] = ContextVar("hooks", default=None)


def are_hooks_active() -> bool:
    """Whether any module has hooks."""
    return bool(_active.get())


def hooks_of(module: nn.Module) -> Sequence[Any]:
    """Return the active hooks of a module."""
    active = _active.get()
    return () if active is None else active.get(module, ())


@contextmanager
def use_hooks(hooks: Mapping[nn.Module, Sequence[Any]]) -> Iterator[None]:
    """Use exactly these hooks within the block, in this thread only."""
    token = _active.set(hooks or None)
    try:
        yield
    finally:
        _active.reset(token)


def active_hooks() -> dict[nn.Module, list[Any]]:
    """Return a copy of all active hooks."""
    return {module: list(hooks) for module, hooks in (_active.get() or {}).items()}


@dataclass
class Recorder:
    """The recorded tensors of one module. A module with hook points of its own has a subclass."""

    parts: Parts = field(default_factory=dict)
    detailed: bool = False
    """Whether to record everything that the result of the module is computed from."""
    has_hypotheses: bool = False
    """Whether a search with several hypotheses was recorded: a row is not the same hypothesis at each step."""

    def record(self, parts: Mapping[str, Tensor | None]) -> None:
        """Append a tensor to each part. None is skipped."""
        for name, tensor in parts.items():
            if tensor is not None:
                self.parts.setdefault(name, []).append(tensor.detach())


@contextmanager
def record_modules(recorders: Mapping[nn.Module, Recorder]) -> Iterator[None]:
    """Record modules within the block, in addition to other active hooks, which act first."""
    hooks = active_hooks()
    for module, recorder in recorders.items():
        hooks.setdefault(module, []).append(recorder)
    with use_hooks(hooks):
        yield


def _active_recorders() -> Iterator[Recorder]:
    return (hook for hooks in (_active.get() or {}).values() for hook in hooks if isinstance(hook, Recorder))


def mark_hypotheses() -> None:
    """Note in every active recorder that a search keeps several hypotheses, and reorders the rows between steps."""
    for recorder in _active_recorders():
        recorder.has_hypotheses = True


def mark_recorded() -> Callable[[], None]:
    """Return a function that removes what was recorded since this call from every active recorder."""
    marked = [
        (recorder, {name: len(calls) for name, calls in recorder.parts.items()}) for recorder in _active_recorders()
    ]

    def discard() -> None:
        for recorder, counts in marked:
            for name, calls in recorder.parts.items():
                del calls[counts.get(name, 0) :]

    return discard


_observed: ContextVar[dict[str, Tensor] | None] = ContextVar("observed", default=None)


class ObservedModule(nn.Module):
    """A module that lets recordings observe what it computes on the way to its result."""

    def observe(self, **values: Tensor) -> None:
        """Pass values to the enclosing `observe_values` block. Without one, this has no effect."""
        observed = _observed.get()
        if observed is not None:
            observed |= values


@contextmanager
def observe_values() -> Iterator[dict[str, Tensor]]:
    """Collect the values that modules show within the block."""
    observed: dict[str, Tensor] = {}
    token = _observed.set(observed)
    try:
        yield observed
    finally:
        _observed.reset(token)
