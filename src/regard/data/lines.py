r"""Lines of text, plain or gzipped, with every way in which a file can disappoint named.

A line ends at \n and nowhere else: U+2028, U+0085, \x0b, \x0c and \x1c are characters like any other.
"""

import gzip
import io
import logging
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from regard.errors import DataError

log = logging.getLogger(__name__)

LONGEST = 1 << 19
"""Bytes in a line beyond which it is no sentence but another kind of file."""

BYTE_ORDER_MARK = "\ufeff"


Readable = IO[bytes] | gzip.GzipFile


class Line(NamedTuple):
    """A line with its number (from 1): its text, or what is wrong with it."""

    number: int
    text: str
    problem: str | None = None


def read_lines(path: str | Path) -> Iterator[Line]:
    """The lines of a file; a gzip file is known by its first bytes."""
    with _unzipped(path) as handle:
        yield from parse_lines(handle, str(path))


def parse_lines(handle: Readable, name: str) -> Iterator[Line]:
    """The lines of a binary stream; BOM and CRLF are stripped, with a notice."""
    number = carriages = 0
    while raw := handle.readline(LONGEST + 1):
        number += 1
        if len(raw) > LONGEST:
            while raw and not raw.endswith(b"\n"):
                raw = handle.readline(LONGEST + 1)
            yield Line(number, "", f"the line is longer than {LONGEST:,} bytes (is this a text file?)")
            continue
        raw = raw.removesuffix(b"\n")
        if raw.endswith(b"\r"):
            carriages += 1
            raw = raw.removesuffix(b"\r")
        line = _decode(number, raw)
        if number == 1 and line.text.startswith(BYTE_ORDER_MARK):
            log.warning("%s starts with a byte order mark; it is left out.", name)
            line = line._replace(text=line.text.removeprefix(BYTE_ORDER_MARK))
        yield line
    if carriages:
        log.warning("%s has Windows line ends (CRLF) on %d lines; they are left out.", name, carriages)


def _decode(number: int, raw: bytes) -> Line:
    if b"\0" in raw:
        return Line(number, "", f"a NUL byte at byte {raw.index(0)} (is this a text file?)")
    try:
        return Line(number, raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        replaced = raw.decode("utf-8", errors="replace")
        return Line(number, replaced, f"byte {error.start} is not UTF-8 (0x{raw[error.start]:02x})")


def count_lines(path: str | Path) -> int:
    """How many lines a file has, without reading them as text."""
    with _unzipped(path) as handle:
        return sum(block.count(b"\n") for block in iter(lambda: handle.read(1 << 20), b""))


@contextmanager
def open_file(path: str | Path) -> Iterator[io.BufferedReader]:
    """A file's bytes as they stand on the disk."""
    path = Path(path)
    try:
        handle = path.open("rb")
    except FileNotFoundError:
        raise DataError(f"There is no file {path}. Check the path.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder, and a file is needed.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    with handle:
        yield handle


@contextmanager
def _unzipped(path: str | Path) -> Iterator[Readable]:
    with open_file(path) as handle:
        # Peeking rather than reading and going back, pipes can be read too.
        start = handle.peek(2)[:2]
        if not start:
            raise DataError(f"{path} is empty. Check that it was written.")
        if start == b"\x1f\x8b":
            try:
                with gzip.GzipFile(fileobj=handle) as unzipped:
                    yield unzipped
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(
                    f"{path} is a damaged gzip file ({error}). It was probably cut short: copy or download it again."
                ) from None
        else:
            yield handle
