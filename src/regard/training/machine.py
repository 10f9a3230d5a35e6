"""The device, the options of torch and the disk of the machine that trains."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from regard.arguments import check_device
from regard.errors import ResourceError, describe_disk_failure, is_disk_failure
from regard.ops.reference_mode import keeps_onednn
from regard.runs.folder import RunFolder
from regard.runs.settings import TrainingSettings


def uses_bfloat16(settings: TrainingSettings, device: torch.device) -> bool:
    """Whether to use bfloat16 autocast: if it is set, or with `auto` if the device computes much faster in bfloat16."""
    if settings.precision != "auto":
        return settings.precision == "bfloat16"
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)  # Ampere
    return device.type == "cpu" and torch.cpu._is_amx_tile_supported()


def _keeps_onednn(settings: TrainingSettings) -> bool:
    """Whether oneDNN is suitable for the device and the precision."""
    device = check_device(settings.device, "training.device")
    return device.type != "cpu" or keeps_onednn(half_precision=uses_bfloat16(settings, device))


@contextmanager
def configure_torch(settings: TrainingSettings) -> Iterator[None]:
    """Set global options of torch for training, and restore them at the end of the context.

    - The number of CPU threads: small operations are slower on many threads.
    - Denormal numbers are flushed to zero. A sharp softmax contains many of them, and a CPU takes a hundred times as
      long for an operation on a denormal number as on a normal one.
    - cuDNN uses deterministic convolutions. The others add gradients in an order that varies, so that two runs with
      the same seed end with different weights.
    - The cuDNN backend of scaled dot product attention is disabled, because it spends a third of a second on planning
      at each new shape.
    - oneDNN is disabled on a CPU for which it is not suitable (see `keeps_onednn`).
    """
    threads = torch.get_num_threads()
    cudnn_attention = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    deterministic = torch.backends.cudnn.deterministic
    torch.set_num_threads(settings.threads)
    torch.set_flush_denormal(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.enable_cudnn_sdp(False)
    onednn = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = onednn and _keeps_onednn(settings)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = onednn
        torch.backends.cuda.enable_cudnn_sdp(cudnn_attention)
        torch.backends.cudnn.deterministic = deterministic
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


@contextmanager
def report_disk_failures(folder: RunFolder, is_exempt: Callable[[OSError], bool] = lambda _: False) -> Iterator[None]:
    """Raise `ResourceError` with a remedy if the disk fails, for example because it is full.

    Errors for which `is_exempt` is true are raised unchanged.
    """
    try:
        yield
    except OSError as error:
        if not is_disk_failure(error) or is_exempt(error):
            raise
        problem, remedy = describe_disk_failure(error, folder.path)
        raise ResourceError(
            f"{problem}. Earlier checkpoints are valid: {remedy} and run the same command to resume."
        ) from None
