"""Text: what a document is, and how text is split into sentences and put together again.

Sentences are found by sentencex (Wikimedia). It was chosen because it is maintained, knows the abbreviations of many
languages, needs no download, and returns every character of its input; pysbd was last released in 2021, wtpsplit
downloads a neural network, and ICU knows few abbreviations.
"""

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

Span = tuple[int, int]
"""The offset of the first character, and that after the last one."""


class Translation(NamedTuple):
    """The translation of a sentence."""

    text: str
    links: tuple[tuple[Span, Span], ...] = ()
    """Aligned words: where they are in the sentence, and in the translation."""


Content = TypeVar("Content")


class Document(ABC, Generic[Content]):
    """A text or a file whose sentences are to be translated.

    Attributes:
        sentences: What is translated: without white space at the ends, and with at least one letter or digit.
        needs_links: Whether `join` uses the links of translations.
    """

    sentences: tuple[str, ...]
    needs_links: bool

    @abstractmethod
    def join(self, translations: Sequence[Translation]) -> Content:
        """Return the document with a translation in place of each sentence."""


class TextDocument(Document[str]):
    """Plain text. All white space between sentences is kept.

    A line break ends a sentence. Text without letters or digits is copied.
    """

    needs_links = False

    def __init__(self, text: str, language: str, limit: int) -> None:
        spans = find_sentences(text, language, limit)
        self.sentences = tuple(text[start:end] for start, end in spans)
        self.starts = tuple(start for start, _ in spans)
        ends = (0, *(end for _, end in spans))
        self._gaps = [text[end:start] for end, start in zip(ends, (*self.starts, len(text)), strict=True)]

    def join(self, translations: Sequence[Translation]) -> str:
        parts = [self._gaps[0]]
        last = len(self.sentences) - 1
        for index, (translation, gap) in enumerate(zip(translations, self._gaps[1:], strict=True)):
            touches = not gap and index < last
            parts += translation.text, separate(self.sentences[index], translation.text) if touches else gap
        return "".join(parts)


def parse_text(text: str, language: str, limit: int) -> TextDocument:
    """Split text into sentences. Sentences of more than `limit` characters are split at the best boundary."""
    return TextDocument(text, language, limit)


def find_sentences(text: str, language: str, limit: int) -> list[Span]:
    """Return where the sentences are that contain a letter or a digit."""
    spans: list[Span] = []
    start = 0
    for line in text.splitlines(keepends=True):
        # sentencex 1.0 panics at white space of several bytes. A byte order mark is not part of a sentence.
        spaced = "".join(" " if char.isspace() or char == "\ufeff" else char for char in line)
        for first, last in _split_line(spaced, language, limit):
            if any(map(str.isalnum, spaced[first:last])):
                spans.append((start + first, start + last))
        start += len(line)
    return spans


_WINDOW = 2000
"""The time that sentencex takes is quadratic in the length of a text, so it is called with this many characters."""


def _split_line(line: str, language: str, limit: int) -> Iterator[Span]:
    start = 0
    while start < len(line):
        window = line[start : start + _WINDOW]
        lengths = _measure_sentences(window, language)
        if start + len(window) < len(line):
            # The last sentence may continue after the window.
            lengths = lengths[:-1] or [_find_cut(line, start, start + _WINDOW) - start]
        for length in lengths:
            yield from _shorten(line, start, start + length, limit)
            start += length


def _measure_sentences(text: str, language: str) -> list[int]:
    from sentencex import segment

    try:
        sentences = segment(language, text)
    except BaseException as error:
        # An error in Rust is not a subclass of Exception, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        return [len(text)]
    return [len(sentence) for sentence in sentences] if "".join(sentences) == text else [len(text)]


def _shorten(text: str, start: int, end: int, limit: int) -> Iterator[Span]:
    """Split a sentence into parts of at most `limit` characters, without white space at their ends."""
    while True:
        start += len(text[start:end]) - len(text[start:end].lstrip())
        end = start + len(text[start:end].rstrip())
        if end - start <= limit:
            break
        cut = _find_cut(text, start, start + limit)
        yield start, start + len(text[start:cut].rstrip())
        start = cut
    if start < end:
        yield start, end


_CLAUSE = re.compile(r"[,;:،؛](?=\s)|[、，；：—–]")
_SPACE = re.compile(r"\s")


def _find_cut(text: str, start: int, end: int) -> int:
    """Return where to split a text that is too long: after a clause, at white space, or between two characters.

    The result is in the second half of the span. An accent is not separated from its letter.
    """
    half = (start + end) // 2
    for boundary in (_CLAUSE, _SPACE):
        cuts = [match.end() for match in boundary.finditer(text, half, end)]
        if cuts:
            return cuts[-1]
    cut = end
    while cut > half + 1 and (unicodedata.category(text[cut])[0] == "M" or "\u200d" in text[cut - 1 : cut + 1]):
        cut -= 1
    return cut


def separate(sentence: str, translation: str) -> str:
    """Return what separates a translation from the next one if nothing separates the sentences.

    Chinese and Japanese are written without spaces, unlike most languages that they are translated to.
    """
    return " " if translation and _is_wide(sentence[-1]) and not _is_wide(translation[-1]) else ""


def _is_wide(char: str) -> bool:
    return unicodedata.east_asian_width(char) in "WF"
