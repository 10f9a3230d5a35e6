"""The tensors in the files of a checkpoint: read them, and check whether they belong to the model of the settings."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as deserialize
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from regard.data.tokens.tokenizers import TokenizerPair
from regard.errors import ModelError
from regard.models.seq2seq import build_model
from regard.regular_files import read_regular
from regard.runs.settings import RunSettings
from regard.runs.stored_checkpoint import WEIGHTS, Checkpoint, UnreadableError


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


_EXTRA_PARAMETERS, _PARAMETERS_PER_TENSOR = 256, 4
"""The maximum number of parameter tensors: 256, plus 4 for each tensor in the checkpoint. Not all of them are saved:
some are tied to others, or belong to an unused part of a network.
"""

_RANDOM = {
    f"{name}_"
    for name in ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "random", "uniform")
}


def check_sizes(settings: RunSettings, tokenizers: TokenizerPair, checkpoint: Checkpoint) -> None:
    """Raise ModelError if the weights of a checkpoint do not have the sizes of the settings.

    The model is built on the device `meta`, which allocates no memory. Building stops with an error if the model has
    many more parameter tensors than the checkpoint, because building a thousand layers takes seconds.
    """
    saved, path = checkpoint.shapes, checkpoint.path / WEIGHTS
    limit = _PARAMETERS_PER_TENSOR * len(saved) + _EXTRA_PARAMETERS
    with torch.random.fork_rng(devices=[]), torch.device("meta"), _SkipInitialization(), _limit_parameters(limit, path):
        try:
            model = build_model(settings.model, len(tokenizers.source), len(tokenizers.target))
        except (NotImplementedError, RuntimeError):  # a part that computes with its weights when it is built
            return
    check_shapes(get_shapes(collect_tensors(model)), saved, path)


class _SkipInitialization(TorchFunctionMode):
    """Skip random initialization, which would import the compiler of PyTorch on the device `meta`."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        options = options or {}
        name = getattr(function, "__name__", "")
        tensor = next(iter((*arguments, *options.values())), None)
        initializes = name in _RANDOM or (
            name.endswith("_") and getattr(function, "__module__", "") == nn.init.__name__
        )
        if initializes and isinstance(tensor, Tensor) and tensor.is_meta:
            return tensor
        return function(*arguments, **options)


@contextmanager
def _limit_parameters(limit: int, path: object) -> Iterator[None]:
    """Raise ModelError as soon as this thread has created more parameters than this."""
    thread, count = threading.get_ident(), 0

    def add(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal count
        del module, name, parameter
        count += threading.get_ident() == thread
        if count > limit:
            raise ModelError(
                f"The model of config.yaml has more than {limit:,} parameter tensors, many more than {path}. The "
                "folder may contain files of different runs."
            )

    handle = register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        handle.remove()
