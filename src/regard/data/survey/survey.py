"""Surveys: one pass over a split that stores a few numbers for each pair, and no text.

A pair takes about forty bytes, whatever its length. Duplicates and overlaps are found by hashes of the texts.
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
from regard.data.lines import is_stream
from regard.data.pair_files import Row, read_rows
from regard.data.settings import Files
from regard.data.survey.scripts import CP1252_ONLY, Characters, Profile, Trait
from regard.data.tokens.pretokenization import TAB
from regard.data.tokens.vocabularies import find_tags, too_many_tags

_BATCH, _BATCH_CHARACTERS = 8_192, 4_000_000
"""The maximum number of pairs of a batch, and the number of characters after which it ends, to bound memory."""

_MIN_LETTERS = 3
"""The script of a text with fewer letters is not determined."""

_MIN_TAGGED_SHARE = 0.9
"""The minimum share of sources with a tab for the text after it to be treated as tags."""

_MAX_BAD_ROWS = 100
"""The number of lines without a pair that are stored. All of them are counted."""

MARKUP = re.compile(r"</?[A-Za-z][^<>]{0,80}>|&(?:[A-Za-z]{2,8}|#\d{1,7}|#[xX][0-9A-Fa-f]{1,6});")
"""An HTML tag or entity."""

_MOJIBAKE = re.compile(rf"[\xc2-\xf4][\x80-\xbf{CP1252_ONLY}]+")
"""A sequence that may be UTF-8 decoded as Latin-1 or Windows-1252; `fix_mojibake` decides."""

_AFTER_WORDS = set("\xa0«»°·©®²³€™‘’“”…–—•")
"""Characters that often follow an accented letter in correct text."""


class Mark(IntFlag):
    """Problems that can be detected in a pair on its own."""

    EMPTY = 1
    COPY = 2
    CONTROL = 4
    REPLACED = 8
    UNNORMALIZED = 16
    MARKUP = 32
    SPACES = 64
    MOJIBAKE = 128


class Split(NamedTuple):
    """Named pairs that can be read repeatedly."""

    name: str
    read: Callable[[], Iterable[Row]]
    by_language: bool = False
    """Whether the language is a tag of each source."""

    @classmethod
    def of_files(cls, name: str, files: Files) -> "Split":
        """Create a split that reads files on demand. The rows of a pipe are stored in memory."""
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
class RowSample:
    """Reads every n-th row of a split, and counts the pairs of all rows."""

    split: Split
    step: int
    pairs: int = 0

    def read(self) -> Iterator[Row]:
        self.pairs = 0
        for number, row in enumerate(self.split.read()):
            self.pairs += not row.problem
            if number % self.step == 0:
                yield row


@dataclass
class SideStatistics:
    """Statistics of the sources or the targets of N pairs."""

    counts: Counter[int] = field(default_factory=Counter)
    """The number of occurrences of each character, by code point."""
    hashes_N: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    chars_N: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    words_N: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    script_N: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    """The script of most letters; 0 if there are too few letters."""
    scripts_N: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    """A bit mask of the scripts that occur in the text."""


@dataclass
class Survey:
    """Statistics of a split of N pairs. Tags are not part of the source, except in its hash."""

    split: Split
    tagged: bool = False
    """Whether sources have tags."""
    source: SideStatistics = field(default_factory=SideStatistics)
    target: SideStatistics = field(default_factory=SideStatistics)
    tags: Counter[str] = field(default_factory=Counter)
    """The number of occurrences of each tag."""
    marks_N: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    bad_lines: int = 0
    """The number of lines that do not contain a pair."""
    bad_rows: list[Row] = field(default_factory=list)
    """The first lines that do not contain a pair."""

    @property
    def name(self) -> str:
        return self.split.name

    def __len__(self) -> int:
        return len(self.marks_N)

    @property
    def pairs_N(self) -> NDArray[np.uint64]:
        """A hash of each pair."""
        left, right = self.source.hashes_N.view(np.uint64), self.target.hashes_N.view(np.uint64)
        return (left * np.uint64(0x9E3779B97F4A7C15)) ^ (right + (left >> np.uint64(7)))

    def read_pairs(self, indices: Iterable[int]) -> dict[int, Row]:
        """Read the pairs with the given indices again, no further than needed."""
        requested = set(indices)
        last = max(requested, default=-1)
        with without_warnings():
            pairs = (row for row in self.split.read() if not row.problem)
            return {index: row for index, row in enumerate(islice(pairs, last + 1)) if index in requested}


@contextmanager
def without_warnings() -> Iterator[None]:
    """Suppress warnings, for files that were read before and for samples of them: the warnings would be repeated."""
    logger = logging.getLogger("regard")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


BatchCallback = Callable[[list[str], list[str]], None]


def detect_tags(split: Split) -> bool:
    """Return whether the sources have tags, which follow the text after a tab.

    They do if nearly all of the first sources contain a tab, and the values after it are few and repeated.
    """
    with without_warnings():
        sources = [row.source for row in islice(split.read(), _BATCH) if not row.problem]
    candidates = [source.partition(TAB)[2] for source in sources if TAB in source]
    tags = Counter(match[0] for text in candidates for match in find_tags(text, 0))
    enough = len(candidates) >= _MIN_TAGGED_SHARE * len(sources)
    return enough and 0 < len(tags) <= tags.total() / 2 and not too_many_tags(tags, len(candidates))


def survey_split(
    split: Split, characters: Characters, on_batch: BatchCallback | None = None, *, tagged: bool | None = None
) -> Survey:
    """Compute the survey of a split in one pass.

    `on_batch` is called with the sources, without tags, and the targets of each batch. If `tagged` is None,
    tags are detected.
    """
    survey = Survey(split, detect_tags(split) if tagged is None else tagged)
    columns: dict[tuple[str, str, np.dtype[np.generic]], bytearray] = {}

    def append(owner: str, column: str, values: NDArray[np.generic]) -> None:
        columns.setdefault((owner, column, values.dtype), bytearray()).extend(values.tobytes())

    for batch in _split_into_batches(split.read()):
        pairs = [row for row in batch if not row.problem]
        if len(pairs) < len(batch):
            bad = [row for row in batch if row.problem]
            survey.bad_lines += len(bad)
            survey.bad_rows += bad[: _MAX_BAD_ROWS - len(survey.bad_rows)]
        if not pairs:
            continue
        sources, targets = [row.source for row in pairs], [row.target for row in pairs]
        untagged = _remove_tags(sources, survey.tags) if survey.tagged else sources
        if on_batch:
            on_batch(untagged, targets)
        marks = np.zeros(len(pairs), np.uint8)
        for name, side, texts, complete in (
            ("source", survey.source, untagged, sources),
            ("target", survey.target, targets, targets),
        ):
            profile = characters.profile(texts)
            side.counts.update(profile.counts)
            marks |= _compute_marks(complete, profile if complete is texts else characters.profile(complete))
            append(name, "hashes_N", _hash_texts(complete))
            for column, values in _columns(profile).items():
                append(name, column, values)
        marks |= _mark_copies(sources, targets, profile.words_N)
        append("", "marks_N", marks)
    # Arrays are views of buffers that grow in place: concatenating a list of arrays would need twice the memory.
    for (owner, column, dtype), buffer in columns.items():
        setattr(getattr(survey, owner) if owner else survey, column, np.frombuffer(buffer, dtype))
    return survey


def _split_into_batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    characters = 0
    for row in rows:
        batch.append(row)
        characters += len(row.source) + len(row.target)
        if len(batch) == _BATCH or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _remove_tags(sources: list[str], tags: Counter[str]) -> list[str]:
    """Return the sources without their tags, and add these to `tags`."""
    parts = [source.partition(TAB) for source in sources]
    tags.update(match[0] for _, _, text in parts for match in find_tags(text, 0))
    return [head for head, _, _ in parts]


def _hash_texts(texts: list[str]) -> NDArray[np.int64]:
    """Hash texts with Python's built-in hash: it has 64 bits, is fast, and is stable within the process."""
    return np.fromiter(map(hash, texts), np.int64, len(texts))


def _columns(profile: Profile) -> dict[str, NDArray[np.generic]]:
    letters_NK = profile.letters_NK.copy()
    letters_NK[:, 0] = 0
    script_N = letters_NK.argmax(axis=1).astype(np.uint8)
    script_N[letters_NK.max(axis=1) < _MIN_LETTERS] = 0
    return {
        "chars_N": profile.chars_N,
        "words_N": profile.words_N,
        "script_N": script_N,
        "scripts_N": np.bitwise_or.reduce(np.where(letters_NK > 0, script_bits(letters_NK.shape[1]), 0), axis=1),
    }


def script_bits(count: int) -> NDArray[np.uint32]:
    """Return the bit of each script number; numbers from 31 share the last bit."""
    return np.uint32(1) << np.minimum(np.arange(count, dtype=np.uint32), np.uint32(31))


def _compute_marks(texts: list[str], profile: Profile) -> NDArray[np.uint8]:
    """Compute the marks of texts: from their traits, and by a closer look at those that the traits select."""
    traits = profile.traits_N
    marks = np.zeros(len(texts), dtype=np.uint8)
    marks[profile.words_N == 0] |= np.uint8(Mark.EMPTY)
    for trait, mark in (
        (Trait.CONTROL, Mark.CONTROL),
        (Trait.REPLACED, Mark.REPLACED),
        (Trait.SPACES, Mark.SPACES),
    ):
        marks[(traits & np.uint8(trait)) > 0] |= np.uint8(mark)
    checks: tuple[tuple[Trait, Mark, Callable[[str], bool]], ...] = (
        (Trait.COMPOSED, Mark.UNNORMALIZED, lambda text: not unicodedata.is_normalized("NFC", text)),
        (Trait.MARKUP, Mark.MARKUP, lambda text: MARKUP.search(text) is not None),
        (Trait.CONTINUATION, Mark.MOJIBAKE, lambda text: fix_mojibake(text) != text),
    )
    for trait, mark, has_problem in checks:
        for index in np.flatnonzero(traits & np.uint8(trait)):
            if has_problem(texts[index]):
                marks[index] |= np.uint8(mark)
    return marks


def _mark_copies(sources: list[str], targets: list[str], words_N: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Mark targets of three words or more that equal their source. Names and numbers are often shorter."""
    same_N = np.fromiter(map(str.__eq__, sources, targets), bool, len(sources))
    return (same_N & (words_N >= 3)).astype(np.uint8) * np.uint8(Mark.COPY)


def fix_mojibake(text: str) -> str:
    """Correct UTF-8 text that was decoded as Latin-1 or Windows-1252. Text without clear evidence is unchanged."""
    certain = any(
        (sequence[0] in "ÂÃâ" or not set(sequence[1:]) <= _AFTER_WORDS) and _decode_as_utf8(sequence) != sequence
        for sequence in _MOJIBAKE.findall(text)
    )
    return _MOJIBAKE.sub(lambda match: _decode_as_utf8(match[0]), text) if certain else text


def _decode_as_utf8(sequence: str) -> str:
    raw = b"".join(bytes([ord(char)]) if ord(char) < 0x100 else char.encode("cp1252") for char in sequence)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return sequence
