"""Devices and floating-point dtypes: check those that users pass; autocast."""

from contextlib import AbstractContextManager, nullcontext

import torch

from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import did_you_mean

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float32, torch.float64, torch.bfloat16, torch.float16
)}  # fmt: skip


def check_device(device: str | torch.device, argument: str = "device") -> torch.device:
    """Return the device; "auto" is the GPU if there is one, else the CPU."""
    if not isinstance(device, str | torch.device):
        raise ArgumentTypeError(
            f"{argument} must be a name ('cpu', 'cuda', 'cuda:1') or a torch.device, not {type(device).__name__}."
        )
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        parsed = torch.device(device)
    except RuntimeError:
        parsed = None
    if parsed is None or parsed.type not in {"cpu", "cuda"}:
        raise ConfigError(f"{argument}={device}: not a supported device. Use cpu, cuda or cuda:N.")
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{argument}={device}: no CUDA device is available. Use cpu or auto.")
    if parsed.type == "cuda" and parsed.index is not None and parsed.index >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ConfigError(f"{argument}={device}: there is no such GPU. The last one is cuda:{last}.")
    return parsed


def check_dtype(dtype: str | torch.dtype, argument: str = "dtype") -> torch.dtype:
    """Return the floating-point dtype."""
    if not isinstance(dtype, str | torch.dtype):
        raise ArgumentTypeError(
            f"{argument} must be a torch.dtype or its name ('float32'), not {type(dtype).__name__}."
        )
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(
            f"{argument}={name}: not a supported dtype.{did_you_mean(name, DTYPES)} Available: {', '.join(DTYPES)}."
        )
    return DTYPES[name]


def disable_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Disable autocast within a block. The device `meta`, on which nothing is computed, has no autocast."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
