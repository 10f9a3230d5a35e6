"""The built-in corpus of dates: dates as written in dozens of languages, and the same dates in ISO 8601.

The names of months and days are those of the CLDR, from babel. A format with the month as a number is used only if the
order is year, month, day, so that no date is ambiguous.
"""

import datetime
import hashlib
import random
from collections.abc import Iterator
from functools import cache
from typing import Literal, NamedTuple

from babel import Locale
from babel.dates import DateTimePattern, get_date_format

LOCALES = (
    "af", "am", "ar", "az", "be", "bg", "bn", "ca", "cs", "cy", "da", "de", "el", "en", "es", "et",
    "eu", "fa", "fi", "fr", "ga", "gl", "he", "hi", "hr", "hu", "hy", "id", "is", "it", "ja", "ka",
    "kk", "ko", "lt", "lv", "mk", "mr", "ms", "my", "nb", "ne", "nl", "pl", "pt", "ro", "ru", "sk",
    "sl", "sq", "sr", "sv", "sw", "ta", "te", "th", "tr", "uk", "ur", "uz", "vi", "zh", "zh_Hant",
)  # fmt: skip

Format = Literal["medium", "long", "full"]
FORMATS: tuple[Format, ...] = ("medium", "long", "full")

FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2100, 12, 31)

_ZEROS = {"ar": "٠", "fa": "۰", "ur": "۰", "bn": "০", "hi": "०", "mr": "०", "ne": "०", "my": "၀", "th": "๐"}
"""The digit zero of languages with their own digits. Half of their dates are written with these."""

_NATIVE = {locale: {ord("0") + digit: chr(ord(zero) + digit) for digit in range(10)} for locale, zero in _ZEROS.items()}

_SPLITS = {"test": range(15), "dev": range(15, 25), "train": range(25, 100)}
"""The hash classes (0 to 99) of the source strings of each split."""


class WrittenDate(NamedTuple):
    """A date and how it is written: the locale, the format, and whether in the native digits of the language."""

    date: datetime.date
    locale: str
    format: Format
    native: bool = False

    @property
    def text(self) -> str:
        return write(self.date, self.locale, self.format, native=self.native)


def sample(split: str, size: int, seed: int) -> list[tuple[str, str]]:
    """Sample `size` distinct pairs (source, target). Splits share no source string, whatever their seeds."""
    return [(source, written.date.isoformat()) for source, written in sample_dates(split, size, seed).items()]


def sample_dates(split: str, size: int, seed: int) -> dict[str, WrittenDate]:
    """Return the dates that `sample` writes, by their source."""
    dates: dict[str, WrittenDate] = {}
    for written in _sample_all(random.Random(f"{split} {seed}")):
        if len(dates) == size:
            break
        source = written.text
        if _hash_class(source) in _SPLITS[split]:
            dates[source] = written
    return dates


def _sample_all(generator: random.Random) -> Iterator[WrittenDate]:
    days = (LAST - FIRST).days + 1
    while True:
        date = FIRST + datetime.timedelta(generator.randrange(days))
        locale = LOCALES[generator.randrange(len(LOCALES))]
        formats = unambiguous_formats(locale)
        format_ = formats[generator.randrange(len(formats))]
        yield WrittenDate(date, locale, format_, native=generator.random() < 0.5)


def write(date: datetime.date, locale: str, format_: Format, *, native: bool = False) -> str:
    """Write a date in the format of a locale; with `native`, in the digits of its language if it has its own."""
    text = _pattern(locale, format_).apply(date, _locale(locale))
    return text.translate(_NATIVE[locale]) if native and locale in _NATIVE else text


@cache
def unambiguous_formats(locale: str) -> tuple[Format, ...]:
    """Return the formats of a locale in which day and month cannot be confused."""
    return tuple(format_ for format_ in FORMATS if _is_unambiguous(_pattern(locale, format_).pattern))


def _is_unambiguous(pattern: str) -> bool:
    if "MMM" in pattern or "LLL" in pattern:
        return True
    return pattern.index("y") < pattern.index("M") < pattern.index("d")


def _hash_class(source: str) -> int:
    return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=4).digest(), "big") % 100


@cache
def _locale(name: str) -> Locale:
    return Locale.parse(name)


@cache
def _pattern(locale: str, format_: Format) -> DateTimePattern:
    return get_date_format(format_, _locale(locale))
