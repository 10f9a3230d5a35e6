"""Open regular files. Files that a user names, and files in run folders of others, are opened here.

A FIFO blocks the process that opens it, and a device such as /dev/zero has no end.
"""

import errno
import io
import os
import stat
from pathlib import Path

from regard import operating_system


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a regular file for reading bytes. Raise OSError for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | operating_system.NONBLOCKING | operating_system.BINARY)
    except ValueError:
        raise OSError(errno.EINVAL, "its name contains an invalid character", str(path)) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, f"it is {describe_kind(mode)}, not a regular file", str(path))


def read_regular(path: str | Path) -> bytes:
    """Read a regular file. Raise OSError for anything else."""
    with open_regular(path) as file:
        return file.read()


def describe_kind(mode: int) -> str:
    """Describe a file that is neither a regular file nor a directory."""
    return "a FIFO" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
