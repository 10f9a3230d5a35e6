"""Triton kernels for what PyTorch does in several passes over memory. Each may be refused, with the reason as text."""

import os
import shutil
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from regard.ops import reference_mode

KNOWN = (torch.float32, torch.float16, torch.bfloat16)

OLDEST = (8, 0)
"""The compute capability from which on Triton's kernels are sure to run."""


@cache
def triton_refusal() -> str | None:
    """Why no kernel of Triton's can be run on this machine, or None."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))):
        return "Triton needs a C compiler, and there is none"
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < OLDEST:
        return "the GPU is older than Triton wants"
    return None


def dtype_refusal(dtype: torch.dtype) -> str | None:
    """Why no kernel computes in a precision, or None if they do."""
    return None if dtype in KNOWN else f"it does not compute in {str(dtype).removeprefix('torch.')}"


def refusal(x: Tensor) -> str | None:
    """Why no kernel can be run on a tensor, or None if one can."""
    if torch.compiler.is_compiling():
        return "PyTorch's own compiler is at work, and makes kernels by itself"
    if not x.is_cuda:
        return "it needs a GPU"
    if not x.numel():
        return "there is nothing to compute"
    if reference_mode.in_reference_mode():
        return "the plain equations were asked for"
    return dtype_refusal(x.dtype) or triton_refusal()


def is_usable(x: Tensor) -> bool:
    return refusal(x) is None


def device_of(x: Tensor) -> torch.cuda.device_of:
    """Triton launches on the current device; within this, that is where a tensor lies."""
    return torch.cuda.device_of(x)
