"""Checks of the arguments of recurrent networks.

B rows, T steps, D input width.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import did_you_mean

Lengths = Tensor | Sequence[int]


def check_lengths(lengths: Lengths, x_BTD: Tensor) -> Tensor:
    """Check lengths, and convert them to a tensor on the device of the input."""
    rows, steps = x_BTD.shape[:2]
    lengths_B = lengths if isinstance(lengths, Tensor) else _convert_lengths(lengths, rows)
    if lengths_B.dtype not in {torch.int64, torch.int32, torch.int16} or lengths_B.shape != (rows,):
        raise ConfigError(
            f"lengths must be one integer for each of the {rows} rows, not {lengths_B.dtype} of shape "
            f"{tuple(lengths_B.shape)}."
        )
    if lengths_B.device.type == "meta" and x_BTD.device.type != "meta":
        raise ConfigError(f"lengths is on meta, but x is on {x_BTD.device}. Pass lengths with values.")
    if lengths_B.device.type == "cpu" and rows and not (lengths_B.min() >= 0 and lengths_B.max() <= steps):
        raise ConfigError(f"lengths must be between 0 and the number of steps, {steps}, not {lengths_B.tolist()}.")
    return lengths_B.to(x_BTD.device, torch.int64)


def _convert_lengths(lengths: Sequence[int], rows: int) -> Tensor:
    try:
        lengths_B = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentTypeError(
            f"lengths must be a tensor or a list with one integer for each of the {rows} rows, not {lengths!r}."
        ) from None
    return lengths_B if lengths_B.numel() else lengths_B.long()  # torch converts an empty list to float32


_TORCH_NAMES = {"num_layers": "layers", "nonlinearity": "activation", "variants": "variant"}
"""Option names of torch.nn, and a likely mistake, with the names used here."""


def check_options(kind: str, options: Mapping[str, Any], valid: Iterable[str]) -> None:
    """Raise ConfigError for an option that does not exist, with the nearest name."""
    for name in options:
        if name not in valid:
            hint = f" Did you mean '{_TORCH_NAMES[name]}'?" if name in _TORCH_NAMES else did_you_mean(name, valid)
            if name == "batch_first":
                hint = " It is always batch first."
            raise ConfigError(f"regard.{kind} has no option '{name}'.{hint}")
