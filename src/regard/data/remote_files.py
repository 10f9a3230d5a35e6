"""Data files on other machines: s3://, gs://, hdfs:// and all other protocols of fsspec.

A remote file is read several times: to detect its layout, to hash it, to count its lines, and to tokenize it. It is
therefore downloaded once, into the cache. fsspec is imported only if a URL is used.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regard.data.cache import build_without_cache, cache_key, get_or_build
from regard.errors import ConfigError, DataError, RegardError, is_disk_failure
from regard.formatting import short_path, shorten
from regard.urls import has_password, local_path

_VERSIONS = ("ETag", "etag", "md5Hash", "modify", "modificationTime")
"""The names under which protocols report the version of a file, if they do not report when it was modified."""

_MAX_REASON = 200

_copies: dict[str, Path] = {}
"""The local copies that this process has requested, by their cache keys. Their content has been verified."""


def fetch(url: str) -> Path:
    """Return the path of a local copy of a remote file. It is downloaded unless the cache contains this version."""
    reject_password(url)
    local = local_path(url)
    if local is not None:
        return Path(local)
    with _report_failures(url):
        from fsspec.core import url_to_fs

        files, path = url_to_fs(url)
        info = files.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError
        version = _find_version(files, path, info)
    name = f"file{Path(path).suffix}"

    def download(folder: Path) -> None:
        with _report_failures(url):
            files.get_file(path, str(folder / name))
            if _find_version(files, path, files.info(path)) != version:
                raise DataError(f"{short_path(url)} changed while it was downloaded. Start again.")

    if version is None:
        return build_without_cache(download) / name
    key = cache_key(url, info["size"], version)
    copy = _copies.get(key)
    if copy is None or not copy.exists():
        copy = _copies[key] = get_or_build("downloads", key, download) / name
    return copy


def reject_password(url: str) -> None:
    if has_password(url):
        raise ConfigError(
            f"{short_path(url)} contains a password or a signature, which would be stored in the run folder. Pass "
            "passwords in environment variables, for example FSSPEC_SFTP_PASSWORD, or in the configuration of the "
            "protocol, such as ~/.aws/credentials. Download a file with a signed URL first."
        )


def _find_version(files: Any, path: str, info: dict[str, Any]) -> str | None:
    """Return what changes when a file is replaced; None if the protocol does not report it."""
    version = next((info[name] for name in _VERSIONS if info.get(name)), None)
    with suppress(NotImplementedError):
        version = version or files.modified(path)
    return None if version is None else str(version)


@contextmanager
def _report_failures(url: str) -> Iterator[None]:
    """Report the exceptions of fsspec and of the packages that it imports, which have no common base class."""
    name = short_path(url)
    try:
        yield
    except RegardError:
        raise
    except FileNotFoundError:
        raise DataError(f"There is no file {name}. Check the URL.") from None
    except IsADirectoryError:
        raise DataError(f"{name} is a folder; a file is required.") from None
    except ImportError as error:
        package = str(getattr(error.__cause__ or error, "name", None) or "fsspec").partition(".")[0]
        raise DataError(
            f"{name} requires the package {package}, which is not installed. Run pip install {package}."
        ) from None
    except Exception as error:
        if isinstance(error, OSError) and is_disk_failure(error):
            raise
        reason = shorten(str(error).strip().partition("\n")[0].rstrip("."), _MAX_REASON) or type(error).__name__
        raise DataError(f"{name} cannot be read: {reason}. Check the URL, the network and the credentials.") from None
