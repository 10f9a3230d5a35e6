"""The machine that a run is on: its device, its threads, its disk."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from regard.errors import ConfigError, ResourceError, describe_disk_failure, is_disk_failure
from regard.ops.reference_mode import cpu_has_bfloat16
from regard.runs.folder import RunFolder
from regard.runs.settings import TrainingSettings


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"training.device={name}: there is no CUDA device here. Use cpu or auto.")
    return torch.device(name)


def usable_threads() -> int:
    """The number of CPU threads that may be used: OMP_NUM_THREADS, or by default one for each core."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if wanted.isdecimal() and int(wanted):
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def uses_bfloat16(settings: TrainingSettings, device: torch.device) -> bool:
    """Whether matrix products are computed in bfloat16: if that is set, or where it is much faster (`auto`)."""
    if settings.precision != "auto":
        return settings.precision == "bfloat16"
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)  # Ampere
    return device.type == "cpu" and torch.cpu._is_amx_tile_supported()


def _keeps_onednn(settings: TrainingSettings) -> bool:
    """Whether oneDNN can stay enabled. On a CPU without bfloat16, torch disables it in the middle of a step, at the
    first product in bfloat16, and a resumed run would round differently from an uninterrupted one.
    """
    device = resolve_device(settings.device)
    return device.type != "cpu" or not uses_bfloat16(settings, device) or cpu_has_bfloat16()


@contextmanager
def configure_torch(settings: TrainingSettings) -> Iterator[None]:
    """Small operations on many threads wait more than they work; the count is set for the run alone.

    So is the rounding of denormal numbers to zero: a sharp softmax is full of them, and each costs a CPU a hundred
    times the work of another. And so is attention without cuDNN's, which plans for a third of a second whenever it
    sees a new shape.
    """
    before = torch.get_num_threads()
    planned = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.set_num_threads(settings.threads)
    torch.set_flush_denormal(True)
    torch.backends.cuda.enable_cudnn_sdp(False)
    onednn = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = onednn and _keeps_onednn(settings)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = onednn
        torch.backends.cuda.enable_cudnn_sdp(planned)
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


@contextmanager
def report_disk_failures(folder: RunFolder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not is_disk_failure(error):
            raise
        problem, remedy = describe_disk_failure(error, folder.path)
        raise ResourceError(
            f"{problem}. Earlier checkpoints are valid: {remedy} and run the same command to resume."
        ) from None
