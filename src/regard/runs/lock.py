"""The lock of a run folder: only one process trains in it, and it writes only while the folder is at its path."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from regard.errors import ConfigError, ModelError, RunInUseError
from regard.runs.directory import Directory, reject_links

LOCK = ".lock"


@final
class LockedFolder:
    """A run folder that is locked by this process."""

    def __init__(self, path: Path, descriptor: int, lock: int) -> None:
        self.path = path
        self.directory = Directory(path, descriptor, self.check)
        self._folder, self._lock = os.fstat(descriptor), os.fstat(lock)

    def check(self) -> None:
        """Raise RunInUseError unless the path still leads to this folder, with its lock in it."""
        if self._is_at(self.path):
            return
        if os.fstat(self.directory.descriptor).st_nlink == 0:
            raise RunInUseError(
                f"{self.path} and its checkpoints were removed during training. To start from scratch, run the same "
                "command."
            )
        raise RunInUseError(
            f"{self.path} or the {LOCK} in it was moved, removed or replaced during training. Nothing was "
            "written to the folder that is there now. If the folder was moved, run `regard train` with its new path."
        )

    def follow(self) -> Path | None:
        """If the folder was moved, use its new path from now on and return it; None if it was not moved."""
        if self._is_at(self.path):
            return None
        moved = _current_path(self.directory.descriptor)
        if moved is not None and self._is_at(moved):
            self.path = moved
        self.check()
        return moved

    def _is_at(self, path: Path) -> bool:
        try:
            here, lock = os.stat(path), os.lstat(path / LOCK)
        except OSError:
            return False
        return os.path.samestat(here, self._folder) and os.path.samestat(lock, self._lock)


@contextmanager
def lock_folder(path: Path) -> Iterator[LockedFolder]:
    """Lock a folder for training by this process; create it if it does not exist.

    The lock is released when the process ends, however it ends.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(
            f"{path} cannot be a run folder: it, or a parent of it, is a file. Choose another path."
        ) from None
    reject_links(path)
    if path.resolve() != path.absolute():  # a link in the path may be changed later
        path = path.resolve()
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=descriptor)
        try:
            _acquire(path, lock)
            yield LockedFolder(path, descriptor, lock)
        finally:
            os.close(lock)
    finally:
        os.close(descriptor)


def _acquire(path: Path, lock: int) -> None:
    from filelock import lock_descriptor

    status = os.fstat(lock)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise ModelError(
            f"{path / LOCK} is a link or a special file, and writing to it could change a file elsewhere. Remove it."
        )
    if not lock_descriptor(lock, blocking=False):
        content = os.read(lock, 32).decode("ascii", "replace").strip()
        holder = content if content.isdigit() else "unknown"
        raise RunInUseError(
            f"{path} is in use: process {holder} is training there. Wait for it, stop it with `kill {holder}` (it "
            "saves its state), or choose another folder with --out (out=… in Python)."
        )
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())


def _current_path(descriptor: int) -> Path | None:
    """Return the path of an open directory, if the system provides it."""
    try:
        if sys.platform == "darwin":
            import fcntl

            return Path(os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")))
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    except OSError:
        return None
