"""Subtitles in the format SubRip."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from regard.serving.documents.markup import Kind, MarkupDocument, Token
from regard.serving.documents.text import Document, Translation


class SubtitleDocument(Document[str]):
    """Subtitles. Numbers, times and empty lines are copied.

    The lines of a subtitle are translated as one text, unless a line starts with a dash, as in a dialogue. The
    translation has as many lines, of about the same relative lengths.
    """

    def __init__(self, text: str, language: str, limit: int) -> None:
        self._parts: list[str | tuple[MarkupDocument, list[str]]] = []
        for lines, is_text in _find_subtitles(text):
            if is_text:
                joined = " ".join(line.rstrip("\r\n") for line in lines)
                self._parts.append((MarkupDocument(_read_tags(joined), language, limit), lines))
            else:
                self._parts += lines
        documents = [part[0] for part in self._parts if not isinstance(part, str)]
        self.sentences = tuple(sentence for document in documents for sentence in document.sentences)
        self.needs_links = any(document.needs_links for document in documents)

    def join(self, translations: Sequence[Translation]) -> str:
        assert len(translations) == len(self.sentences)
        rest = iter(translations)
        return "".join(
            part
            if isinstance(part, str)
            else _break_lines(part[0].join([next(rest) for _ in part[0].sentences]), part[1])
            for part in self._parts
        )


def _find_subtitles(text: str) -> Iterator[tuple[list[str], bool]]:
    """Return groups of lines, and whether they are text that is to be translated."""
    lines: list[str] = []
    is_text = False
    for line in re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text):
        if lines and (not is_text or not line.strip() or line.lstrip().startswith(("-", "–", "—"))):
            yield lines, is_text
            lines = []
        is_text = is_text and bool(line.strip())
        lines.append(line)
        if not is_text:
            yield lines, False
            lines = []
            is_text = "-->" in line
    if lines:
        yield lines, is_text


_TAG = re.compile(r"<(/?)([a-zA-Z][^\s<>]*)(?:\s[^<>]*)?>|\{\\[^{}]*\}")


def _read_tags(text: str) -> Iterator[Token]:
    end = 0
    for match in _TAG.finditer(text):
        if match.start() > end:
            yield Token("text", text[end : match.start()])
        end = match.end()
        kind: Kind = "void" if match[2] is None else "close" if match[1] else "open"
        yield Token(kind, match[0], (match[2] or "").lower())
    if end < len(text):
        yield Token("text", text[end:])


def _break_lines(text: str, lines: Sequence[str]) -> str:
    """Divide a text into as many lines as the source has, at the spaces nearest to the relative ends of its lines."""
    spaces = [match.start() for match in re.finditer(r"<[^<>]*>|( )", text) if match[1]]
    total = sum(len(line.rstrip("\r\n")) + 1 for line in lines) - 1
    parts: list[str] = []
    start = length = 0
    for line in lines[:-1]:
        content = line.rstrip("\r\n")
        length += len(content)
        ideal = length * len(text) / total
        length += 1
        first, following = bisect_left(spaces, start), bisect_left(spaces, ideal)
        nearest = spaces[max(first, following - 1) : max(first, following) + 1]
        if not nearest:
            break
        end = min(nearest, key=lambda space: abs(space - ideal))
        parts += text[start:end], line[len(content) :]
        start = end + 1
    return "".join((*parts, text[start:], lines[-1][len(lines[-1].rstrip("\r\n")) :]))
