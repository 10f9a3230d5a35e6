"""The equations themselves, in place of all fast paths."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError

Gradients = tuple[Tensor | None, ...]

_asked_for: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def plainly() -> Iterator[None]:
    """Take no fast path whose gradient is worked out by hand while the block runs: slow, and right by definition."""
    token = _asked_for.set(True)
    try:
        yield
    finally:
        _asked_for.reset(token)


def asked_for() -> bool:
    return _asked_for.get()


def differentiable_once(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """A gradient that has none of its own says so, rather than be taken for a constant."""

    @wraps(backward)
    def checked(*args: Any) -> Gradients:
        if torch.is_grad_enabled():
            raise ConfigError(
                "Second derivatives are known to the plain equations alone: run this under "
                "`with regard.plain.plainly():`."
            )
        return backward(*args)

    return checked
