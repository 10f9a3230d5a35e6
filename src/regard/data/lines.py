r"""Lines of text, plain or gzipped, with every way in which a file can disappoint named.

A line ends at \n and nowhere else: U+2028, U+0085, \x0b, \x0c and \x1c are characters like any other.
"""

import gzip
import io
import logging
import os
import shlex
import sys
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from regard.errors import DataError
from regard.formatting import quantity, short_path

log = logging.getLogger(__name__)

LONGEST = 1 << 19
"""Bytes in a line beyond which it is no sentence but another kind of file."""

BYTE_ORDER_MARK = "\ufeff"

_WIDE_MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""The byte order marks of encodings that are not read."""

STANDARD_INPUT = "-"
"""The path that means standard input."""

Readable = IO[bytes] | gzip.GzipFile


class Line(NamedTuple):
    """A line with its number (from 1): its text, or what is wrong with it and what to do about that."""

    number: int
    text: str
    problem: str | None = None
    remedy: str = ""


def read_lines(path: str | Path) -> Generator[Line]:
    """The lines of a file; a gzip file is known by its first bytes."""
    with _unzipped(path) as handle:
        yield from parse_lines(handle, str(path))


def parse_lines(handle: Readable, name: str) -> Iterator[Line]:
    """The lines of a binary stream; BOM and CRLF are stripped, with a notice."""
    number = carriages = 0
    while raw := handle.readline(LONGEST + 1):
        number += 1
        if number == 1:
            _reject_utf_16(raw, name)
        if len(raw) > LONGEST:
            while raw and not raw.endswith(b"\n"):
                raw = handle.readline(LONGEST + 1)
            yield Line(number, "", f"the line is longer than {LONGEST:,} bytes (is this a text file?)")
            continue
        raw = raw.removesuffix(b"\n")
        if raw.endswith(b"\r"):
            carriages += 1
            raw = raw.removesuffix(b"\r")
        line = _decode(number, raw, name)
        if number == 1 and line.text.startswith(BYTE_ORDER_MARK):
            log.warning("%s starts with a byte order mark; it is left out.", display_name(name))
            line = line._replace(text=line.text.removeprefix(BYTE_ORDER_MARK))
        yield line
    if carriages:
        log.warning(
            "%s has Windows line ends (CRLF) on %s; they are left out.", display_name(name), quantity(carriages, "line")
        )


def _reject_utf_16(raw: bytes, name: str) -> None:
    """Raise DataError for UTF-16 or UTF-32, detected by its byte order mark or by zero bytes of ASCII characters."""
    encoding = next((encoding for mark, encoding in _WIDE_MARKS.items() if raw.startswith(mark)), None)
    if encoding is None and len(raw) > 3:
        even, odd = (half.count(0) / len(half) for half in (raw[::2], raw[1::2]))
        encoding = "UTF-16LE" if odd > 0.8 and even < 0.2 else "UTF-16BE" if even > 0.8 and odd < 0.2 else None
    if encoding is not None:
        raise DataError(f"{display_name(name)} is {encoding} text, and UTF-8 is needed. {_conversion(name, encoding)}")


def _conversion(name: str, encoding: str) -> str:
    """How to convert a file to UTF-8."""
    path = Path(short_path(name))
    command = f"iconv -f {encoding} -t UTF-8"
    if not path.is_file():
        return f"Convert it with `{command}`."
    zipped = path.suffix == ".gz"
    plain = path.with_suffix("") if zipped else path
    given, converted = (shlex.quote(str(each)) for each in (path, plain.with_name(f"{plain.stem}.utf8{plain.suffix}")))
    command = f"zcat {given} | {command} > {converted}" if zipped else f"{command} {given} > {converted}"
    return f"Convert it: `{command}`."


def _decode(number: int, raw: bytes, name: str) -> Line:
    if b"\0" in raw:
        return Line(number, "", f"a NUL byte at byte {raw.index(0)} (is this a text file?)")
    try:
        return Line(number, raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        replaced = raw.decode("utf-8", errors="replace")
        problem = f"byte {error.start} is not UTF-8 (0x{raw[error.start]:02x})"
        encoding = "WINDOWS-1252" if any(0x80 <= byte < 0xA0 for byte in raw) else "ISO-8859-1"
        return Line(number, replaced, problem, f"It may be {encoding}. {_conversion(name, encoding)}")


def count_lines(path: str | Path) -> int:
    """How many lines a file has, without reading them as text."""
    with _unzipped(path) as handle:
        return sum(block.count(b"\n") for block in iter(lambda: handle.read(1 << 20), b""))


def display_name(path: str | Path) -> str:
    """The name of a file in messages."""
    return "stdin" if str(path) == STANDARD_INPUT else short_path(path)


def is_stream(path: str) -> bool:
    """Whether a path is standard input, a pipe or a device, which can be read only once."""
    if path == STANDARD_INPUT or os.path.abspath(path).startswith("/dev/"):
        return True
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextmanager
def open_file(path: str | Path) -> Iterator[io.BufferedReader]:
    """A file's bytes as they are on the disk, or those of standard input (`-`)."""
    if str(path) == STANDARD_INPUT:
        yield sys.stdin.buffer  # type: ignore[misc] # which is buffered, too
        return
    path = Path(path)
    try:
        handle = path.open("rb")
    except FileNotFoundError:
        raise DataError(f"There is no file {display_name(path)}. Check the path.") from None
    except IsADirectoryError:
        raise DataError(f"{display_name(path)} is a folder, and a file is needed.") from None
    except OSError as error:
        raise DataError(f"{display_name(path)} cannot be read: {error.strerror}.") from None
    with handle:
        yield handle


@contextmanager
def _unzipped(path: str | Path) -> Iterator[Readable]:
    with open_file(path) as handle:
        # Peeking rather than reading and going back, pipes can be read too.
        start = handle.peek(2)[:2]
        if not start:
            raise DataError(f"{display_name(path)} is empty. Check that it was written.")
        if start == b"\x1f\x8b":
            try:
                with gzip.GzipFile(fileobj=handle) as unzipped:
                    yield unzipped
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(
                    f"{display_name(path)} is a damaged gzip file ({error}). It was probably cut short: copy or download it "
                    "again."
                ) from None
        else:
            yield handle
