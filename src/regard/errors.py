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
import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
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


_SIMILAR, _SIMILAR_IF_SHORT, _SHORTEST_PREFIX = 0.75, 0.66, 3
"""The ratio of `difflib` above which two names are similar: high enough to reject unrelated words, lower for words of
up to three letters, which may differ in one; and the shortest prefix of a name that identifies it.
"""


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name that `word` is a misspelling or a prefix of, if any."""
    known = list(names)
    alike = get_close_matches(word, known, n=1, cutoff=_SIMILAR if len(word) > 3 else _SIMILAR_IF_SHORT)
    longer = [name for name in known if len(word) >= _SHORTEST_PREFIX and name.startswith(word)]
    return next(iter(alike + longer), None)


def describe_disk_failure(error: OSError, place: object) -> tuple[str, str]:
    """The problem and the remedy. An I/O error is not a full disk, and may occur while reading."""
    if error.errno == errno.EIO:
        return f"{error.filename or place} could not be read or written: {error.strerror}", "check the disk"
    return f"{place} could not be written: {error.strerror}", "free some space"


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """` Did you mean 'additive'?`, or nothing if no name is spelled alike."""
    found = nearest(word, names)
    return f" Did you mean '{found}'?" if found else ""


def quantity(number: int, noun: str) -> str:
    """`1 line`, `1,234 lines`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short_path(path: str | Path) -> str:
    """A path for messages: relative if it is below the current folder."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith(os.pardir) else relative
