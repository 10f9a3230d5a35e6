"""The cache: what was once worked out from a corpus, under a hash of all that made it.

It lies in $REGARD_CACHE, or in `regard` under $XDG_CACHE_HOME (~/.cache), and may be removed at any time.
"""

import atexit
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard.errors import ResourceError, is_disk_failure

log = logging.getLogger(__name__)

_MANIFEST = "manifest.json"
"""The SHA-256 of each file, written last: a folder without it, or with other files, is no entry."""


def cache_folder() -> Path:
    given = os.environ.get("REGARD_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"


def cache_key(*parts: Any) -> str:
    """A hash of JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, allow_nan=False).encode()).hexdigest()[:32]


def cached(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """The folder that `build` filled when it was last called for the same key, or fills now.

    Of several processes that want the same at once, one works and the others wait for it.
    """
    place = cache_folder() / kind / key
    draft = place.with_name(f".{key}")
    while not _is_whole(place):
        try:
            draft.mkdir(parents=True, exist_ok=True)
            handle = os.open(draft, os.O_RDONLY)
        except OSError as error:
            log.warning("%s cannot be written (%s): the corpus is tokenized for this run alone.", place, error.strerror)
            return _without_cache(build)
        with _locked(handle, draft) as ours:
            if ours:
                _fill(draft, place, build)
    return place


def _without_cache(build: Callable[[Path], None]) -> Path:
    draft = Path(tempfile.mkdtemp(prefix="regard."))
    atexit.register(shutil.rmtree, draft, ignore_errors=True)
    build(draft)
    return draft


def _fill(draft: Path, place: Path, build: Callable[[Path], None]) -> None:
    """The draft comes to its place when it is whole, and goes if it never is."""
    try:
        if _is_whole(place):  # by now, another process having been quicker
            return
        _clear_remains(draft)
        build(draft)
        (draft / _MANIFEST).write_text(json.dumps(_hashes(draft), allow_nan=False), "utf-8")
        shutil.rmtree(place, ignore_errors=True)
        draft.rename(place)
    except OSError as error:
        if not is_disk_failure(error):
            raise
        raise ResourceError(
            f"The cache {place.parent} could not be written: {error.strerror}. Free some space, or name a folder that "
            "has some in the variable REGARD_CACHE."
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _locked(handle: int, draft: Path) -> Iterator[bool]:
    """Whether the draft is ours to fill, and not gone to its place while we waited for the process that filled it.

    The lock is on the folder itself: it goes with the process, however that ends.
    """
    try:
        if not _lock_at_once(handle):
            log.warning("Another process tokenizes the same corpus; it is waited for.")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield draft.exists() and os.path.samestat(os.fstat(handle), draft.stat())
    finally:
        os.close(handle)


def _lock_at_once(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _clear_remains(own: Path) -> None:
    """Remove what killed processes were in the middle of writing: in our draft, and drafts that nobody fills."""
    for entry in own.iterdir():
        entry.unlink()
    for draft in own.parent.glob(".*"):
        try:
            handle = os.open(draft, os.O_RDONLY)
        except FileNotFoundError:  # it has come to its place meanwhile
            continue
        try:
            if _lock_at_once(handle):  # our own draft, being locked, is passed over too
                shutil.rmtree(draft, ignore_errors=True)
        finally:
            os.close(handle)


def _is_whole(place: Path) -> bool:
    try:
        listed = json.loads((place / _MANIFEST).read_text("utf-8"))
        return bool(listed == _hashes(place))
    except (OSError, ValueError):
        return False


def _hashes(place: Path) -> dict[str, str]:
    return {entry.name: sha256(entry) for entry in sorted(place.iterdir()) if entry.name != _MANIFEST}


def sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
