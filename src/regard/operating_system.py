"""Functions that not every operating system has, and their replacements.

Other modules do not check the operating system, and use only what Linux, macOS and Windows have in common; tests
check it. A function looks for the feature that it needs, rather than for the name of the system. `docs/platforms.md`
describes the differences for users.
"""

import errno
import logging
import os
import shutil
import signal
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

if TYPE_CHECKING:
    import socket

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

NONBLOCKING: Final = getattr(os, "O_NONBLOCK", 0)
"""The flag that opens a FIFO without waiting for a writer. It has no effect on a regular file."""
BINARY: Final = getattr(os, "O_BINARY", 0)
_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_HAS_DIRECTORY_DESCRIPTORS: Final = os.open in os.supports_dir_fd

RELOAD_SIGNAL: Final[signal.Signals | None] = getattr(signal, "SIGHUP", None)
"""The signal that makes a server load its models again."""
STOP_SIGNALS: Final[tuple[signal.Signals, ...]] = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)
)
"""Ctrl-C, `kill` and, on Windows, Ctrl-Break."""

HAS_SIGNAL_MASKS: Final = hasattr(signal, "pthread_sigmask")
"""Whether signals can be blocked in the workers of a server, so that only their supervisor handles them."""

_USER_TIMEOUT: Final = 30_000
"""After how many milliseconds the kernel closes a connection whose client does not read its response."""


def usable_cores() -> int:
    """Return the number of CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # macOS and Windows do not restrict a process to some of the cores
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def process_age() -> float:
    """Return the seconds since this process was started; on systems other than Linux its CPU time, which is less."""
    if sys.platform == "linux":
        with suppress(OSError, ValueError, IndexError, AttributeError):  # /proc may not be mounted
            fields = Path("/proc/self/stat").read_bytes().decode().rpartition(")")[2].split()
            return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.process_time()


def return_free_memory() -> None:
    """Return the memory of objects that are not used any more to the system. The allocator of glibc would keep most of
    the weights of a model that was replaced.
    """
    import ctypes
    import gc

    gc.collect()
    with suppress(OSError, AttributeError, TypeError):  # another library; Windows has no CDLL(None)
        ctypes.CDLL(None).malloc_trim(0)


def call_in_forks(function: Callable[[], object]) -> None:
    """Call a function in each process that is forked from this one."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def ignore_terminal() -> None:
    """From now on, Ctrl-C in a terminal reaches the parent of this process, but not this process."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def own_session() -> dict[str, Any]:
    """Return arguments of `subprocess.Popen`, so that Ctrl-C in a terminal does not reach the process."""
    if sys.platform == "win32":
        import subprocess

        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def describe_stop(process: str) -> str:
    """Describe how another process is stopped so that it saves its state."""
    return "Ctrl-C" if sys.platform == "win32" else f"`kill {process}`"


@contextmanager
def blocked_signals(*numbers: signal.Signals) -> Iterator[None]:
    """Block signals, also in the processes that are started within the block. Requires `HAS_SIGNAL_MASKS`."""
    if sys.platform == "win32":
        raise NotImplementedError
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def try_lock(descriptor: int) -> bool:
    """Lock an open file. Return False if another process has locked it. The lock is released when this process ends."""
    from filelock import lock_descriptor

    try:
        return lock_descriptor(descriptor, blocking=False)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        log.warning("This system cannot lock files. Do not train in the same run folder with two processes.")
        return True


@contextmanager
def shared_lock(descriptor: int) -> Iterator[None]:
    """Lock a file that the workers of a server share. Where a server has no workers, there is nothing to lock."""
    if fcntl is None or sys.platform == "win32":
        yield
        return
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN)


@final
class OpenDirectory:
    """A directory whose entries are created, renamed and removed without following links.

    Its entries are found through a descriptor, which stays valid if the directory is moved or replaced. Windows has
    none: there, they are found through the path of the directory, which cannot be moved while a file in it is open.

    Args:
        path: The path of the directory; with a parent, its name is the last part.
        parent: The directory that contains it, so that no link to it is followed.
    """

    def __init__(self, path: Path, parent: "OpenDirectory | None" = None) -> None:
        self.path = path
        self._descriptor: int | None = None
        if _HAS_DIRECTORY_DESCRIPTORS:
            flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
            self._descriptor = os.open(path, flags) if parent is None else parent.open(path.name, flags)
        elif not stat.S_ISDIR(os.stat(path).st_mode if parent is None else os.lstat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    @property
    def renames_open_files(self) -> bool:
        return self._descriptor is not None

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path if self._descriptor is None else self._descriptor))

    def open(self, name: str, flags: int) -> int:
        """Open a file and return its descriptor. Raise OSError if it is a link."""
        if not _NO_FOLLOW and os.path.islink(self.path / name):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self.path / name))
        return os.open(self._locate(name), flags | _NO_FOLLOW | BINARY, 0o666, dir_fd=self._descriptor)

    def make_directory(self, name: str) -> None:
        os.mkdir(self._locate(name), dir_fd=self._descriptor)

    def rename(self, old: str, new: str) -> None:
        directory = self._descriptor
        os.replace(self._locate(old), self._locate(new), src_dir_fd=directory, dst_dir_fd=directory)

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with its contents. Raise FileNotFoundError if there is none."""
        if stat.S_ISDIR(os.lstat(self._locate(name), dir_fd=self._descriptor).st_mode):
            shutil.rmtree(self._locate(name), dir_fd=self._descriptor)
        else:
            os.unlink(self._locate(name), dir_fd=self._descriptor)

    def sync(self) -> None:
        """Write the names of its entries to the disk. Windows does so by itself."""
        if self._descriptor is not None:
            os.fsync(self._descriptor)

    def status(self) -> os.stat_result:
        return os.stat(self.path if self._descriptor is None else self._descriptor)

    def is_removed(self) -> bool:
        return not (self.path.exists() if self._descriptor is None else self.status().st_nlink)

    def find_path(self) -> Path | None:
        """Return its current path, if the system provides it."""
        if sys.platform == "win32" or self._descriptor is None:
            return None
        with suppress(OSError):
            if sys.platform == "darwin":
                return Path(os.fsdecode(fcntl.fcntl(self._descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")))
            return Path(os.readlink(f"/proc/self/fd/{self._descriptor}"))
        return None

    def _locate(self, name: str) -> str | Path:
        return self.path / name if self._descriptor is None else name


def prepare_listener(listener: "socket.socket") -> None:
    """Allow a server to listen on a port whose last connections were closed recently, and close the connections of
    clients that do not read.
    """
    import socket

    if sys.platform != "win32":  # there, the option would allow two servers on one port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT)


def ignore_attempts_to_connect(listener: "socket.socket") -> None:
    """Drop the first packet of each handshake. Other packets are processed, so that handshakes end.

    The client sends the packet again after a second. If the socket has been closed meanwhile, it is refused. On systems
    other than Linux, a connection that the kernel accepts while the socket is closed is reset.
    """
    if sys.platform != "linux":
        return
    import ctypes
    import socket

    # Berkeley packet filter: drop the packet if, of the flags SYN and ACK (byte 13 of the TCP header), only SYN is set.
    program = (
        (0x30, 0, 0, 13),  # load byte 13
        (0x54, 0, 0, 0x12),  # and with ACK | SYN
        (0x15, 0, 1, 0x02),  # if it is not SYN, skip one instruction
        (0x06, 0, 0, 0),  # drop
        (0x06, 0, 0, 0xFFFFFFFF),  # accept
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    so_attach_filter = 26
    with suppress(OSError):  # a sandbox may not support it
        listener.setsockopt(
            socket.SOL_SOCKET, so_attach_filter, struct.pack("HP", len(program), ctypes.addressof(code))
        )


def use_utf8() -> None:
    """Write UTF-8 on Windows, where redirected output has a legacy code page that lacks most scripts."""
    if sys.platform == "win32":
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # it is a TextIOWrapper


def is_broken_pipe(error: OSError) -> bool:
    """Whether the reader of the output has exited, as `head` does. Windows reports this as an invalid argument."""
    if isinstance(error, BrokenPipeError):
        return True
    return sys.platform == "win32" and error.errno == errno.EINVAL and error.filename is None
