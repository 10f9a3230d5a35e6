"""Checks of arguments. An error names the argument, its value, and what is expected.

A wrong type raises ArgumentTypeError (also a TypeError), a wrong value, shape, dtype or device ConfigError (also a
ValueError).
"""

from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import quote
from regard.quantities import MAX_SEED


def check_integer(name: str, value: Any, minimum: int = 1, maximum: int = 10**9) -> int:
    """Return an integer of at least `minimum` and at most `maximum`. A bool is not an integer."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be an integer of at least {minimum}, not {value!r}.")
    if value < minimum:
        raise ConfigError(f"{name} must be an integer of at least {minimum}, not {quote(value)}.")
    if value > maximum:
        raise ConfigError(f"{name} must be an integer of at most {maximum:,}, not {quote(value)}.")
    return value


def check_seed(name: str, value: Any) -> int:
    return check_integer(name, value, 0, MAX_SEED)


def check_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be True or False, not {value!r}.")
    return value


def check_tensors(**arguments: object) -> None:
    """Raise an error that names the first argument that is not a tensor."""
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            raise ArgumentTypeError(f"{name} must be a tensor, not {type(value).__name__}.")


def check_integers(name: str, tokens: Any, *axes: str) -> None:
    """Raise an error unless an argument is a tensor of integers with these axes."""
    check_tensors(**{name: tokens})
    if tokens.dtype not in (torch.int64, torch.int32):
        raise ConfigError(f"{name} must be a tensor of integers (int64 or int32), not {tokens.dtype}.")
    if tokens.dim() != len(axes):
        shape = f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"
        raise ConfigError(f"{name} must have the shape {shape}, not {tuple(tokens.shape)}.")


def check_same_device(name: str, tensor: Tensor, owner: str, device: torch.device) -> None:
    if tensor.device != device:
        raise ConfigError(f"{name} is on {tensor.device}, but {owner} is on {device}. Move one with .to(device).")


def has_values(tensor: Tensor) -> bool:
    """Whether the values of a tensor can be checked. Reading them on a GPU would synchronize, and there are no values
    during compilation.
    """
    return tensor.device.type == "cpu" and type(tensor) is Tensor and not torch.compiler.is_compiling()


def check_floating(like: Tensor, owner: str, **arguments: Tensor) -> None:
    """Raise an error unless tensors are floating-point, on the device of `like`, and of its dtype.

    The dtype may differ under autocast, which converts it. `owner` is what `like` belongs to, for the message.
    """
    for name, tensor in arguments.items():
        if not tensor.is_floating_point():
            raise ConfigError(
                f"{name} must be a floating-point tensor, not {tensor.dtype}. Convert it, for example with .float()."
            )
        if tensor.device != like.device:
            raise ConfigError(f"{name} is on {tensor.device}, but {owner} on {like.device}. Move one with .to(device).")
        if tensor.dtype != like.dtype and not torch.is_autocast_enabled(like.device.type):
            raise ConfigError(f"{name} is {tensor.dtype}, but {owner} {like.dtype}. Convert one with .to(dtype).")
