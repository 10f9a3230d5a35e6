"""Text with inline tags, such as a paragraph of HTML: translate the text, and put the tags where the aligned words are.

A document is a list of tokens. Breaks (tags of block elements, and tags that do not match) divide it into runs, which
contain text and balanced inline elements only. Runs are translated separately, so the tags of the document stay
balanced. In a run,

1. an element is put around the longest sequence of target words that are aligned to its words;
2. if no word of an element is aligned, its place is after the translation of the word that precedes it in the source.
   The element is put around the next word there, or else the previous one; if other elements contain both, it is empty;
3. an element without text, such as an image, follows the translation of the word that precedes it in the source;
4. a tag inside a word is moved to an edge of its translation, unless the translation is the same word.

Each tag therefore occurs once, and elements are nested as in the source.
"""

import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from typing import Literal, NamedTuple

from regard.serving.documents.text import Document, Span, Translation, find_sentences, separate

Kind = Literal["text", "open", "close", "void", "break"]


class Token(NamedTuple):
    """A part of a document: text, a tag, or markup that is copied unchanged. `name` is the name of a tag."""

    kind: Kind
    raw: str
    name: str = ""


class MarkupDocument(Document[str]):
    """A document of text and tags.

    Breaks, tags, and runs without letters and digits are copied exactly. In other runs, white space inside a sentence
    becomes one space.

    Args:
        tokens: The parts of the document.
        language: The code of its language.
        limit: The maximum number of characters of a sentence.
        decode: Returns the text of a text token.
        encode: Returns the text token of a text.
    """

    def __init__(
        self,
        tokens: Iterable[Token],
        language: str,
        limit: int,
        decode: Callable[[str], str] = str,
        encode: Callable[[str], str] = str,
    ) -> None:
        self._parts: list[str | _Run] = []
        for group, is_run in _find_runs(list(tokens)):
            run = _Run(group, decode, encode, language, limit) if is_run else None
            self._parts.append(run if run and run.sentences else "".join(token.raw for token in group))
        runs = [part for part in self._parts if isinstance(part, _Run)]
        self.sentences = tuple(sentence.text for run in runs for sentence in run.sentences)
        self.needs_links = any(sentence.tags for run in runs for sentence in run.sentences)

    def join(self, translations: Sequence[Translation]) -> str:
        assert len(translations) == len(self.sentences)
        rest = iter(translations)
        return "".join(
            part if isinstance(part, str) else part.join([next(rest) for _ in part.sentences]) for part in self._parts
        )


_MAX_DEPTH = 32
"""Inline elements that are nested more deeply are breaks. Time and the depth of recursion are bounded by it."""


def _find_runs(tokens: list[Token]) -> Iterator[tuple[list[Token], bool]]:
    """Divide a document into runs and breaks. The second value is whether it is a run.

    The tags of an inline element that contains a break are breaks themselves.
    """
    breaks = [token.kind == "break" for token in tokens]
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token.kind == "open" and len(opened) < _MAX_DEPTH:
            opened.append(index)
        elif token.kind == "close" and opened and tokens[opened[-1]].name == token.name:
            opened.pop()
        elif token.kind in {"open", "close", "break"}:
            for other in (*opened, index):
                breaks[other] = True
            opened.clear()
    for index in opened:
        breaks[index] = True
    for is_break, group in groupby(zip(tokens, breaks, strict=True), key=lambda pair: pair[1]):
        yield [token for token, _ in group], not is_break


@dataclass(slots=True)
class _Element:
    """An inline element, or another token without text: where it is in the text, and its tags."""

    opening: str
    start: int
    path: tuple[int, ...]
    """The indices of the elements that contain it, and its own."""
    closing: str = ""
    end: int = -1
    has_words: bool = False
    children: list[int] = field(default_factory=list)


class _Word(NamedTuple):
    """A word, punctuation, or a part of a word of the translated run; `point` is its place in the source."""

    start: int
    end: int
    point: int


class _Tag(NamedTuple):
    """A tag of the translated run. `spaces` is how much of the white space between two words precedes it.

    If it is an object in the line, such as an image, it is preceded and followed by white space as in the source.
    """

    text: str
    spaces: int
    is_preceded: bool = False
    is_followed: bool = False


class _Sentence:
    """A sentence of a run, in which white space is one space.

    Attributes:
        text: What is translated.
        span: Where it is in the text of the run.
        tags: The places of tags in `text`, except those at its ends.
    """

    def __init__(self, run: str, span: Span, tags: Sequence[int]) -> None:
        self.span = span
        words = [match.span() for match in re.finditer(r"[^ \t\n\r\f]+", run[span[0] : span[1]])]
        self._run_starts = [span[0] + start for start, _ in words]
        self._starts: list[int] = []
        length = 0
        for start, end in words:
            self._starts.append(length)
            length += end - start + 1
        self.text = " ".join(run[span[0] + start : span[0] + end] for start, end in words)
        inner = tags[bisect_right(tags, span[0]) : bisect_left(tags, span[1])]
        self.tags = sorted({self._from_run(tag) for tag in inner})

    def _from_run(self, offset: int) -> int:
        index = bisect_right(self._run_starts, offset) - 1
        following = self._starts[index + 1] - 1 if index + 1 < len(self._starts) else len(self.text)
        return min(self._starts[index] + offset - self._run_starts[index], following)

    def to_run(self, offset: int) -> int:
        index = bisect_right(self._starts, offset) - 1
        return self._run_starts[index] + offset - self._starts[index]

    def find_words(self, translation: Translation) -> list[_Word]:
        """Return the words of a translation, each with its place in the run.

        A word without links belongs to the same place as the word before it. Without links, words are in proportion.
        """
        text, links = translation
        if text == self.text:
            links = (((0, len(text)), (0, len(text))),)
        links = tuple(sorted(links, key=lambda link: link[1]))
        cuts = {offset for _, target in links for offset in target}
        for (first, last), target in links:
            if self.text[first:last] == text[slice(*target)]:
                inner = self.tags[bisect_right(self.tags, first) : bisect_left(self.tags, last)]
                cuts.update(target[0] + tag - first for tag in inner)
        words = _cut_words(text, sorted(cuts))
        starts = [start for start, _ in words]
        points: list[int | None] = [None] * len(words)
        for source, target in links:
            for index in range(bisect_left(starts, target[0]), bisect_left(starts, target[1])):
                if points[index] is None:
                    points[index] = _find_point(self.text, text, source, target, words[index])
        if links:
            known = next((point for point in points if point is not None), 0)
            points = [known := known if point is None else point for point in points]
        else:
            points = [(start + end) * len(self.text) // (2 * len(text)) for start, end in words]
        return [_Word(*word, self.to_run(point or 0)) for word, point in zip(words, points, strict=True)]


def _cut_words(text: str, cuts: Sequence[int]) -> list[Span]:
    """Return the words and the punctuation of a text, divided at the offsets `cuts`."""
    spans: list[Span] = []
    for match in re.finditer(r"\w+|[^\w\s]+", text):
        start, end = match.span()
        for cut in cuts[bisect_right(cuts, start) : bisect_left(cuts, end)]:
            spans.append((start, cut))
            start = cut
        spans.append((start, end))
    return spans


_CORE = re.compile(r"\w(?:.*\w)?", re.DOTALL)
"""A word without the punctuation around it."""


def _find_point(source_text: str, text: str, source: Span, target: Span, word: Span) -> int:
    """Return the place in the source of a part of a linked target word.

    If both words are the same, so is the place in them. Punctuation at an edge of the target word belongs to that of
    the source word, and everything else to the middle of the source word.
    """
    linked = source_text[slice(*source)]
    if linked == text[slice(*target)]:
        return source[0] + word[0] - target[0]
    core = _CORE.search(linked)
    if core is None:
        return source[0]
    first, last = core.span()
    if not _CORE.search(text, *word):
        if last < len(linked) and not _CORE.search(text, word[1], target[1]):
            return source[0] + last
        if first and not _CORE.search(text, target[0], word[0]):
            return source[0] + first - 1
    return source[0] + (first + last - 1) // 2


class _Run:
    """Text with balanced inline elements."""

    def __init__(
        self,
        tokens: Sequence[Token],
        decode: Callable[[str], str],
        encode: Callable[[str], str],
        language: str,
        limit: int,
    ) -> None:
        self._encode = encode
        self._elements: list[_Element] = []
        self._roots: list[int] = []
        text = self._read(tokens, decode)
        self._text = text
        tags = sorted({offset for element in self._elements for offset in (element.start, element.end)})
        self._tags = tags
        self._spaces = [match.span() for match in re.finditer(r"\s+", text)]
        spans = find_sentences(re.sub(r"[\t\n\r\f]", " ", text), language, limit)
        self.sentences = [_Sentence(text, span, tags) for span in spans]

    def _read(self, tokens: Sequence[Token], decode: Callable[[str], str]) -> str:
        """Read the elements, and which of them is the innermost at each offset. Return the text."""
        parts: list[str] = []
        length = 0
        opened: list[_Element] = []
        self._offsets = [0]
        self._paths: list[tuple[int, ...]] = [()]
        for token in tokens:
            if token.kind == "text":
                parts.append(decode(token.raw))
                length += len(parts[-1])
                for element in opened:
                    element.has_words = element.has_words or any(map(str.isalnum, parts[-1]))
            elif token.kind == "close":
                element = opened.pop()
                element.closing, element.end = token.raw, length
                self._mark(length, element.path[:-1])
            else:
                path = (*(opened[-1].path if opened else ()), len(self._elements))
                element = _Element(token.raw, length, path, end=length)
                (opened[-1].children if opened else self._roots).append(len(self._elements))
                self._elements.append(element)
                if token.kind == "open":
                    opened.append(element)
                    self._mark(length, path)
        return "".join(parts)

    def _mark(self, offset: int, path: tuple[int, ...]) -> None:
        self._offsets.append(offset)
        self._paths.append(path)

    def join(self, translations: Sequence[Translation]) -> str:
        text, words = self._translate(translations)
        if not self._elements:
            return self._encode(text)
        tags: list[list[_Tag]] = [[] for _ in range(len(words) + 1)]
        paths = [self._paths[bisect_right(self._offsets, word.point) - 1] for word in words]
        self._place(self._roots, (0, len(words)), words, paths, tags)
        parts: list[str] = []
        end = 0
        for here, word in zip_longest(tags, words):
            start = word.start if word else len(text)
            for tag in here:
                split = max(end, min(start, end + tag.spaces))
                parts.append(self._encode(text[end:split]))
                parts.append(" " if tag.is_preceded and text[max(0, split - 1) : split].strip() else "")
                parts.append(tag.text)
                parts.append(" " if tag.is_followed and split == start and text[start : start + 1].isalnum() else "")
                end = split
            if word:
                parts.append(self._encode(text[end : word.end]))
                end = word.end
        parts.append(self._encode(text[end:]))
        return "".join(parts)

    def _translate(self, translations: Sequence[Translation]) -> tuple[str, list[_Word]]:
        """Return the translated text, and its words."""
        parts: list[str] = []
        words: list[_Word] = []
        length = end = 0
        spans = [sentence.span for sentence in self.sentences] + [(len(self._text), len(self._text))]
        for index, (start, stop) in enumerate(spans):
            gap = self._text[end:start]
            inner = [tag - end for tag in self._tags[bisect_right(self._tags, end) : bisect_left(self._tags, start)]]
            words += (_Word(length + first, length + last, end + first) for first, last in _cut_words(gap, inner))
            parts.append(gap)
            length += len(gap)
            end = stop
            if index < len(translations):
                sentence, translation = self.sentences[index], translations[index]
                words += (
                    word._replace(start=length + word.start, end=length + word.end)
                    for word in sentence.find_words(translation)
                )
                touches = index + 1 < len(translations) and spans[index + 1][0] == stop
                parts.append(translation.text + (separate(sentence.text, translation.text) if touches else ""))
                length += len(parts[-1])
        return "".join(parts), words

    def _place(
        self,
        siblings: Sequence[int],
        within: Span,
        words: Sequence[_Word],
        paths: Sequence[tuple[int, ...]],
        tags: list[list[_Tag]],
    ) -> None:
        """Add the tags of sibling elements, which are inside words `within`, to the tags before each word."""
        if not siblings:
            return
        first, last = within
        depth = len(self._elements[siblings[0]].path) - 1
        owners = [path[depth] if len(path) > depth else None for path in paths[first:last]]
        places: dict[int, Span] = {}
        start = first
        for owner, group in groupby(owners):
            end = start + len(list(group))
            if owner is not None:
                places[owner] = max(places.get(owner, (0, 0)), (start, end), key=lambda place: place[1] - place[0])
            start = end
        following = {index: end for start, end in places.values() for index in range(start + 1, end)}
        order = sorted(range(first, last), key=lambda index: words[index].point)
        points = [words[index].point for index in order]
        free = {index for index, owner in enumerate(owners, first) if owner is None}
        for sibling in siblings:
            if sibling in places:
                continue
            element = self._elements[sibling]
            preceding = bisect_left(points, element.start)
            index = order[preceding - 1] + 1 if preceding else first
            index = following.get(index, index)
            taken = next((word for word in (index, index - 1) if element.has_words and word in free), None)
            free.discard(taken)
            places[sibling] = (index, index) if taken is None else (taken, taken + 1)
        for sibling in sorted(siblings, key=lambda sibling: (*places[sibling], sibling)):
            element, (start, end) = self._elements[sibling], places[sibling]
            tags[start].append(
                self._describe_tag(element.opening, element.start, element.closing == "", element.closing == "")
            )
            self._place(element.children, (start, end), words, paths, tags)
            if element.closing:
                tags[end].append(self._describe_tag(element.closing, element.end, True))

    def _describe_tag(self, tag: str, offset: int, at_end: bool, is_object: bool = False) -> _Tag:
        """Return a tag, and how much white space is next to it in the source.

        Where the source has no white space, a tag at the end of a word precedes it all, and another follows it all.
        """
        index = bisect_right(self._spaces, (offset, len(self._text))) - 1
        if index < 0 or self._spaces[index][1] < offset:
            return _Tag(tag, 0 if at_end else sys.maxsize)
        start, end = self._spaces[index]
        spaces = offset - start if offset < end else sys.maxsize
        return _Tag(tag, spaces, is_object and start < offset, is_object and offset < end)
