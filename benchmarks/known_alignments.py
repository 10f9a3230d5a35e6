"""Pairs whose alignment is known by construction: which symbols of the source produce each symbol of the target.

dates            the built-in corpus: each digit of the ISO date, and the part of the written date that it is from
transliteration  names in a rule-based Cyrillic spelling; a rule maps one letter or more to one letter or more
reverse          strings of 5 to 30 letters, reversed
permute          strings of 5 to 15 letters; the letters of each block of five are permuted in the same way

Symbols are separated by spaces, and a space is written ␣, so that a symbol is a word: `regard align` and guided
alignment then link symbols.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from babel.dates import DateTimeFormat, get_date_format, tokenize_pattern

from alignment_scores import Standard
from regard.data import dates
from regard.data.corpora import load_corpus, read_pairs
from regard.data.pharaoh import GoldLinks, Link, Links
from regard.data.settings import DataSettings, Files, SplitName

SIZES = {"train": 20_000, "dev": 500, "test": 1_000}


class AlignedPair(NamedTuple):
    """Two strings and the links between their characters. A character that has no origin in the source has no link."""

    source: str
    target: str
    links: Links


def align_date(written: dates.WrittenDate) -> AlignedPair:
    """Link the digits of the ISO date to the year, the month and the day of the written date.

    Digits are linked one by one if both sides have the same number of them. Otherwise, all digits of a month or a day
    are linked to its name, or to its only digit.
    """
    source, target = written.text, written.date.isoformat()
    links: set[Link] = set()
    for kind, start, end in locate_fields(written):
        if kind in ISO:
            sources, targets = range(start, end), ISO[kind]
            one_by_one = source[start:end].isdigit() and len(sources) == len(targets)
            links.update(
                zip(sources, targets, strict=True) if one_by_one else ((i, j) for i in sources for j in targets)
            )
    return AlignedPair(source, target, frozenset(links))


ISO = {"y": range(4), "M": range(5, 7), "L": range(5, 7), "d": range(8, 10)}
"""The positions of year, month and day in YYYY-MM-DD, by their symbols in the patterns of the CLDR."""


def locate_fields(written: dates.WrittenDate) -> Iterator[tuple[str, int, int]]:
    """Yield the symbol, the start and the end of each field of a written date."""
    fields = DateTimeFormat(written.date, written.locale)
    start = 0
    for kind, value in tokenize_pattern(get_date_format(written.format, written.locale).pattern):
        text = fields[value[0] * int(value[1])] if kind == "field" else str(value)
        if kind == "field":
            yield str(value[0]), start, start + len(text)
        start += len(text)


def build_dates(split: SplitName, _: Path) -> list[AlignedPair]:
    return [align_date(written) for written in dates.sample_dates(split, SIZES[split], seed=0).values()]


RULES = {
    "shch": "щ", "sch": "ш", "sh": "ш", "ch": "ч", "zh": "ж", "kh": "х", "ph": "ф", "th": "т", "ck": "к", "ts": "ц",
    "ya": "я", "yu": "ю", "oo": "у", "ee": "и", "qu": "кв", "x": "кс", "j": "дж",
    "a": "а", "b": "б", "c": "к", "d": "д", "e": "е", "f": "ф", "g": "г", "h": "х", "i": "и", "k": "к", "l": "л",
    "m": "м", "n": "н", "o": "о", "p": "п", "q": "к", "r": "р", "s": "с", "t": "т", "u": "у", "v": "в", "w": "в",
    "y": "ы", "z": "з",
}  # fmt: skip
"""The rules of the transliteration. The first one that matches is used."""


def transliterate(name: str) -> AlignedPair:
    """Apply the rules from left to right. Each letter of the output is linked to all letters of its rule."""
    start, target = 0, ""
    links: set[Link] = set()
    while start < len(name):
        letters = next(letters for letters in RULES if name.startswith(letters, start))
        output = RULES[letters]
        links |= {(start + i, len(target) + j) for i in range(len(letters)) for j in range(len(output))}
        start, target = start + len(letters), target + output
    return AlignedPair(name, target, frozenset(links))


def build_transliterations(split: SplitName, data: Path) -> list[AlignedPair]:
    """Transliterate the names of a corpus. A name that occurs in several splits belongs to the test set."""
    names = {name: read_names(data / f"transliteration/wd_katakana_{share}.gz") for name, share in SHARES.items()}
    others = {"train": {*names["dev"], *names["test"]}, "dev": set(names["test"]), "test": set()}[split]
    kept = [name for name in names[split] if name not in others and 4 <= len(name) <= 20]
    return [transliterate(name) for name in kept[: SIZES[split]]]


SHARES = {"train": 64, "dev": 16, "test": 20}


def read_names(path: Path) -> list[str]:
    """Return the distinct names of a file that consist of the letters a to z."""
    names = read_pairs(Files(path=str(path), columns=(1, 2)), skip_bad_lines=True).sources
    return list(dict.fromkeys(name for name in map(str, names) if name.isascii() and name.isalpha() and name.islower()))


def reorder(text: str, order: Sequence[int]) -> AlignedPair:
    """Write the character `order[j]` of a text at position j."""
    return AlignedPair(text, "".join(text[i] for i in order), frozenset((i, j) for j, i in enumerate(order)))


def build_reversed(split: SplitName, _: Path) -> list[AlignedPair]:
    return [reorder(text, range(len(text))[::-1]) for text in read_strings(split, longest=30)]


def build_permuted(split: SplitName, _: Path) -> list[AlignedPair]:
    return [reorder(text, permute(len(text))) for text in read_strings(split, longest=15)]


BLOCK = (3, 0, 4, 1, 2)
"""The order of the letters of a block in the target."""


def permute(length: int) -> list[int]:
    """Return a permutation of 0 … length − 1 that permutes each block of five. The last block may be shorter."""
    order = (start + i for start in range(0, length, len(BLOCK)) for i in BLOCK)
    return [i for i in order if i < length]


def read_strings(split: SplitName, longest: int) -> list[str]:
    """Return the strings of the built-in corpus of sequences."""
    corpus = load_corpus(DataSettings.parse({"kind": "sequences", "task": "copy", "longest": longest, **SIZES}))
    pairs = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}[split]
    assert pairs is not None
    return [target for _, target in pairs]


BUILDERS: dict[str, Callable[[SplitName, Path], list[AlignedPair]]] = {
    "dates": build_dates,
    "transliteration": build_transliterations,
    "reverse": build_reversed,
    "permute": build_permuted,
}


def build_standard(task: str, split: SplitName, data: Path) -> Standard:
    """Return the pairs of a split, with spaces between the symbols, and their links."""
    pairs = BUILDERS[task](split, data)
    return Standard(
        [(separate(pair.source), separate(pair.target)) for pair in pairs], [GoldLinks.of(pair.links) for pair in pairs]
    )


def separate(text: str) -> str:
    """Separate the characters of a text by spaces; a space becomes ␣."""
    return " ".join("␣" if character.isspace() else character for character in text)
