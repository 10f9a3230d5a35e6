"""The equations themselves, in place of all fast paths."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError

Gradients = tuple[Tensor | None, ...]

_asked_for: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def reference_mode() -> Iterator[None]:
    """Take no fast path whose gradient is worked out by hand while the block runs: slow, and right by definition."""
    token = _asked_for.set(True)
    try:
        yield
    finally:
        _asked_for.reset(token)


@contextmanager
def full_precision() -> Iterator[None]:
    """Turn off TF32 in cuDNN. By default, its recurrent networks round their inputs to TF32, and the score of a
    sentence depends on the other sentences in its batch.
    """
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


@cache
def cpu_has_bfloat16() -> bool:
    """Whether the CPU has bfloat16 instructions, without which oneDNN cannot use bfloat16."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def in_reference_mode() -> bool:
    return _asked_for.get()


def differentiable_once(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """A gradient that has none of its own says so, rather than be taken for a constant."""

    @wraps(backward)
    def checked(*args: Any) -> Gradients:
        if torch.is_grad_enabled():
            raise ConfigError(
                "Second derivatives are known to the plain equations alone: run this under "
                "`with regard.ops.reference_mode.plainly():`."
            )
        return backward(*args)

    return checked
