"""The weights of a model of other software: read without running anything, and taken tensor by tensor."""

from collections.abc import Mapping
from pathlib import Path
from typing import final

import torch
from safetensors import SafetensorError
from safetensors.torch import load as deserialize
from torch import Tensor

from regard.errors import ModelError
from regard.regular_files import open_regular, read_regular


@final
class ForeignWeights:
    """The tensors of a file by name. It tracks which ones are taken: the converted model would lack the others."""

    def __init__(self, path: Path, tensors: Mapping[str, Tensor], config: str) -> None:
        self.path, self.config = path, config
        self._tensors, self._taken = tensors, set[str]()

    @classmethod
    def read(cls, path: Path, config: str, key: str | None = None) -> "ForeignWeights":
        """Read the tensors, which are the value of `key` if it is given. `config` is the file that describes them."""
        try:
            if path.suffix == ".safetensors":
                content = deserialize(read_regular(path))
            else:
                with open_regular(path) as file:
                    content = torch.load(file, map_location="cpu", weights_only=True)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}.") from None
        except SafetensorError as error:
            raise ModelError(f"{path} is damaged: {error}. Copy it again.") from None
        except Exception as error:  # torch raises errors of many types
            raise ModelError(f"{path} is damaged: {str(error).splitlines()[0]}. Copy it again.") from None
        tensors = content.get(key) if key is not None and isinstance(content, dict) else content
        if not isinstance(tensors, dict) or not all(
            isinstance(name, str) and isinstance(tensor, Tensor) and tensor.is_floating_point()
            for name, tensor in tensors.items()
        ):
            raise ModelError(f"{path} does not contain the weights of a model, by name. Copy it again.")
        return cls(path, tensors, config)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def ignore(self, *names: str) -> None:
        """Do not report these tensors if they are never taken."""
        self._taken.update(names)

    def take(self, *names: str, shape: tuple[int, ...]) -> Tensor:
        """Return the tensor with the first of these names that exists: the others are names of the same tensor."""
        name = next((name for name in names if name in self._tensors), None)
        if name is None:
            raise ModelError(f"{self.path} has no tensor {names[0]}, which {self.config} requires.")
        found = tuple(self._tensors[name].shape)
        if found != shape:
            raise ModelError(
                f"{self.path}: the tensor {name} has the shape {found}, but {self.config} requires {shape}."
            )
        self._taken.update(names)
        return self._tensors[name].float()

    def check_all_taken(self) -> None:
        """Raise ModelError if there are tensors that were never taken."""
        unknown = sorted(self._tensors.keys() - self._taken)
        if unknown:
            raise ModelError(
                f"{self.path} has tensors that a model with the options in {self.config} does not have, so the "
                "imported model would compute something else: "
                f"{', '.join(unknown[:5])}{' …' if len(unknown) > 5 else ''}."
            )
