"""The torch module of a loaded model: its device, dtype and mode."""

from collections.abc import Iterator
from typing import Self

import torch

from regard.arguments import check_device, check_dtype, check_flag
from regard.decoding.predictor import Predictor
from regard.models.seq2seq import Seq2Seq


class LoadedNetwork:
    """The torch module of a loaded model, with its tokenizers."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor

    @property
    def network(self) -> Seq2Seq:
        """The torch module, for use in PyTorch code: to inspect or change weights, register hooks, record attention.

        >>> sum(parameter.numel() for parameter in model.network.parameters())
        """
        return self.predictor.model

    def named_modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """Yield the modules of `network` with their names, so that `regard.record(model)` works.

        >>> with regard.record(model) as recording:
        ...     model.predict("3 mai 2009")
        """
        yield from self.network.named_modules()

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.predictor.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.predictor.dtype

    def to(self, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None) -> Self:
        """Move the model to a device, convert it to a floating-point dtype, or both, like `torch.nn.Module.to`.

        Args:
            device: "cpu", "cuda", "cuda:1" or a `torch.device`. By default, unchanged.
            dtype: "float32", "float64", "bfloat16", "float16" or a `torch.dtype`. By default, unchanged.

        Returns:
            The model itself.

        Raises:
            ConfigError: The device or the dtype is not supported.
            ArgumentTypeError: An argument has the wrong type.

        >>> model.to("cpu").to(dtype="float64").predict("3 mai 2009")
        """
        place = None if device is None else check_device(device)
        kind = None if dtype is None else check_dtype(dtype)
        self.network.to(device=place, dtype=kind)
        return self

    def train(self, mode: bool = True) -> Self:
        """Set `network` to training mode, in which dropout is active, or to evaluation mode. Return the model itself.

        This matters for code that calls `network`. The methods of this class compute in evaluation mode in any case. To
        train a model, use `regard.train`.

        >>> model.train().network.training
        """
        self.network.train(check_flag("mode", mode))
        return self

    def eval(self) -> Self:
        """Set `network` to evaluation mode, which a loaded model has already. Return the model itself.

        >>> model.eval().network.training
        """
        return self.train(mode=False)
