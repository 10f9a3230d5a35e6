"""Files: text, HTML and subtitles, encoded in UTF-8."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from regard.errors import DataError
from regard.serving.documents.html import parse_html
from regard.serving.documents.markup import Kind, MarkupDocument, Token
from regard.serving.documents.text import Document, Translation, parse_text

FILE_FORMATS = {
    ".htm": "text/html",
    ".html": "text/html",
    ".srt": "application/x-subrip",
    ".txt": "text/plain",
}

MAX_BYTES = 10 << 20


class FileDocument(Document):
    """The text of a file. A byte order mark at its start is kept.

    An HTML file in ASCII that does not declare that it is UTF-8 stays ASCII: other characters become references,
    because a browser may expect another encoding.
    """

    def __init__(self, document: Document, content: bytes, is_html: bool) -> None:
        self._document = document
        self.sentences, self.needs_links = document.sentences, document.needs_links
        declared = re.search(rb"charset\s*=\s*[\"']?\s*utf-?8", content[:1024], re.IGNORECASE)
        self._encoding = "ascii" if is_html and content.isascii() and not declared else "utf-8"
        self._mark = b"\xef\xbb\xbf" if content.startswith(b"\xef\xbb\xbf") else b""

    def join(self, translations: Sequence[Translation]) -> str:
        return self._document.join(translations)

    def join_bytes(self, translations: Sequence[Translation]) -> bytes:
        """Return the content of the translated file."""
        return self._mark + self.join(translations).encode(self._encoding, "xmlcharrefreplace")


def parse_file(name: str, content: bytes, language: str, limit: int) -> FileDocument:
    """Find the sentences of a file, whose format is that of its name.

    Raises:
        DataError: The format is not supported, or the file is not valid UTF-8 or too large.
    """
    extension = PurePath(name).suffix.lower()
    if extension not in FILE_FORMATS:
        raise DataError(f"{name}: the format '{extension}' is not supported. Use one of {', '.join(FILE_FORMATS)}.")
    if len(content) > MAX_BYTES:
        raise DataError(f"{name} has {len(content):,} bytes. The maximum is {MAX_BYTES:,}. Split the file.")
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} is not UTF-8: {error.reason} at byte {error.start} (0x{content[error.start]:02x}). "
            "Save the file in the encoding UTF-8."
        ) from None
    is_html = FILE_FORMATS[extension] == "text/html"
    parse = parse_html if is_html else SubtitleDocument if extension == ".srt" else parse_text
    return FileDocument(parse(text, language, limit), content, is_html)


class SubtitleDocument(Document):
    """Subtitles in the format SubRip. Numbers, times and empty lines are copied.

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
