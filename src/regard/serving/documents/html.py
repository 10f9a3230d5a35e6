"""HTML and XHTML: divide them into tokens without changing a character.

Tokens end where browsers end them (https://html.spec.whatwg.org, 13.2.5). `html.parser` of the standard library is not
used because its time is quadratic in the length of some malformed markup: 60 kB of `<a <a <a …` take a minute.

Tags, comments, attributes and copied elements are kept exactly. Translated text is normalized: character references
become characters, only `&`, `<` and `>` are escaped, and white space inside a sentence becomes one space.
"""

import html
import re
from collections.abc import Iterator

from regard.serving.documents.markup import MarkupDocument, Token
from regard.serving.documents.xml import read_tokens


def split_names(names: str) -> frozenset[str]:
    return frozenset(names.split())


_COPIED = split_names(
    "audio canvas code iframe kbd math noembed noframes object pre rp rt samp script style svg template textarea var "
    "video xmp"
)
"""Elements that are not translated, as those with `translate="no"` or the class `notranslate`."""

_INLINE = split_names(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd label mark math nobr output q rb "
    "rp rt ruby s samp script small span strike strong style sub sup svg template time tt u var wbr"
)
"""Elements that are part of a sentence. All others end it, and so does `<br>`, as a line break of a text does."""

_RAW_TEXT = split_names("iframe noembed noframes script style textarea title xmp")
"""Elements whose content is text: there are no tags in it."""

_VOID = split_names("area base br col embed hr img input link meta source track wbr")
"""Elements without an end tag."""


def parse_html(markup: str, language: str, limit: int) -> MarkupDocument:
    """Find the sentences of HTML, valid or not."""
    return MarkupDocument(_merge_copied(_read_tokens(markup)), language, limit, decode, encode)


def parse_xhtml(markup: str, language: str, limit: int) -> MarkupDocument:
    """Find the sentences of XHTML, in which an element without content may have one tag: `<a/>`."""
    return MarkupDocument(_merge_copied(read_tokens(markup)), language, limit, decode, encode_xml)


_TEXT = re.compile(r"[^<]+|<(?![a-zA-Z/!?])")
_COMMENT = re.compile(r"<!--(?:-?>|.*?--!?>)|<(?:!(?!--)|\?|/(?![a-zA-Z]))[^>]*>", re.DOTALL)
_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)")
_TAG_PART = re.compile(r"""[^>=]+|=\s*(?:"[^"]*"|'[^']*'|[^\s"'>][^\s>]*|(?=>))""")
_RAW_ENDS = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in _RAW_TEXT}


def _read_tokens(markup: str) -> Iterator[Token]:
    """Divide markup into tokens.

    A tag, comment or element with raw text that is not closed is copied with all that follows. So no part is read
    twice, and the time is linear.
    """
    position = 0
    while position < len(markup):
        if match := _TEXT.match(markup, position):
            yield Token("text", match[0])
        elif match := _COMMENT.match(markup, position):
            yield Token("void", match[0])
        if match:
            position = match.end()
            continue
        match = _TAG.match(markup, position)
        end = match.end() if match else len(markup)
        while part := _TAG_PART.match(markup, end):
            end = part.end()
        if match is None or markup[end : end + 1] != ">":
            break
        name, is_end, raw = match[2].lower(), bool(match[1]), markup[position : end + 1]
        is_empty = name in _VOID or (name in {"svg", "math"} and raw.endswith("/>"))
        content_end = _RAW_ENDS[name].search(markup, end) if name in _RAW_TEXT and not is_end else None
        if name in _RAW_TEXT and not is_end and content_end is None:
            break
        yield Token("close" if is_end else "void" if is_empty else "open", raw, name)
        position = end + 1
        if content_end:
            content = markup[position : content_end.start()]
            position = content_end.start()
            if content:
                yield Token("text", content)
    if position < len(markup):
        yield Token("break", markup[position:])


def _merge_copied(tokens: Iterator[Token]) -> Iterator[Token]:
    """Merge each element that is not translated into one token, and mark tags that end a sentence."""
    copied: list[str] = []
    copied_name, depth = "", 0
    for token in tokens:
        kind, raw, name = token
        if depth:
            copied.append(raw)
            depth += ((kind == "open") - (kind == "close")) * (name == copied_name)
            if not depth:
                yield Token("void" if name in _INLINE else "break", "".join(copied))
        elif kind == "open" and (name in _COPIED or _is_not_translated(raw, name)):
            copied, copied_name, depth = [raw], name, 1
        elif not name or (name in _INLINE and not (kind == "close" and name in _VOID)):
            yield token
        else:
            yield Token("break", raw)
    if depth:
        yield Token("break", "".join(copied))


_ATTRIBUTE = re.compile(r"""([^\s=/>]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>]+))?""")


def _is_not_translated(tag: str, name: str) -> bool:
    if "translate" not in tag.lower():
        return False
    for attribute, value in _ATTRIBUTE.findall(tag[1 + len(name) : -1]):
        words = value.strip("\"'").lower().split()
        if (attribute.lower() == "translate" and words == ["no"]) or (
            attribute.lower() == "class" and "notranslate" in words
        ):
            return True
    return False


_LONG_REFERENCE = re.compile(r"&#(?:[0-9]{32,}|[xX][0-9a-fA-F]{32,});?")
"""References of more digits than any character has. Python does not convert numbers of more than 4,300 digits."""


def decode(text: str) -> str:
    """Return the text of markup without tags."""
    return html.unescape(_LONG_REFERENCE.sub("\ufffd", text))


def encode(text: str) -> str:
    """Return the HTML of a text."""
    return html.escape(text, quote=False)


_INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def encode_xml(text: str) -> str:
    """Return the XML of a text, without characters that XML cannot contain."""
    return encode(_INVALID.sub("", text))
