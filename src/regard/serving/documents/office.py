"""Office documents: text in paragraphs of XML.

In OpenDocument, a paragraph is text with inline elements, as in HTML. In Office Open XML, a paragraph consists of runs,
each with its own format: `<w:r><w:rPr><w:b/></w:rPr><w:t>text</w:t></w:r>`. The format of most characters is that of
the paragraph, and runs of another format are inline elements. Their tags end one run and start another:

    <w:p>‹run text›The ‹/text /run› ‹bold run text›red‹/text /run› ‹run text› house.‹/text /run›</w:p>

So wherever a tag is placed, the text around it is in a run. Runs without text are removed at the end.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from regard.serving.documents.html import decode, encode_xml, split_names
from regard.serving.documents.markup import Kind, MarkupDocument, Token
from regard.serving.documents.text import Document, Translation
from regard.serving.documents.xml import Element, read_elements

_MARKS = _START_RUN, _START_TEXT, _END_TEXT, _END_RUN = "\x01\x02\x03\x04"
"""Where tags of runs are. XML cannot contain these characters."""

_EMPTY_RUN = re.compile("\x01[^\x01-\x04]*\x02\x03\x04")


class Dialect(NamedTuple):
    """The elements of a kind of office document, without prefixes. Other elements in a paragraph are copied.

    Attributes:
        paragraphs: Contain text.
        inline: Are part of a sentence, and contain text.
        breaks: End a sentence.
        removed: Describe the source text only, such as where its pages end.
        copied: Are not translated although they contain paragraphs.
        text: The start of the tag of the text in a run, without prefix. Empty if paragraphs contain text.
    """

    paragraphs: frozenset[str]
    inline: frozenset[str]
    breaks: frozenset[str]
    removed: frozenset[str]
    copied: frozenset[str] = frozenset()
    text: str = ""


OPEN_DOCUMENT = Dialect(
    paragraphs=split_names("h p"),
    inline=split_names("a meta span"),
    breaks=split_names("line-break tab"),
    removed=split_names("soft-page-break"),
    copied=split_names("annotation tracked-changes"),
)

WORD = Dialect(
    paragraphs=split_names("p"),
    inline=split_names("hyperlink ins moveTo smartTag"),
    breaks=split_names("br cr ptab sdt sdtContent tab"),
    removed=split_names("lastRenderedPageBreak proofErr rPr"),
    text='t xml:space="preserve"',
)

PRESENTATION = WORD._replace(text="t")


class OfficeDocument(Document[str]):
    """The XML of an office document."""

    def __init__(self, source: str, language: str, limit: int, dialect: Dialect) -> None:
        tokens = _Reader(source, dialect).read()
        self._document = MarkupDocument(tokens, language, limit, decode, encode_xml)
        self.sentences, self.needs_links = self._document.sentences, self._document.needs_links
        found = _PARAGRAPH.search(source)
        prefix = found[1] if found else ""
        tags = f"<{prefix}r>", f"<{prefix}{dialect.text}>", f"</{prefix}t>", f"</{prefix}r>"
        self._tags = dict(zip(map(ord, _MARKS), tags, strict=True))

    def join(self, translations: Sequence[Translation]) -> str:
        markup = _EMPTY_RUN.sub("", self._document.join(translations))
        return markup.replace(_START_TEXT + _END_TEXT, "").translate(self._tags)


_PARAGRAPH = re.compile(r"<([^\s<>/:]+:|)p[\s/>]")
_NUMBER = re.compile(r'\soffice:value-type="(?!string")')
"""An attribute of cells that contain a number or a date. Their text is computed from it."""

_FIELD = re.compile(r'fldCharType="(begin|end)"')
_CHECKED = re.compile(r'\s(?:dirty|err|smtClean)="[^"]*"')
"""Attributes of a format that record what was checked for spelling."""


class _Reader:
    """Divides the XML of an office document into tokens."""

    def __init__(self, source: str, dialect: Dialect) -> None:
        self._source, self._dialect = source, dialect

    def read(self) -> Iterator[Token]:
        return self._read_blocks(read_elements(self._source, self._dialect.paragraphs))

    def _read_blocks(self, parent: Element) -> Iterator[Token]:
        """Read what is not in a paragraph."""
        for child in parent.children:
            is_paragraph = child.name in self._dialect.paragraphs
            opening, closing = self._read_tags(child)
            is_copied = child.name in self._dialect.copied or _NUMBER.search(opening)
            if is_copied or not (is_paragraph or child.has_paragraphs):
                yield Token("break", self._source[child.start : child.end])
                continue
            formats = Counter[str]()
            for run in self._find_runs(child) if is_paragraph else ():
                formats[self._read_format(run)] += sum(
                    each.inner_end - each.inner_start for each in self._find_texts(run)
                )
            if formats:
                start, end = _start_run(formats.most_common(1)[0][0]), _END_TEXT + _END_RUN
                yield Token("break", opening + start)
                yield from self._read_inline(child, end, start)
                yield Token("break", end + closing)
            else:
                has_text = is_paragraph and not self._dialect.text
                yield Token("break", opening)
                yield from self._read_inline(child, "", "") if has_text else self._read_blocks(child)
                yield Token("break", closing)

    def _read_tags(self, element: Element) -> tuple[str, str]:
        return self._source[element.start : element.inner_start], self._source[element.inner_end : element.end]

    def _find_runs(self, parent: Element) -> Iterator[Element]:
        """Return the runs of a paragraph that contain text."""
        for child in parent.children:
            if self._find_texts(child):
                yield child
            elif child.name in self._dialect.inline | self._dialect.breaks:
                yield from self._find_runs(child)

    def _find_texts(self, run: Element) -> list[Element]:
        return [child for child in run.children if run.name == "r" and self._is_text(child)]

    def _is_text(self, element: Element) -> bool:
        return (
            self._dialect.text != ""
            and element.name == "t"
            and all(child.name == "#text" for child in element.children)
        )

    def _read_format(self, run: Element) -> str:
        found = "".join(self._source[each.start : each.end] for each in run.children if each.name == "rPr")
        return _CHECKED.sub("", found)

    def _read_inline(self, parent: Element, end: str, start: str) -> Iterator[Token]:
        """Read a part of a paragraph. Markup in it is preceded by `end`, and followed by `start`."""
        dialect = self._dialect
        for child in parent.children:
            name, raw = child.name, self._source[child.start : child.end]
            opening, closing = self._read_tags(child)
            if name == "#text" and not dialect.text:
                yield Token("text", raw)
            elif name == "#text" or name in dialect.removed:
                continue
            elif parent.name == "r" and self._is_text(child):
                yield Token("text", self._source[child.inner_start : child.inner_end])
            elif self._find_texts(child):
                run = _start_run(self._read_format(child))
                if run != start:
                    yield Token("open", end + run, name)
                yield from self._read_inline(child, _END_TEXT, _START_TEXT)
                if run != start:
                    yield Token("close", end + start, name)
            elif child.has_paragraphs and name not in dialect.copied:
                yield Token("break", end + opening)
                yield from self._read_blocks(child)
                yield Token("break", closing + start)
            elif child.children and name in dialect.inline | dialect.breaks:
                is_break = name in dialect.breaks
                yield Token("break" if is_break else "open", end + opening + start, name)
                yield from self._read_inline(child, end, start)
                yield Token("break" if is_break else "close", end + closing + start, name)
            else:
                yield Token(self._find_kind(child, raw), end + raw + start, "field")

    def _find_kind(self, element: Element, raw: str) -> Kind:
        """Return the kind of an element without text. The start and the end of a field are the tags of an element."""
        names = {element.name, *(child.name for child in element.children)}
        if names & self._dialect.breaks or element.name.endswith("Pr"):
            return "break"
        match _FIELD.findall(raw):
            case ["begin"]:
                return "open"
            case ["end"]:
                return "close"
            case _:
                return "void"


def _start_run(properties: str) -> str:
    return _START_RUN + properties + _START_TEXT
