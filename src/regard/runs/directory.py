"""Open directories whose files are written without following links. Requires a POSIX system.

A run folder may come from an untrusted source, and another folder may replace it during training. So files are
created, renamed and removed relative to a descriptor of the directory, and an existing file is never opened for
writing.
"""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, final

from regard.errors import ModelError
from regard.regular_files import describe_kind


@final
@dataclass(frozen=True)
class Directory:
    """An open directory. Its descriptor stays valid when the directory is moved. Names have no separators."""

    path: Path
    """The path at which it was opened, for messages."""
    descriptor: int
    check: Callable[[], object]
    """Called before every change; raises if the directory must not be written to any more."""

    def names(self) -> list[str]:
        return sorted(os.listdir(self.descriptor))

    def read(self, name: str) -> bytes:
        with open(self._open(name, os.O_RDONLY), "rb") as handle:
            return handle.read()

    def create(self, name: str) -> BinaryIO:
        """Open a new file for writing; an old one of the same name is removed."""
        self.remove(name)
        return open(self._open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")

    def write(self, name: str, content: bytes) -> None:
        """Write a draft, sync it and rename it, so that a reader finds either the old file or the new one."""
        draft = f".{name}"
        self.write_synced(draft, content)
        self.rename(draft, name)
        self.sync()

    def write_synced(self, name: str, content: bytes) -> None:
        with self.create(name) as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())

    def rename(self, old: str, new: str) -> None:
        self.check()
        os.replace(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with its contents; a name that does not exist is ignored."""
        self.check()
        try:
            kind = os.lstat(name, dir_fd=self.descriptor).st_mode
            if stat.S_ISDIR(kind):
                shutil.rmtree(name, dir_fd=self.descriptor)
            else:
                os.unlink(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return

    def sync(self) -> None:
        os.fsync(self.descriptor)

    @contextmanager
    def subdirectory(self, name: str) -> Iterator["Directory"]:
        """Open a directory in this one, which is created if it does not exist."""
        self.check()
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=self.descriptor)
        descriptor = self._open(name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield Directory(self.path / name, descriptor, self.check)
        finally:
            os.close(descriptor)

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o666, dir_fd=self.descriptor)


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
