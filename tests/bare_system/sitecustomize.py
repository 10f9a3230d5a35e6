"""Take away what Windows does not have. A process with this folder on its path imports this module first.

The modules and names are missing for regard and filelock only: Python's own library and torch choose by the name of the
system, which remains. What functions of `os` do with files is restricted for everyone.
"""

import builtins
import io
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

MODULES = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
NAMES = {
    os: (
        "fork forkpty register_at_fork sched_getaffinity sched_setaffinity setpgrp setpgid setsid getpgid getpgrp "
        "killpg getuid geteuid getgid getegid sysconf uname mkfifo mknod statvfs pread pwrite posix_fadvise sendfile "
        "fchmod fchown fchdir getloadavg nice O_NOFOLLOW O_DIRECTORY O_NONBLOCK O_TMPFILE"
    ),
    signal: "SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGPIPE SIGALRM SIGQUIT SIGSTOP SIGCONT pthread_sigmask pthread_kill alarm",
    socket: "AF_UNIX TCP_USER_TIMEOUT SO_REUSEPORT",
    time: "clock_gettime CLOCK_BOOTTIME",
}

listdir, readlink, realpath = os.listdir, os.readlink, os.path.realpath
open_file, import_module = io.open, builtins.__import__
missing = {id(module): set(names.split()) for module, names in NAMES.items()}


def is_restricted(caller: Mapping[str, Any]) -> bool:
    return str(caller.get("__name__", "")).startswith(("regard", "filelock"))


class Restricted(ModuleType):
    def __getattribute__(self, name: str) -> Any:
        if name in missing.get(id(self), ()) and is_restricted(sys._getframe(1).f_globals):
            raise AttributeError(f"No attribute {name!r} on this system", name=name, obj=self)
        return super().__getattribute__(name)


def import_restricted(name: str, variables: Mapping[str, Any] | None = None, *args: Any, **options: Any) -> Any:
    if name in MODULES and is_restricted(variables or {}):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return import_module(name, variables, *args, **options)


def is_missing(path: Any) -> bool:
    return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(("/proc/", "/dev/fd", "/dev/std"))


def check_closed(path: Any) -> None:
    """Raise PermissionError if a file, or a file in a folder, is open or mapped: Windows does not move it then."""
    path = realpath(path)
    used = []
    for descriptor in listdir("/proc/self/fd"):
        try:
            used.append(readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            continue
    with open_file("/proc/self/maps", encoding="utf-8") as maps:
        used += [line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/" in line]
    if any(each == path or each.startswith(f"{path}/") for each in used):
        raise PermissionError(13, "The process cannot access the file because it is being used", path)


def restrict(name: str, *, moves: bool) -> None:
    """Make a function of `os` work with paths only and, if it moves or removes files, reject open ones."""
    function = getattr(os, name)

    def restricted(path: Any, *args: Any, **options: Any) -> Any:
        if any(options.get(key) is not None for key in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
            raise NotImplementedError("dir_fd unavailable on this platform")
        if isinstance(path, int) and name in {"listdir", "scandir"}:
            raise TypeError(f"{name}: path should be string, bytes, os.PathLike or None, not int")
        if is_missing(path):
            raise FileNotFoundError(2, os.strerror(2), path)
        if name == "open" and os.path.isdir(path):
            raise PermissionError(13, os.strerror(13), path)
        if moves:
            check_closed(path)
            if name in {"rename", "replace"}:
                check_closed(args[0])
        if name == "rename" and os.path.lexists(args[0]):
            raise FileExistsError(17, os.strerror(17), args[0])
        if name == "replace" and os.path.isdir(args[0]):
            raise PermissionError(13, os.strerror(13), args[0])
        return function(path, *args, **options)

    setattr(os, name, restricted)


def open_existing(file: Any, *args: Any, **options: Any) -> Any:
    if is_missing(file):
        raise FileNotFoundError(2, os.strerror(2), file)
    return open_file(file, *args, **options)


for module in NAMES:
    module.__class__ = Restricted
setattr(builtins, "__import__", import_restricted)  # noqa: B010 - its type is that of the original
sys.modules["triton"] = None  # type: ignore[assignment]  # it cannot be imported
for name in ("listdir", "scandir", "open", "stat", "lstat", "mkdir", "readlink"):
    restrict(name, moves=False)
for name in ("rename", "replace", "remove", "unlink", "rmdir"):
    restrict(name, moves=True)
for support in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
    support.clear()
builtins.open = io.open = open_existing
