"""The built-in corpus: dates as people write them in dozens of languages, and the same in ISO 8601.

Months and days are named by the CLDR, through babel. A form that gives the month as a mere number is
taken only where the year stands first and the day last, so that no date can be read in two ways.
"""

import datetime
import hashlib
import random
from collections.abc import Iterator
from functools import cache
from typing import Literal

from babel import Locale
from babel.dates import DateTimePattern, get_date_format

LOCALES = (
    "af", "am", "ar", "az", "be", "bg", "bn", "ca", "cs", "cy", "da", "de", "el", "en", "es", "et",
    "eu", "fa", "fi", "fr", "ga", "gl", "he", "hi", "hr", "hu", "hy", "id", "is", "it", "ja", "ka",
    "kk", "ko", "lt", "lv", "mk", "mr", "ms", "my", "nb", "ne", "nl", "pl", "pt", "ro", "ru", "sk",
    "sl", "sq", "sr", "sv", "sw", "ta", "te", "th", "tr", "uk", "ur", "uz", "vi", "zh", "zh_Hant",
)  # fmt: skip

Form = Literal["medium", "long", "full"]
FORMS: tuple[Form, ...] = ("medium", "long", "full")

FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2100, 12, 31)

_ZEROS = {"ar": "٠", "fa": "۰", "ur": "۰", "bn": "০", "hi": "०", "mr": "०", "ne": "०", "my": "၀", "th": "๐"}
"""Languages with digits of their own, each with its zero; half of their dates are written in them."""

_NATIVE = {locale: {ord("0") + digit: chr(ord(zero) + digit) for digit in range(10)} for locale, zero in _ZEROS.items()}

_SPLITS = {"test": range(15), "dev": range(15, 25), "train": range(25, 100)}
"""Of a hundred classes of source strings, those that belong to each split."""


def sample(split: str, size: int, seed: int) -> list[tuple[str, str]]:
    """So many distinct pairs (source, target); two splits share no source string, whatever their seeds."""
    drawn: dict[str, str] = {}
    for source, target in _stream(random.Random(f"{split} {seed}")):
        if len(drawn) == size:
            break
        if _class_of(source) in _SPLITS[split]:
            drawn[source] = target
    return list(drawn.items())


def _stream(generator: random.Random) -> Iterator[tuple[str, str]]:
    days = (LAST - FIRST).days + 1
    while True:
        date = FIRST + datetime.timedelta(generator.randrange(days))
        locale = LOCALES[generator.randrange(len(LOCALES))]
        forms = unambiguous_forms(locale)
        form = forms[generator.randrange(len(forms))]
        native = generator.random() < 0.5
        yield write(date, locale, form, native=native), date.isoformat()


def write(date: datetime.date, locale: str, form: Form, *, native: bool = False) -> str:
    """A date as people of a locale write it, in digits of their own where asked for and where they have any."""
    text = _pattern(locale, form).apply(date, _locale(locale))
    return text.translate(_NATIVE[locale]) if native and locale in _NATIVE else text


@cache
def unambiguous_forms(locale: str) -> tuple[Form, ...]:
    """The forms of a locale in which day and month cannot be mistaken for each other."""
    return tuple(form for form in FORMS if _is_unambiguous(_pattern(locale, form).pattern))


def _is_unambiguous(pattern: str) -> bool:
    if "MMM" in pattern or "LLL" in pattern:
        return True
    return pattern.index("y") < pattern.index("M") < pattern.index("d")


def _class_of(source: str) -> int:
    return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=4).digest(), "big") % 100


@cache
def _locale(name: str) -> Locale:
    return Locale.parse(name)


@cache
def _pattern(locale: str, form: Form) -> DateTimePattern:
    return get_date_format(form, _locale(locale))
