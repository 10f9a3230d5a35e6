"""Compare the sizes in the settings of a model with the shapes of its weights, before memory is allocated."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from regard.data.tokens.tokenizers import TokenizerPair
from regard.errors import ModelError
from regard.models.seq2seq import build_model
from regard.runs.settings import RunSettings
from regard.runs.stored_checkpoint import WEIGHTS, Checkpoint
from regard.runs.tensors import check_shapes, collect_tensors, get_shapes

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
