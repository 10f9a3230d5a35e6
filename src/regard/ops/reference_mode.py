"""The choice of an implementation: the fastest path that supports a case, or in reference mode the reference."""

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import ConfigError

Gradients = tuple[Tensor | None, ...]

_enabled: ContextVar[bool] = ContextVar("reference_mode", default=False)


@contextmanager
def reference_mode() -> Iterator[None]:
    """Within the block, compute attention, recurrent layers and losses with their reference implementations.

    They are slower, and support second derivatives.
    """
    token = _enabled.set(True)
    try:
        yield
    finally:
        _enabled.reset(token)


@contextmanager
def full_precision(dtype: torch.dtype) -> Iterator[None]:
    """Turn off TF32 in cuDNN. By default, its recurrent networks round their inputs to TF32, and the score of a
    sentence depends on the other sentences in its batch.

    Also disable oneDNN on a CPU for which it is not suitable.
    """
    before, onednn = torch.backends.cudnn.allow_tf32, torch.backends.mkldnn.enabled
    torch.backends.cudnn.allow_tf32 = False
    if not keeps_onednn(half_precision=dtype in {torch.bfloat16, torch.float16}):
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
        torch.backends.mkldnn.enabled = onednn


def disable_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Disable autocast within a block. The device `meta`, on which nothing is computed, has no autocast."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


@cache
def cpu_has_bfloat16() -> bool:
    """Whether the CPU has bfloat16 instructions, without which oneDNN cannot use bfloat16."""
    # On macOS, torch is built without oneDNN.
    has_onednn: Callable[[], bool] = torch.backends.mkldnn.is_available
    return has_onednn() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def keeps_onednn(*, half_precision: bool) -> bool:
    """Whether oneDNN is suitable for this CPU. On a CPU without bfloat16 instructions, it is not, in two cases.

    - In half precision, torch would print a warning at the first product, and disable oneDNN for the whole process. A
      resumed run, or a run that is trained later in the same process, would then round differently.
    - On ARM, the products of oneDNN are slower than those of torch without it (docs/performance/on-a-cpu.md).
    """
    return cpu_has_bfloat16() or not (half_precision or platform.machine() == "aarch64")


def in_reference_mode() -> bool:
    return _enabled.get()


def differentiable_once(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Raise an error on double backward. Without it, autograd would treat the analytic gradient as a constant."""

    @wraps(backward)
    def checked(*args: Any) -> Gradients:
        if torch.is_grad_enabled():
            raise ConfigError(
                "Only the reference implementation supports second derivatives. Run this within "
                "`with regard.ops.reference_mode.reference_mode():`."
            )
        return backward(*args)

    return checked


class Dispatch(NamedTuple):
    """The implementation that is used, and the reason why each faster one is not."""

    path: str
    rejected: dict[str, str]


def first_available(unsupported_reasons: Mapping[str, Callable[[], str | None]], otherwise: str) -> Dispatch:
    """Return the first path that has no reason to be unsupported, else `otherwise`. List the fastest path first."""
    rejected: dict[str, str] = {}
    for path, unsupported_reason in unsupported_reasons.items():
        reason = unsupported_reason()
        if reason is None:
            return Dispatch(path, rejected)
        rejected[path] = reason
    return Dispatch(otherwise, rejected)
