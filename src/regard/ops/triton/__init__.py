"""Triton kernels for operations that take PyTorch several passes over memory, and the conditions for using them."""

import os
import shutil
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from regard.ops import reference_mode

SUPPORTED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

MIN_COMPUTE_CAPABILITY = (8, 0)
"""The lowest compute capability that Triton supports."""


@cache
def triton_unsupported_reason() -> str | None:
    """Return why Triton cannot run on this machine, or None if it can."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))):
        return "Triton needs a C compiler, and none was found"
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < MIN_COMPUTE_CAPABILITY:
        return "the GPU is too old for Triton"
    return None


def dtype_unsupported_reason(dtype: torch.dtype) -> str | None:
    """Return why the kernels do not support a dtype, or None if they do."""
    return None if dtype in SUPPORTED_DTYPES else f"it does not support {str(dtype).removeprefix('torch.')}"


def unsupported_reason(x: Tensor) -> str | None:
    """Return why the kernels cannot run on a tensor, or None if they can."""
    if torch.compiler.is_compiling():
        return "torch.compile generates its own kernels"
    if not x.is_cuda:
        return "it needs a GPU"
    if not x.numel():
        return "the tensor is empty"
    if reference_mode.in_reference_mode():
        return "reference mode is on"
    return dtype_unsupported_reason(x.dtype) or triton_unsupported_reason()


def is_usable(x: Tensor) -> bool:
    return unsupported_reason(x) is None


def device_of(x: Tensor) -> torch.cuda.device_of:
    """Make the device of a tensor current within a `with` block: Triton launches kernels on the current device."""
    return torch.cuda.device_of(x)
