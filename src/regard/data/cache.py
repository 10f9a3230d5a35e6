"""The cache of tokenizers, tokenized corpora, features of images, and downloaded files.

The key of an entry is a hash of everything it was computed from.

The cache is in $REGARD_CACHE, or in `regard` under $XDG_CACHE_HOME (~/.cache). It can be deleted at any time.
"""

import atexit
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import ResourceError, is_disk_failure
from regard.regular_files import open_regular, read_regular

if TYPE_CHECKING:
    from filelock import BaseFileLock

log = logging.getLogger(__name__)

_MANIFEST = "manifest.json"
"""The SHA-256 of each file, written last. A folder is a valid entry only if its files match the manifest."""


def cache_folder() -> Path:
    folder = os.environ.get("REGARD_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"


def cache_key(*parts: Any) -> str:
    """Return a hash of JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, allow_nan=False).encode()).hexdigest()[:32]


def get_or_build(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """Return the folder of a cache entry. If there is none, `build` is called with an empty folder to fill.

    If several processes request the same entry, one builds it and the others wait.
    """
    entry = cache_folder() / kind / key
    if _is_complete(entry):
        return entry
    draft = entry.with_name(f".{key}")
    try:
        draft.parent.mkdir(parents=True, exist_ok=True)
        lock = _acquire(draft)
    except OSError as error:
        log.warning("%s is not writable (%s): the data is prepared for this run only.", entry, error.strerror)
        return build_without_cache(build)
    with lock:
        if not _is_complete(entry):  # another process may have built it in the meantime
            _fill(draft, entry, build)
    return entry


def build_without_cache(build: Callable[[Path], None]) -> Path:
    """Build an entry in a temporary folder, which is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="regard."))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    build(folder)
    return folder


def _fill(draft: Path, entry: Path, build: Callable[[Path], None]) -> None:
    """Build an entry in a draft folder, which is renamed when it is complete, and removed on failure."""
    try:
        _remove_abandoned_drafts(draft)
        draft.mkdir()
        build(draft)
        (draft / _MANIFEST).write_text(json.dumps(_hash_files(draft), allow_nan=False), "utf-8")
        shutil.rmtree(entry, ignore_errors=True)
        draft.rename(entry)
    except OSError as error:
        if not is_disk_failure(error):
            raise
        raise ResourceError(
            f"The cache {entry.parent} could not be written: {error.strerror}. Free some space, or set the environment "
            "variable REGARD_CACHE to a folder on another disk."
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _lock(draft: Path) -> "BaseFileLock":
    """Return the lock of a draft. The operating system releases it when the process ends, however it ends."""
    from filelock import FileLock

    folder = draft.parent.parent / "locks"
    folder.mkdir(exist_ok=True)
    return FileLock(folder / f"{draft.parent.name}{draft.name}.lock")


def _acquire(draft: Path) -> AbstractContextManager["BaseFileLock"]:
    """Acquire the lock of a draft; wait if another process holds it."""
    from filelock import Timeout

    lock = _lock(draft)
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        log.warning("Another process is preparing the same data. Waiting for it to finish.")
        return lock.acquire()


def _remove_abandoned_drafts(locked: Path) -> None:
    """Remove drafts that killed processes left behind: the one that this process has locked, and unlocked ones."""
    from filelock import Timeout

    shutil.rmtree(locked, ignore_errors=True)
    for draft in locked.parent.glob(".*"):
        try:
            with _lock(draft).acquire(timeout=0):
                shutil.rmtree(draft, ignore_errors=True)
        except Timeout:
            continue


def _is_complete(entry: Path) -> bool:
    try:
        manifest = json.loads(read_regular(entry / _MANIFEST))
        return bool(manifest == _hash_files(entry))
    except (OSError, ValueError):
        return False


def _hash_files(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.name != _MANIFEST}


def sha256(path: Path) -> str:
    with open_regular(path) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
