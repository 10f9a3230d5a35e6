r"""Lines of text files, gzipped or not. Every problem of a file is reported with a remedy.

Only \n ends a line: U+2028, U+0085, \x0b, \x0c and \x1c are ordinary characters.
"""

import gzip
import hashlib
import io
import logging
import os
import re
import shlex
import stat
import sys
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from regard.data.remote_files import fetch
from regard.errors import DataError
from regard.formatting import quantity, short_path
from regard.regular_files import open_regular
from regard.urls import is_url

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 19
"""The maximum length of a line; longer lines indicate that the file is not a text file."""

_BLOCK = 1 << 17
"""The maximum number of bytes that are read at once."""

BYTE_ORDER_MARK = "\ufeff"

_WIDE_MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""The byte order marks of unsupported encodings."""

STANDARD_INPUT = "-"
"""The path that means standard input."""

Readable = io.BufferedIOBase | gzip.GzipFile


class Line(NamedTuple):
    """A line with its number (from 1): its text, or a problem and its remedy."""

    number: int
    text: str
    problem: str | None = None
    remedy: str = ""


def read_lines(path: str | Path) -> Generator[Line]:
    """Read the lines of a file. Gzip files are detected by their first bytes."""
    with _unzipped(path) as handle:
        yield from parse_lines(handle, str(path))


def parse_lines(handle: Readable, name: str) -> Iterator[Line]:
    """Parse the lines of a binary stream. A byte order mark and CRLF line endings are removed, with a warning."""
    for number, line in enumerate(parse_texts(handle, name), start=1):
        yield Line(number, line) if isinstance(line, str) else line


def read_texts(path: str | Path) -> Generator[str | Line]:
    """As `read_lines`, but yield a valid line as a str, which is faster than a `Line`."""
    with _unzipped(path) as handle:
        yield from parse_texts(handle, str(path))


@contextmanager
def open_texts(path: str | Path) -> Iterator[tuple[Iterator[str | Line], Callable[[], float]]]:
    """Open a file for `read_texts`, and return a function for its compression ratio: the bytes of the file that have
    been read, divided by the bytes of text. An empty file has no lines.
    """
    with open_file(path) as handle, _unzip(handle, path) as unzipped:
        zipped = unzipped is not handle and handle.seekable()
        yield parse_texts(unzipped, str(path)), lambda: handle.tell() / max(1, unzipped.tell()) if zipped else 1.0


def parse_texts(handle: Readable, name: str) -> Iterator[str | Line]:
    """As `parse_lines`, but yield a valid line as a str. Lines of a pipe are yielded when they arrive."""
    return chain.from_iterable(parse_blocks(handle, name))


def parse_blocks(handle: Readable, name: str) -> Iterator[Sequence[str | Line]]:
    """Parse blocks of complete lines. Nearly all blocks can be decoded at once."""
    number, carriages = 1, 0
    for block in _read_blocks(handle):
        if number == 1:
            _reject_utf_16(block[: block.find(b"\n") + 1 or None][: MAX_BYTES + 1], name)
        lines: Sequence[str | Line] | None = _decode_block(block)
        if lines is None:
            raw_lines = block.removesuffix(b"\n").split(b"\n")
            carriages += sum(raw.endswith(b"\r") for raw in raw_lines if len(raw) <= MAX_BYTES)
            lines = [_decode(number + index, raw, name) for index, raw in enumerate(raw_lines)]
        if number == 1:
            lines = _remove_byte_order_mark(lines, name)
        yield lines
        number += len(lines)
    if carriages:
        log.warning(
            "%s has Windows line endings (CRLF) on %s; they are removed.",
            display_name(name),
            quantity(carriages, "line"),
        )


def _read_blocks(handle: Readable) -> Iterator[bytes]:
    """Read blocks of complete lines. The rest of a line that is too long is dropped, so that memory is bounded."""
    rest = b""
    while data := handle.read1(_BLOCK):
        if len(rest) > MAX_BYTES:
            rest, data = rest[: MAX_BYTES + 1], data[data.find(b"\n") :] if b"\n" in data else b""
        complete, newline, after = (rest + data).rpartition(b"\n")
        if newline:
            yield complete + newline
        rest = after
    if rest:
        yield rest


def _decode_block(block: bytes) -> list[str] | None:
    """Return the texts of the lines; None if a line has a problem or a carriage return, or may be too long."""
    if len(block) > MAX_BYTES or b"\0" in block or b"\r" in block:
        return None
    try:
        return block.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        return None


def _remove_byte_order_mark(lines: Sequence[str | Line], name: str) -> Sequence[str | Line]:
    first, *others = lines
    text = first if isinstance(first, str) else first.text
    if not text.startswith(BYTE_ORDER_MARK):
        return lines
    log.warning("%s starts with a byte order mark, which is ignored.", display_name(name))
    text = text.removeprefix(BYTE_ORDER_MARK)
    return [text if isinstance(first, str) else first._replace(text=text), *others]


def _reject_utf_16(raw: bytes, name: str) -> None:
    """Raise DataError for UTF-16 or UTF-32, detected by its byte order mark or by zero bytes of ASCII characters."""
    encoding = next((encoding for mark, encoding in _WIDE_MARKS.items() if raw.startswith(mark)), None)
    if encoding is None and len(raw) > 3:
        even, odd = (half.count(0) / len(half) for half in (raw[::2], raw[1::2]))
        encoding = "UTF-16LE" if odd > 0.8 and even < 0.2 else "UTF-16BE" if even > 0.8 and odd < 0.2 else None
    if encoding is not None:
        raise DataError(f"{display_name(name)} is {encoding} text; UTF-8 is required. {_conversion(name, encoding)}")


def _conversion(name: str, encoding: str) -> str:
    """Return the instruction to convert a file to UTF-8."""
    path = Path(short_path(name))
    command = f"iconv -f {encoding} -t UTF-8"
    if not path.is_file():
        return f"Convert it with `{command}`."
    zipped = path.suffix == ".gz"
    plain = path.with_suffix("") if zipped else path
    original = shlex.quote(str(path))
    converted = shlex.quote(str(plain.with_name(f"{plain.stem}.utf8{plain.suffix}")))
    command = f"zcat {original} | {command} > {converted}" if zipped else f"{command} {original} > {converted}"
    return f"Convert it: `{command}`."


def _decode(number: int, raw: bytes, name: str) -> str | Line:
    """Return the text of a line, or its problem."""
    if len(raw) > MAX_BYTES:
        return Line(number, "", f"the line is longer than {MAX_BYTES:,} bytes (is this a text file?)")
    raw = raw.removesuffix(b"\r")
    if b"\0" in raw:
        return Line(number, "", f"a NUL byte at byte {raw.index(0)} (is this a text file?)")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        replaced = raw.decode("utf-8", errors="replace")
        problem = f"byte {error.start} is not UTF-8 (0x{raw[error.start]:02x})"
        encoding = "WINDOWS-1252" if any(0x80 <= byte < 0xA0 for byte in raw) else "ISO-8859-1"
        return Line(number, replaced, problem, f"It may be {encoding}. {_conversion(name, encoding)}")


def count_lines(path: str | Path) -> int:
    """Return the number of lines of a file, without decoding them."""
    with _unzipped(path) as handle:
        return sum(block.count(b"\n") for block in iter(lambda: handle.read(1 << 20), b""))


def display_name(path: str | Path) -> str:
    """Return the name of a file for messages."""
    return "stdin" if str(path) == STANDARD_INPUT else short_path(path)


def is_stream(path: str) -> bool:
    """Whether a path is standard input, a pipe or a device, which can be read only once."""
    if is_url(path):
        return False
    # /dev/shm is a file system in memory.
    if path == STANDARD_INPUT or re.match(r"/dev/(?!shm/)", os.path.abspath(path)):
        return True
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _is_open_pipe(path: Path) -> bool:
    """Whether a path refers to a pipe, a socket or a terminal that this process has opened. Other devices, such as
    /dev/zero, could be endless.
    """
    if not re.fullmatch(r"/dev/stdin|(/dev|/proc/self)/fd/\d+", str(path)):
        return False
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.path.realpath(path).startswith(("/dev/pts/", "/dev/tty"))


def open_stdin() -> io.BufferedReader:
    """Open stdin separately: Python aborts at exit if another thread is still reading from sys.stdin."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # sys.stdin is not a file
        return sys.stdin.buffer  # type: ignore[return-value] # it is buffered, too


@contextmanager
def open_file(path: str | Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading bytes: a regular file, standard input (`-`), or a pipe that is already open
    (/dev/stdin, or the pipe of `<(command)`). A URL is downloaded first.
    """
    if str(path) == STANDARD_INPUT:
        yield open_stdin()
        return
    local = fetch(str(path)) if is_url(path) else Path(path)
    try:
        handle = local.open("rb") if _is_open_pipe(local) else open_regular(local)
    except FileNotFoundError:
        raise DataError(f"There is no file {display_name(path)}. Check the path.") from None
    except IsADirectoryError:
        raise DataError(f"{display_name(path)} is a folder; a file is required.") from None
    except OSError as error:
        raise DataError(f"{display_name(path)} cannot be read: {error.strerror}.") from None
    with handle:
        yield handle


def hash_file(path: str | Path) -> str:
    """Return the SHA-256 of the content of a file."""
    with open_file(path) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@contextmanager
def _unzipped(path: str | Path) -> Iterator[Readable]:
    with open_file(path) as handle:
        if not handle.peek(1):
            raise DataError(f"{display_name(path)} is empty. Check how it was created.")
        with _unzip(handle, path) as unzipped:
            yield unzipped


@contextmanager
def _unzip(handle: io.BufferedReader, path: str | Path) -> Iterator[Readable]:
    """Decompress an open file if it is a gzip file."""
    # `peek` instead of `seek`, so that pipes can be read too.
    if handle.peek(2)[:2] != b"\x1f\x8b":
        yield handle
        return
    try:
        with gzip.GzipFile(fileobj=handle) as unzipped:
            yield unzipped
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{display_name(path)} is a damaged gzip file ({error}). It was probably truncated: copy or download it "
            "again."
        ) from None
