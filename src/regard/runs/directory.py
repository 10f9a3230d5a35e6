"""Open directories whose files are written without following links, and the lock of a run folder.

A run folder may come from an untrusted source, and another folder may replace it during training. So files are
created, renamed and removed in an `OpenDirectory`, and an existing file is never opened for writing. Only one
process trains in a run folder, and it writes only while the folder is at its path.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, final

from regard.errors import ConfigError, ModelError, RunInUseError
from regard.operating_system import NONBLOCKING, OpenDirectory, describe_stop, try_lock
from regard.regular_files import describe_kind


@final
@dataclass(frozen=True)
class Directory:
    """An open directory, whose files are replaced in one step. Names have no separators."""

    opened: OpenDirectory
    check: Callable[[], object]
    """Called before every change; raises if the directory must not be written to any more."""

    @property
    def path(self) -> Path:
        """The path at which it was opened, for messages."""
        return self.opened.path

    def names(self) -> list[str]:
        return self.opened.names()

    def read(self, name: str) -> bytes:
        with open(self.opened.open(name, os.O_RDONLY), "rb") as handle:
            return handle.read()

    def create(self, name: str) -> BinaryIO:
        """Open a new file for writing; an old one of the same name is removed."""
        self.remove(name)
        return open(self.opened.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")

    def write(self, name: str, content: bytes) -> None:
        """Write a draft, sync it and rename it, so that a reader finds either the old file or the new one."""
        draft = f".{name}"
        self.write_synced(draft, content)
        self.rename(draft, name)
        self.sync()

    def write_log(self, name: str, lines: Iterable[bytes]) -> BinaryIO:
        """Write the first lines of a file, as `write` does, and return it. It remains open for more lines."""
        draft = f".{name}"
        log = self.create(draft)
        log.writelines(lines)
        log.flush()
        if self.opened.renames_open_files:
            self.rename(draft, name)
            return log
        log.close()
        self.rename(draft, name)
        return open(self.opened.open(name, os.O_WRONLY | os.O_APPEND), "ab")

    def write_synced(self, name: str, content: bytes) -> None:
        with self.create(name) as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())

    def rename(self, old: str, new: str) -> None:
        self.check()
        self.opened.rename(old, new)

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with its contents; a name that does not exist is ignored."""
        self.check()
        with suppress(FileNotFoundError):
            self.opened.remove(name)

    def sync(self) -> None:
        self.opened.sync()

    @contextmanager
    def subdirectory(self, name: str) -> Iterator["Directory"]:
        """Open a directory in this one, which is created if it does not exist."""
        self.check()
        with suppress(FileExistsError):
            self.opened.make_directory(name)
        with closing(OpenDirectory(self.path / name, self.opened)) as opened:
            yield Directory(opened, self.check)


def reject_links(path: Path) -> None:
    """Raise ModelError if a folder contains anything but regular files and directories.

    A directory that cannot be listed is skipped: reading what is in it fails with its own message.
    """
    try:
        entries = list(os.scandir(path))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            reject_links(Path(entry.path))
        elif not entry.is_file(follow_symlinks=False):
            raise ModelError(
                f"{entry.path} is {_kind(entry)}. A run folder may contain only regular files and directories, since "
                "anything else can lead to files outside it. Remove it, or replace it with a copy of what it points to."
            )


def _kind(entry: "os.DirEntry[str]") -> str:
    if entry.is_symlink():
        return "a symbolic link"
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return "a special file"
    return describe_kind(mode)


LOCK = ".lock"


@final
class LockedFolder:
    """A run folder that is locked by this process."""

    def __init__(self, opened: OpenDirectory, lock: int) -> None:
        self.path = opened.path
        self.directory = Directory(opened, self.check)
        self._folder, self._lock = opened.status(), os.fstat(lock)

    def check(self) -> None:
        """Raise RunInUseError unless the path still leads to this folder, with its lock in it."""
        if self._is_at(self.path):
            return
        if self.directory.opened.is_removed():
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
        moved = self.directory.opened.find_path()
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
    with closing(OpenDirectory(path)) as opened:
        lock = opened.open(LOCK, os.O_RDWR | os.O_CREAT | NONBLOCKING)
        try:
            _acquire(path, lock)
            yield LockedFolder(opened, lock)
        finally:
            os.close(lock)


def _acquire(path: Path, lock: int) -> None:
    status = os.fstat(lock)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise ModelError(
            f"{path / LOCK} is a link or a special file, and writing to it could change a file elsewhere. Remove it."
        )
    if not try_lock(lock):
        os.lseek(lock, 1, os.SEEK_SET)  # Windows locks the first byte against reading
        content = os.read(lock, 32).decode("ascii", "replace").strip()
        holder = content if content.isdigit() else "unknown"
        raise RunInUseError(
            f"{path} is in use: process {holder} is training there. Wait for it, stop it with "
            f"{describe_stop(holder)} (it saves its state), or choose another folder with --out (out=… in Python)."
        )
    os.ftruncate(lock, 0)
    os.write(lock, f" {os.getpid()}".encode())
