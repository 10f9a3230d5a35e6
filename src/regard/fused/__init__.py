"""Triton kernels for what PyTorch does in several passes over memory; each is left where it cannot serve."""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

KNOWN = (torch.float32, torch.float16, torch.bfloat16)


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


def can_serve(x: Tensor) -> bool:
    """Whether kernels can be run on a tensor; a compiler of PyTorch's own makes better ones by itself."""
    return x.is_cuda and x.dtype in KNOWN and x.numel() > 0 and has_triton() and not torch.compiler.is_compiling()
