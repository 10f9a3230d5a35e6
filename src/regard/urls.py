"""URLs of data files, such as s3://bucket/train.tsv, in places where a local path is accepted too.

`data/remote_files.py` reads them. A password in a URL is rejected, because paths are printed and stored in run folders.
"""

import os
import re
from pathlib import Path

_SCHEME = r"[a-z][a-z0-9+.-]*://"
_LOCAL = re.compile(r"(?:file|local)://", re.IGNORECASE)

_PASSWORD = re.compile(rf"({_SCHEME}[^/@:\[]*:)(?!\d*(?:/|$))(?:.*@|[^/]*)", re.IGNORECASE)
"""The text after the first colon, unless it is the number of a port: user:password@host."""

_SECRET = re.compile(r"([?&][^=&]*(?:auth|credential|key|pass|secret|sig|token)[^=&]*=)[^&]*", re.IGNORECASE)
"""A parameter such as X-Amz-Signature."""


def is_url(path: str | Path) -> bool:
    return re.match(_SCHEME, str(path), re.IGNORECASE) is not None


def has_password(url: str) -> bool:
    return hide_password(url) != url


def hide_password(url: str) -> str:
    """Replace the password or the signature in a URL, for messages.

    >>> hide_password("sftp://me:secret@host/train.tsv")
    'sftp://me:…@host/train.tsv'
    """
    hidden = _PASSWORD.sub(lambda match: f"{match[1]}…{'@' * match[0].endswith('@')}", url, count=1)
    return _SECRET.sub(r"\1…", hidden)


def local_path(url: str) -> str | None:
    """Return the path in a URL of a local file (file://, local://); None for other URLs."""
    match = _LOCAL.match(url)
    return url[match.end() :] if match else None


def make_absolute(path: str) -> str:
    """Return the absolute path of a local file. Other URLs are absolute."""
    local = local_path(path) if is_url(path) else path
    return path if local is None else os.path.abspath(local)


def join_path(folder: str, path: str) -> str:
    """Return a path in a folder, each of which may be a URL. An absolute path stays as it is."""
    if is_url(path):
        return path
    return f"{folder.rstrip('/')}/{path}" if is_url(folder) else str(Path(folder) / path)
