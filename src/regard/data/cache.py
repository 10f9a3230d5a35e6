"""The cache: what was once worked out from a corpus, under a hash of all that made it.

It lies in $REGARD_CACHE, or in `regard` under $XDG_CACHE_HOME (~/.cache), and may be removed at any time.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

_SIZES = "sizes.json"
"""Written last: a folder without it, or with files of other sizes, is no entry."""


def cache_folder() -> Path:
    given = os.environ.get("REGARD_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"


def key_of(*parts: Any) -> str:
    """A hash of JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def remember(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """The folder that `build` filled when it was last called for the same key, or fills now."""
    place = cache_folder() / kind / key
    if _is_whole(place):
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=place.parent))
    except OSError as error:
        draft = Path(tempfile.mkdtemp(prefix="regard."))
        log.warning("%s cannot be written (%s): the corpus is tokenised for this run alone.", place, error.strerror)
        build(draft)
        return draft
    try:
        build(draft)
        (draft / _SIZES).write_text(json.dumps(_sizes(draft)), "utf-8")
        shutil.rmtree(place, ignore_errors=True)
        draft.rename(place)
    except OSError:
        if not _is_whole(place):  # otherwise another process was as quick
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place


def _is_whole(place: Path) -> bool:
    try:
        listed = json.loads((place / _SIZES).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return bool(listed == _sizes(place))


def _sizes(place: Path) -> dict[str, int]:
    return {entry.name: entry.stat().st_size for entry in sorted(place.iterdir()) if entry.name != _SIZES}
