"""XML: check a document, and read its elements without changing a character."""

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from regard.errors import DataError
from regard.serving.documents.markup import Token

MAX_DEPTH = 200
"""Elements that are nested more deeply are rejected."""


def check_xml(name: str, content: bytes) -> None:
    """Raise DataError unless the content is valid XML in UTF-8, without definitions of entities."""
    parser = expat.ParserCreate(namespace_separator=" ")
    depth = 0

    def check_encoding(_: str, encoding: str | None, __: int) -> None:
        if encoding is not None and encoding.lower() not in {"utf-8", "utf8", "us-ascii", "ascii"}:
            raise DataError(f"{name} has the encoding {encoding}. Save it in UTF-8.")

    def check_doctype(_: str, __: str | None, ___: str | None, has_definitions: int) -> None:
        if has_definitions:
            raise DataError(f"{name} defines entities or elements in its DOCTYPE. Remove the definitions.")

    def enter(_: str, __: object) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            raise DataError(f"{name}: elements are nested more than {MAX_DEPTH} levels deep. Simplify the document.")

    def leave(_: str) -> None:
        nonlocal depth
        depth -= 1

    parser.XmlDeclHandler, parser.StartDoctypeDeclHandler = check_encoding, check_doctype
    parser.StartElementHandler, parser.EndElementHandler = enter, leave
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise DataError(f"{name} is not valid XML: {error}.") from None


_TOKEN = re.compile(
    r"""<!--.*?-->|<\?.*?\?>|<!\[CDATA\[.*?\]\]>|<(/?)([^\s/>]+)(?:[^"'>]+|"[^"]*"|'[^']*')*>|[^<]+""", re.DOTALL
)


def read_tokens(source: str) -> Iterator[Token]:
    """Divide valid XML into tokens. An element without content may be a single token with the kind void."""
    for match in _TOKEN.finditer(source):
        raw, (end, name) = match[0], match.groups()
        if raw[0] != "<":
            yield Token("text", raw)
        elif name is None or name[0] == "!":
            yield Token("void", raw)
        else:
            yield Token("close" if end else "void" if raw.endswith("/>") else "open", raw, name)


@dataclass(slots=True)
class Element:
    """An element, where it is in the document, and what it contains.

    Attributes:
        name: Its name without prefix; `#text` for text, and empty for comments and other markup.
        start: The offset of its start tag.
        inner_start: The offset of its content.
        inner_end: The offset after its content.
        end: The offset after its end tag.
        children: The elements and texts in it.
        has_paragraphs: Whether it contains a paragraph.
    """

    name: str
    start: int
    inner_start: int
    inner_end: int
    end: int
    children: list["Element"] = field(default_factory=list)
    has_paragraphs: bool = False


def read_elements(source: str, paragraphs: Container[str]) -> Element:
    """Return an element that contains those of valid XML. The names of elements that are paragraphs are given."""
    root = Element("", 0, 0, len(source), len(source))
    opened = [root]
    end = 0
    for kind, raw, name in read_tokens(source):
        start, end = end, end + len(raw)
        if kind == "close":
            element = opened.pop()
            element.inner_end, element.end = start, end
            opened[-1].has_paragraphs |= element.has_paragraphs or element.name in paragraphs
            continue
        element = Element("#text" if kind == "text" else name.rpartition(":")[2], start, end, end, end)
        opened[-1].children.append(element)
        if kind == "open":
            opened.append(element)
    return root
