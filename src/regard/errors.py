"""The exceptions of regard, and the exit code of each on the command line.

    RegardError
    ├── ConfigError        2   a setting is unknown, of the wrong type, or out of range; also a ValueError
    ├── ArgumentTypeError  2   an argument has the wrong type; also a TypeError
    ├── DataError          3   a corpus or an input is invalid
    ├── ModelError         4   a model folder is damaged, incomplete or incompatible
    ├── DivergedError      5   the loss or a gradient is NaN or infinite
    ├── RunInUseError      6   another process writes to the same folder, or the folder was moved during training
    ├── ResourceError      7   out of disk space or memory, or a server cannot be reached
    ├── RankError          8   another process of the same training has ended or does not respond
    └── Interrupted       75   a signal stopped `train`, `sweep` or `predict --input`; finished work is saved

Exit code 0 is success, 1 a missed threshold or problems in the data, 2 also a usage error, 70 a bug, 130 an
interrupted command other than `train`, or a second SIGINT during training, 143 a second SIGTERM.
A message is one paragraph: what is wrong, where (file, line, key), and what to do.
"""

import errno
import mmap
from collections.abc import Collection
from pathlib import Path
from typing import ClassVar

from regard.formatting import did_you_mean


class RegardError(Exception):
    """Base class: `except regard.RegardError` catches every exception that regard raises on purpose."""

    exit_code: ClassVar[int] = 70


class ConfigError(RegardError, ValueError):
    exit_code = 2


class ArgumentTypeError(RegardError, TypeError):
    exit_code = 2


class DataError(RegardError):
    exit_code = 3


class ModelError(RegardError):
    exit_code = 4


class DivergedError(RegardError):
    exit_code = 5


class RunInUseError(RegardError):
    exit_code = 6


class ResourceError(RegardError):
    exit_code = 7


class RankError(RegardError):
    exit_code = 8


class Interrupted(RegardError):  # noqa: N818 - not an error: nothing is lost
    exit_code = 75


_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}


def is_disk_failure(error: OSError) -> bool:
    """Whether the disk failed or is full, as opposed to a wrong path or a missing permission."""
    return error.errno in _DISK


_MEMORY = (
    "out of memory",
    "allocate memory",
    "not enough memory",
    "failed to map segment",
    "can't start new thread",
    "threadpoolbuilderror",
)
"""Phrases in the exceptions of libraries if memory runs out. Their types differ: ImportError, RuntimeError, a panic."""

_PROBE_BYTES = 1 << 26


def is_memory_failure(error: BaseException) -> bool:
    """Whether the process has run out of memory: an exception reports it, or 64 MiB cannot be allocated.

    The allocation is tried because native libraries can fail with an unrelated error when memory runs out.
    """
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, MemoryError) or any(phrase in str(chain).lower() for phrase in _MEMORY):
            return True
        chain = chain.__cause__ or chain.__context__
    try:
        mmap.mmap(-1, _PROBE_BYTES).close()
    except OSError:
        return True
    return False


def describe_disk_failure(error: OSError, path: object) -> tuple[str, str]:
    """Return the problem and the remedy. An I/O error is not a full disk, and may occur while reading."""
    if error.errno == errno.EIO:
        return f"{error.filename or path} could not be read or written: {error.strerror}", "check the disk"
    remedy = "make the disk writable" if error.errno == errno.EROFS else "free some space"
    return f"{path} could not be written: {error.strerror}", remedy


def is_iterable(value: object) -> bool:
    """Whether a value can be iterated over. A zero-dimensional tensor has `__iter__`, but it raises TypeError."""
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def check_path(path: object, name: str = "path") -> Path:
    """Return the path of a file. Raise ArgumentTypeError for anything else."""
    if not isinstance(path, str | Path):
        raise ArgumentTypeError(f"{name} must be the path of a file, not {type(path).__name__}.")
    return Path(path)


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise an error unless an argument is one of several names."""
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not '{value}'.{did_you_mean(value, choices)}")


def check_output_folder(path: Path, option: str = "") -> None:
    """Raise ConfigError if the folder of a file to be written does not exist. `option` precedes the path."""
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}. Create it first.".lstrip())
