"""The tensors in the files of a checkpoint: reading and validation."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as deserialize
from torch import Tensor, nn

from regard.errors import ModelError
from regard.regular_files import read_regular
from regard.runs.stored_checkpoint import Checkpoint, UnreadableError


def read_tensors(checkpoint: Checkpoint, name: str) -> dict[str, Tensor]:
    """Read the tensors in a file of a checkpoint."""
    path = checkpoint.path / name
    try:
        # Not memory-mapped: a read error of a mapped file would kill the process.
        return deserialize(read_regular(path))
    except OSError as error:
        raise UnreadableError(path, error) from None
    except SafetensorError as error:
        raise ModelError(f"{path} is damaged: {error}. Copy it again from the original run folder.") from None


def check_tensors(tensors: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype], path: Path) -> None:
    """Raise ModelError, with the name of the tensor, unless each has its dtype and only finite values."""
    for name, tensor in tensors.items():
        if tensor.dtype != dtypes[name]:
            dtype, expected = (str(entry).removeprefix("torch.") for entry in (tensor.dtype, dtypes[name]))
            raise ModelError(
                f"{path}: the tensor {name} has dtype {dtype}, expected {expected}. Copy the file again from the "
                "original run folder."
            )
    broken = first_not_finite(tensors)
    if broken is not None:
        raise ModelError(
            f"{path}: the tensor {broken} contains NaN or infinity. Copy the file again from the original run folder."
        )


def first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor with a value that is not finite, if any."""
    if not tensors:
        return None
    finite = [tensor.isfinite().all() for tensor in tensors.values()]
    all_finite = torch.stack([entry.cpu() for entry in finite])
    return None if bool(all_finite.all()) else list(tensors)[int(all_finite.int().argmin())]


def collect_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights and buffers of a model; a shared tensor (tied embeddings) only under its first name."""
    distinct: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        distinct.setdefault(id(tensor), (name, tensor.detach()))
    return dict(distinct.values())


def get_shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_shapes(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Raise ModelError, with the name of the tensor, unless the tensors of a file are those that the model expects."""
    for name, shape in expected.items():
        if name not in found:
            raise ModelError(
                f"{path} has no tensor {name}, which the model of its config.yaml requires. The folder may contain "
                "files of different runs."
            )
        if found[name] != shape:
            raise ModelError(
                f"{path}: the tensor {name} has the shape {found[name]}, but the model of its config.yaml requires "
                f"{shape}. The folder may contain files of different runs."
            )
    extra = set(found) - set(expected)
    if extra:
        raise ModelError(
            f"{path} has a tensor that the model of its config.yaml does not have: {min(extra)}. The folder may "
            "contain files of different runs."
        )
