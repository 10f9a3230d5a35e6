"""Everything that regard raises on purpose, and the exit code of each at the command line.

    RegardError
    ├── ConfigError        2   a setting is unknown, of the wrong type, or out of range; also a ValueError
    ├── ArgumentTypeError  2   an argument has the wrong type; also a TypeError
    ├── DataError          3   a corpus or an input cannot be used as it is
    ├── ModelError         4   a model folder is damaged, incomplete or from elsewhere
    ├── DivergedError      5   the loss or a gradient is no longer a number
    ├── RunInUseError      6   another process trains in the same folder
    ├── ResourceError      7   out of disk space or memory
    └── Interrupted       75   stopped by a signal, state saved

Exit code 0 is success, 1 an answer that is "no" (a threshold missed), 2 also a usage error, 70 a bug.
A message is one paragraph: what happened, where (file, line, key), and how to mend it.
"""

import errno
from typing import ClassVar


class RegardError(Exception):
    """The root: `except regard.RegardError` catches all that regard raises on purpose."""

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


class Interrupted(RegardError):  # noqa: N818 - not an error: the state is saved
    exit_code = 75


_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}


def is_disk_failure(error: OSError) -> bool:
    """Whether it is the disk that gave out, and not a wrong path or a permission."""
    return error.errno in _DISK


def describe_disk_failure(error: OSError, place: object) -> tuple[str, str]:
    """The problem and the remedy. An I/O error is not a full disk, and may occur while reading."""
    if error.errno == errno.EIO:
        return f"{error.filename or place} could not be read or written: {error.strerror}", "check the disk"
    return f"{place} could not be written: {error.strerror}", "free some space"
