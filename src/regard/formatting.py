"""Text for messages and output: numbers with their nouns, paths, suggestions, tables, JSON, and a robust stderr."""

import io
import json
import math
import os
import re
import reprlib
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from regard.urls import hide_password, is_url

_SIMILAR, _SIMILAR_IF_SHORT, _SHORTEST_PREFIX = 0.75, 0.66, 3
"""The `difflib` ratio above which two names are similar, high enough to reject unrelated words; the ratio for words
of up to three letters, which may differ in one letter; and the minimum length of a prefix that is completed to a name.
"""
_LONGEST_NAME = 200
"""Longer words are not names; comparing them takes long."""

LANGUAGE_CODE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")
"""A code such as en or pt-BR."""


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return the name that `word` is a misspelling or a prefix of, if any."""
    known = list(names)
    word = word[:_LONGEST_NAME]
    similar = get_close_matches(word, known, n=1, cutoff=_SIMILAR if len(word) > 3 else _SIMILAR_IF_SHORT)
    completions = [name for name in known if len(word) >= _SHORTEST_PREFIX and name.startswith(word)]
    return next(iter(similar + completions), None)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return ` Did you mean 'additive'?`, or an empty string if no name is similar."""
    suggestion = nearest(word, names)
    return f" Did you mean '{suggestion}'?" if suggestion else ""


def quote(value: object, length: int = 100) -> str:
    """Return the `repr` of a value for a message, shortened to about `length` characters.

    >>> quote("a" * 1000, 10)
    "'aaaaaaaa…"
    """
    return shorten(_ShortRepr(length).repr(value), length)


class _ShortRepr(reprlib.Repr):
    """A `repr` that does not spend time on what is cut off: nested, long or recursive values."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 20
        self.maxstring = self.maxother = self.maxlong = 2 * length  # longer than the result, which is cut by `quote`

    def repr_int(self, value: int, level: int) -> str:
        digits = value.bit_length() * 3 // 10
        return f"an integer of about {digits:,} digits" if digits > self.maxlong else super().repr_int(value, level)


def shorten(text: str, length: int = 100) -> str:
    """Return a text for a message, cut off after `length` characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def quantity(number: int, noun: str) -> str:
    """Format a number with its noun: `1 line`, `1,234 lines`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def add_article(noun: str) -> str:
    """Format a noun with its indefinite article: `a text`, `an image`."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def format_bytes(number: float) -> str:
    """Format a size in the units of file managers: 1 MB is 1,000,000 bytes.

    >>> format_bytes(1_234_567)
    '1.2 MB'
    """
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


def format_count(number: float) -> str:
    """Format a count: exactly up to 99,999; above with three digits and a unit.

    >>> format_count(1_048_576)
    '1.05 M'
    """
    if abs(number) < 100_000:
        return f"{number:,.0f}" if number == int(number) else f"{number:,.4g}"
    units = iter(("k", "M", "G", "T", "P"))
    number, unit = number / 1000, next(units)
    while abs(number) >= 999.5:
        number, unit = number / 1000, next(units, f"{unit}k")
    return f"{number:.3g} {unit}"


def short_path(path: str | Path) -> str:
    """Format a path for messages: relative if it is below the working directory. A password in a URL is hidden."""
    if is_url(path):
        return hide_password(str(path))
    relative = os.path.relpath(path)
    return str(path) if relative.startswith(os.pardir) else relative


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table with aligned columns, the same on a terminal and in a pipe."""
    from rich.cells import cell_len

    lines = [header, *rows]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def name_language(code: str) -> str:
    """Return the English name of a language; its code if the name is not known."""
    from babel import Locale, UnknownLocaleError

    try:
        return Locale.parse(code, sep="-").get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code


def to_json(value: Any, *, indent: int | None = None, ensure_ascii: bool = True, sort_keys: bool = False) -> str:
    """Serialize to standard JSON, which has no NaN or infinity: they become null."""
    dump = partial(json.dumps, indent=indent, ensure_ascii=ensure_ascii, sort_keys=sort_keys, allow_nan=False)
    try:
        return dump(value)
    except ValueError:  # rare, so it is faster not to check every number first
        return dump(replace_nonfinite(value))


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raise ValueError if it is not valid, nested too deeply, or has a number with too many digits."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except ValueError:
        raise ValueError("a number has too many digits") from None


def is_encodable(text: str) -> bool:
    """Whether a text can be written as UTF-8. A lone surrogate, half of a pair, is not a character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def replace_nonfinite(value: Any) -> Any:
    """Replace NaN and infinity with None, in nested dictionaries and sequences too."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: replace_nonfinite(entry) for key, entry in value.items()}
        case list() | tuple():
            return [replace_nonfinite(entry) for entry in value]
        case _:
            return value


class _LossyFile(io.FileIO):
    """A file that ignores errors when it is written to."""

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content) or 0
        except OSError:
            return len(memoryview(content).cast("B"))


def open_lossy_stderr() -> TextIO:
    """Return a stream that writes to the current stderr and ignores errors.

    If `sys.stderr` was replaced by an object that is not a file, as in a notebook, or is a Windows console, return it.
    """
    stream = sys.stderr
    if stream is None or getattr(stream, "closed", False):
        return open(os.devnull, "w", encoding="utf-8")
    buffer = getattr(stream, "buffer", None)
    if type(getattr(buffer, "raw", buffer)) is not io.FileIO:
        return stream
    raw = _LossyFile(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors, line_buffering=True)
