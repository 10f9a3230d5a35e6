"""The interface of imports: models of other software, whose files are read and checked without torch."""

import io
import pickletools
import zipfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NoReturn, Self

from regard.data.tokens.tokenizers import TokenizerPair
from regard.errors import ModelError
from regard.formatting import quote
from regard.regular_files import open_regular, read_regular

if TYPE_CHECKING:
    from torch import Tensor

    from regard.export.foreign_weights import ForeignWeights


@dataclass(frozen=True)
class ForeignModel(ABC):
    """A model of other software, except for its weights. Nothing in its folder is run."""

    path: Path
    tokenizers: TokenizerPair
    settings: dict[str, Any]
    """The settings of the run, except those of the model."""
    weights: Path
    """The file of the weights: safetensors, or a pickle of tensors."""

    config: ClassVar[str]
    """The name of the file with the options of the model. A folder that contains it is read as a model of this kind."""
    weights_key: ClassVar[str | None] = None
    """The key of the weights in the file, if they are part of a larger mapping."""

    @classmethod
    @abstractmethod
    def read(cls, path: Path) -> Self:
        """Read a folder. Raise ModelError, with the name of the file, if a part is missing, damaged or unsupported."""

    @abstractmethod
    def convert(self, weights: "ForeignWeights") -> "tuple[dict[str, Any], dict[str, Tensor]]":
        """Return the settings of the model, and its weights with our names, and with dimensions and tokens in our
        order. Raise ModelError if the weights do not match the options.
        """


def reject(file: Path, key: str, value: object, supported: str) -> NoReturn:
    """Raise ModelError for an option that is not supported."""
    raise ModelError(f"{file}: {key} is {quote(value)}, which is not supported. Supported: {supported}.")


def read_file(path: Path) -> bytes:
    """Read a file of a model."""
    try:
        return read_regular(path)
    except FileNotFoundError:
        raise ModelError(f"{path} is missing. Copy all files of the model.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None


def check_pickle_file(path: Path, remedy: str) -> None:
    """Raise ModelError if a file of torch refers to anything but tensors."""
    try:
        with open_regular(path) as file:
            check_pickle(file)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, zipfile.BadZipFile, EOFError, IndexError, NotImplementedError, RuntimeError) as error:
        raise ModelError(f"{path} is rejected: {error}. {remedy}") from None


_HARMLESS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(f"torch {kind}Storage" for kind in ("Float", "Half", "BFloat16", "Double", "Long", "Int", "Byte", "Bool")),
}
"""What a pickle of tensors refers to."""

_OTHER_REFERENCES = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"}
"""Instructions that refer to Python objects and do not occur in a pickle of tensors."""

_LEGACY_PICKLES, _MAX_PICKLE = 5, 1 << 26


def check_pickle(file: BinaryIO) -> None:
    """Raise ValueError if a file of torch refers to anything but tensors. Nothing in it is run.

    torch.load(weights_only=True) makes the same check, but importing torch takes seconds.
    """
    if file.read(4) == b"PK\x03\x04":
        with zipfile.ZipFile(file) as archive:
            names = [info for info in archive.infolist() if info.filename.endswith("data.pkl")]
            if len(names) != 1 or names[0].file_size > _MAX_PICKLE:
                raise ValueError("it is not a file of torch")
            _check_instructions(io.BytesIO(archive.read(names[0])))
        return
    file.seek(0)
    for _ in range(_LEGACY_PICKLES):
        _check_instructions(file)


def _check_instructions(file: BinaryIO) -> None:
    for instruction, argument, _ in pickletools.genops(file):
        name = instruction.name
        if name in _OTHER_REFERENCES or (name == "GLOBAL" and argument not in _HARMLESS):
            raise ValueError(f"loading it could run code ({name} {quote(argument)})")
