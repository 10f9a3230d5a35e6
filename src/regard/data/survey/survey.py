"""A survey of pairs: one pass over a split that keeps a few numbers of each pair and no text.

A pair takes some forty bytes, whatever its length: hashes stand for texts, so that duplicates and overlaps are found.
"""

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntFlag
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.corpora import Pairs, Stream
from regard.data.files import Files
from regard.data.lines import is_stream
from regard.data.readers import Row, read_rows
from regard.data.survey.scripts import WINDOWS, Characters, Profile, Trait
from regard.data.tokens.pretokenization import TAB
from regard.data.tokens.vocabularies import tags_of, too_many_tags

_BATCH = 8192

_FEWEST_LETTERS = 3
"""A text with fewer letters tells nothing of its script."""

_NEARLY_ALL = 0.9
"""Of all sources so many have tags, where any has."""

_PLACES = 100
"""Of lines that are no pairs so many are kept; all are counted."""

MARKUP = re.compile(r"</?[A-Za-z][^<>]{0,80}>|&(?:[A-Za-z]{2,8}|#\d{1,7}|#[xX][0-9A-Fa-f]{1,6});")
"""A tag or an entity of HTML."""

_MISREAD = re.compile(rf"[\xc2-\xf4][\x80-\xbf{WINDOWS}]+")
"""What may be UTF-8 read as Latin-1 or Windows-1252: `read_again` knows."""


_AFTER_WORDS = set("\xa0«»°·©®²³€™‘’“”…–—•")
"""What may follow an accented letter without anything being wrong."""


class Mark(IntFlag):
    """What a pair itself tells is wrong with it."""

    EMPTY = 1
    COPY = 2
    CONTROL = 4
    REPLACED = 8
    UNNORMALIZED = 16
    MARKUP = 32
    SPACES = 64
    MOJIBAKE = 128


class Split(NamedTuple):
    """Pairs under a name, which can be read as often as needed."""

    name: str
    read: Callable[[], Iterable[Row]]
    by_language: bool = False
    """Whether sources are marked with their language."""

    @classmethod
    def of_files(cls, name: str, files: Files) -> "Split":
        """The rows of files, read whenever they are needed; those of a pipe are kept in memory."""
        if any(map(is_stream, files.paths)):
            rows = list(read_rows(files))
            return cls(name, lambda: rows, "" not in files.by_language)
        return cls(name, lambda: read_rows(files), "" not in files.by_language)

    @classmethod
    def of_pairs(cls, name: str, pairs: Pairs | Stream) -> "Split":
        def read() -> Iterator[Row]:
            for number, (source, target) in enumerate(pairs, start=1):
                yield Row(f"{name}:{number}", source, target)

        return cls(name, read)


@dataclass
class SideStatistics:
    """The sources or the targets of N pairs, by numbers."""

    counts: Counter[int] = field(default_factory=Counter)
    """How often each character occurs, by its code."""
    hashes_N: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    chars_N: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    words_N: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    script_N: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    """The script of most letters; 0 where there are too few to tell."""
    scripts_N: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    """A bit for each script that has a letter in the text."""


@dataclass
class Survey:
    """A split of N pairs by numbers. The source is the text without its tags, but for its hash."""

    split: Split
    tagged: bool = False
    """Whether sources have tags."""
    source: SideStatistics = field(default_factory=SideStatistics)
    target: SideStatistics = field(default_factory=SideStatistics)
    tags: Counter[str] = field(default_factory=Counter)
    """How often each tag of a source occurs."""
    marks_N: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    bad_lines: int = 0
    bad_rows: list[Row] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.split.name

    def __len__(self) -> int:
        return len(self.marks_N)

    @property
    def pairs_N(self) -> NDArray[np.uint64]:
        """A hash of each whole pair."""
        left, right = self.source.hashes_N.view(np.uint64), self.target.hashes_N.view(np.uint64)
        return (left * np.uint64(0x9E3779B97F4A7C15)) ^ (right + (left >> np.uint64(7)))

    def texts(self, wanted: Iterable[int]) -> dict[int, Row]:
        """The pairs of some numbers, read again from the file, as far as needed."""
        numbers = set(wanted)
        last = max(numbers, default=-1)
        with without_warnings():
            pairs = (row for row in self.split.read() if not row.problem)
            return {number: row for number, row in enumerate(islice(pairs, last + 1)) if number in numbers}


@contextmanager
def without_warnings() -> Iterator[None]:
    """What a reader says of a file the first time need not be said again."""
    logger = logging.getLogger("regard.data")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


Watcher = Callable[[list[str], list[str]], None]


def detect_tags(split: Split) -> bool:
    """Whether what follows a tab in nearly all sources is tags: few, and met again and again. The first ones tell."""
    with without_warnings():
        sources = [row.source for row in islice(split.read(), _BATCH) if not row.problem]
    behind = [source.partition(TAB)[2] for source in sources if TAB in source]
    tags = Counter(found[0] for text in behind for found in tags_of(text, 0))
    enough = len(behind) >= _NEARLY_ALL * len(sources)
    return enough and 0 < len(tags) <= tags.total() / 2 and not too_many_tags(tags, len(behind))


def survey_split(
    split: Split, characters: Characters, watch: Watcher | None = None, *, tagged: bool | None = None
) -> Survey:
    """Read a split once; `watch` sees its sources, without tags, and targets, batch by batch.

    Where it is not said whether sources have tags, they tell it themselves.
    """
    survey = Survey(split, detect_tags(split) if tagged is None else tagged)
    columns: dict[tuple[str, str, np.dtype[np.generic]], bytearray] = {}

    def keep(owner: str, column: str, values: NDArray[np.generic]) -> None:
        columns.setdefault((owner, column, values.dtype), bytearray()).extend(values.tobytes())

    stream = iter(split.read())
    while batch := list(islice(stream, _BATCH)):
        pairs = [row for row in batch if not row.problem]
        if len(pairs) < len(batch):
            bad = [row for row in batch if row.problem]
            survey.bad_lines += len(bad)
            survey.bad_rows += bad[: _PLACES - len(survey.bad_rows)]
        if not pairs:
            continue
        sources, targets = [row.source for row in pairs], [row.target for row in pairs]
        heads = _without_tags(sources, survey.tags) if survey.tagged else sources
        if watch:
            watch(heads, targets)
        marks = np.zeros(len(pairs), np.uint8)
        for name, side, texts, whole in (
            ("source", survey.source, heads, sources),
            ("target", survey.target, targets, targets),
        ):
            profile = characters.profile(texts)
            side.counts.update(profile.counts)
            marks |= _marks(whole, profile if whole is texts else characters.profile(whole))
            keep(name, "hashes_N", _hashes(whole))
            for column, values in _columns(profile).items():
                keep(name, column, values)
        marks |= _copies(sources, targets, profile.words_N)
        keep("", "marks_N", marks)
    # A buffer that grows in place is used as it is: a list of arrays would be copied, and stand twice in memory.
    for (owner, column, kind), buffer in columns.items():
        setattr(getattr(survey, owner) if owner else survey, column, np.frombuffer(buffer, kind))
    return survey


def _without_tags(sources: list[str], tags: Counter[str]) -> list[str]:
    """The sources up to their tags, which are counted."""
    parted = [source.partition(TAB) for source in sources]
    tags.update(found[0] for _, _, behind in parted for found in tags_of(behind, 0))
    return [head for head, _, _ in parted]


def _hashes(texts: list[str]) -> NDArray[np.int64]:
    """Python's own hash of a text is of 64 bits, quick, and the same for the life of the process."""
    return np.fromiter(map(hash, texts), np.int64, len(texts))


def _columns(profile: Profile) -> dict[str, NDArray[np.generic]]:
    letters_NK = profile.letters_NK.copy()
    letters_NK[:, 0] = 0
    script_N = letters_NK.argmax(axis=1).astype(np.uint8)
    script_N[letters_NK.max(axis=1) < _FEWEST_LETTERS] = 0
    return {
        "chars_N": profile.chars_N,
        "words_N": profile.words_N,
        "script_N": script_N,
        "scripts_N": np.bitwise_or.reduce(np.where(letters_NK > 0, bits(letters_NK.shape[1]), 0), axis=1),
    }


def bits(count: int) -> NDArray[np.uint32]:
    """The bit of each script; those beyond the thirty-first share one."""
    return np.uint32(1) << np.minimum(np.arange(count, dtype=np.uint32), np.uint32(31))


def _marks(texts: list[str], profile: Profile) -> NDArray[np.uint8]:
    """From what the characters of a text may mean to what the text is."""
    traits = profile.traits_N
    marks = np.zeros(len(texts), dtype=np.uint8)
    marks[profile.words_N == 0] |= np.uint8(Mark.EMPTY)
    for trait, mark in (
        (Trait.CONTROL, Mark.CONTROL),
        (Trait.REPLACED, Mark.REPLACED),
        (Trait.SPACES, Mark.SPACES),
    ):
        marks[(traits & np.uint8(trait)) > 0] |= np.uint8(mark)
    looks: tuple[tuple[Trait, Mark, Callable[[str], bool]], ...] = (
        (Trait.COMPOSED, Mark.UNNORMALIZED, lambda text: not unicodedata.is_normalized("NFC", text)),
        (Trait.MARKUP, Mark.MARKUP, lambda text: MARKUP.search(text) is not None),
        (Trait.FOLLOWS, Mark.MOJIBAKE, lambda text: read_again(text) != text),
    )
    for trait, mark, holds in looks:
        for number in np.flatnonzero(traits & np.uint8(trait)):
            if holds(texts[number]):
                marks[number] |= np.uint8(mark)
    return marks


def _copies(sources: list[str], targets: list[str], words_N: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """A name or a number may stay what it is; three words and more that do are hardly a translation."""
    same_N = np.fromiter(map(str.__eq__, sources, targets), bool, len(sources))
    return (same_N & (words_N >= 3)).astype(np.uint8) * np.uint8(Mark.COPY)


def read_again(text: str) -> str:
    """The text with what is UTF-8 read as Latin-1 or Windows-1252 read as what it is, if there is no doubt."""
    certain = any(
        (found[0] in "ÂÃâ" or not set(found[1:]) <= _AFTER_WORDS) and _decoded(found) != found
        for found in _MISREAD.findall(text)
    )
    return _MISREAD.sub(lambda match: _decoded(match[0]), text) if certain else text


def _decoded(misread: str) -> str:
    raw = b"".join(bytes([ord(sign)]) if ord(sign) < 0x100 else sign.encode("cp1252") for sign in misread)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return misread
