"""Files: text, HTML, subtitles, and archives of XML such as office documents and books, encoded in UTF-8."""

import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from io import BytesIO
from pathlib import PurePath, PurePosixPath
from typing import Final, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from regard.errors import DataError
from regard.serving.documents.html import parse_html, parse_xhtml
from regard.serving.documents.office import OPEN_DOCUMENT, PRESENTATION, WORD, OfficeDocument
from regard.serving.documents.subtitles import SubtitleDocument
from regard.serving.documents.text import Document, Translation, parse_text
from regard.serving.documents.xml import check_xml


class Format(NamedTuple):
    """A format of files.

    Attributes:
        media_type: The MIME type.
        parse: Finds the sentences of a text in a language, with at most a number of characters.
        members: Matches the names of the members of an archive that contain text. Empty if the file is not an archive.
    """

    media_type: str
    parse: Callable[[str, str, int], Document[str]]
    members: str = ""


_OPEN_DOCUMENT_MEMBERS = r"(content|styles)\.xml"
_parse_open_document = partial(OfficeDocument, dialect=OPEN_DOCUMENT)

FILE_FORMATS: Final = {
    ".docx": Format(
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        partial(OfficeDocument, dialect=WORD),
        r"word/(document|endnotes|footer|footnotes|header)\d*\.xml",
    ),
    ".epub": Format("application/epub+zip", parse_xhtml, r"(?!META-INF/).*\.(x?html?|ncx)"),
    ".htm": Format("text/html", parse_html),
    ".html": Format("text/html", parse_html),
    ".odp": Format("application/vnd.oasis.opendocument.presentation", _parse_open_document, _OPEN_DOCUMENT_MEMBERS),
    ".ods": Format("application/vnd.oasis.opendocument.spreadsheet", _parse_open_document, _OPEN_DOCUMENT_MEMBERS),
    ".odt": Format("application/vnd.oasis.opendocument.text", _parse_open_document, _OPEN_DOCUMENT_MEMBERS),
    ".pptx": Format(
        "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        partial(OfficeDocument, dialect=PRESENTATION),
        r"ppt/(diagrams/(data|drawing)|notesSlides/notesSlide|slides/slide)\d+\.xml",
    ),
    ".srt": Format("application/x-subrip", SubtitleDocument),
    ".txt": Format("text/plain", parse_text),
}

MAX_BYTES: Final = 10 << 20
"""The maximum size of a file, and of the text in an archive."""

MAX_UNPACKED: Final = 100 << 20
"""The maximum size of an archive after decompression."""


class File:
    """A file that was read: the texts in it, and the function that puts their translations in place of them."""

    def __init__(self, form: Format, texts: Sequence[str], pack: Callable[[Sequence[str]], bytes]) -> None:
        self._format, self._texts, self._pack = form, texts, pack

    @property
    def sample(self) -> str:
        """The start of the text, without tags, to detect its language."""
        return re.sub(r"<[^<>]*>|\s+", " ", "\n".join(self._texts))[:10_000]

    def parse(self, language: str, limit: int) -> "FileDocument":
        """Find the sentences, with at most `limit` characters."""
        return FileDocument([self._format.parse(text, language, limit) for text in self._texts], self._pack)


class FileDocument(Document[bytes]):
    """The texts of a file."""

    def __init__(self, documents: Sequence[Document[str]], pack: Callable[[Sequence[str]], bytes]) -> None:
        self._documents, self._pack = documents, pack
        self.sentences = tuple(sentence for document in documents for sentence in document.sentences)
        self.needs_links = any(document.needs_links for document in documents)

    def join(self, translations: Sequence[Translation]) -> bytes:
        assert len(translations) == len(self.sentences)
        rest = iter(translations)
        return self._pack([each.join([next(rest) for _ in each.sentences]) for each in self._documents])


def read_file(name: str, content: bytes) -> File:
    """Read a file, whose format is that of its name.

    Raises:
        DataError: The format is not supported, or the file is damaged, too large or not encoded in UTF-8.
    """
    form = FILE_FORMATS.get(PurePath(name).suffix.lower())
    if form is None:
        extension = PurePath(name).suffix
        raise DataError(f"{name}: the format '{extension}' is not supported. Use one of {', '.join(FILE_FORMATS)}.")
    _check_size(name, len(content), MAX_BYTES)
    if form.members:
        return _read_archive(name, content, form)
    text, encode = _read_text(name, content, is_html=form.parse is parse_html)
    return File(form, [text], lambda texts: encode(texts[0]))


def _check_size(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise DataError(f"{name} has {size:,} bytes. The maximum is {limit:,}. Split the file.")


def _read_text(name: str, content: bytes, *, is_html: bool = False) -> tuple[str, Callable[[str], bytes]]:
    """Return a text, and a function that encodes its translation. A byte order mark at its start is kept.

    HTML in ASCII that does not declare that it is UTF-8 stays ASCII: other characters become references, because a
    browser may expect another encoding.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} is not UTF-8: {error.reason} at byte {error.start} (0x{content[error.start]:02x}). "
            "Save the file in the encoding UTF-8."
        ) from None
    declared = re.search(rb"charset\s*=\s*[\"']?\s*utf-?8", content[:1024], re.IGNORECASE)
    encoding = "ascii" if is_html and content.isascii() and not declared else "utf-8"
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    return text.removeprefix(mark), lambda joined: (mark + joined).encode(encoding, "xmlcharrefreplace")


def _read_archive(name: str, content: bytes, form: Format) -> File:
    """Read the members of an archive. Those without text are copied unchanged."""
    try:
        with ZipFile(BytesIO(content)) as archive:
            members = archive.infolist()
            _check_members(name, members)
            contents = [archive.read(member) for member in members]
    except (BadZipFile, EOFError, NotImplementedError, OSError, ValueError, zlib.error) as error:
        raise DataError(f"{name} is damaged: {error}. Save it again.") from None
    chosen = [index for index, member in enumerate(members) if re.fullmatch(form.members, member.filename)]
    if not chosen:
        raise DataError(f"{name} contains no text at the places of this format. Save it again in this format.")
    _check_size(f"The text of {name}", sum(len(contents[index]) for index in chosen), MAX_BYTES)
    texts, encodings = [], {}
    for index in chosen:
        path = f"{name}: {members[index].filename}"
        check_xml(path, contents[index])
        text, encodings[index] = _read_text(path, contents[index])
        texts.append(text)

    def pack(translated: Sequence[str]) -> bytes:
        replaced = dict(zip(chosen, translated, strict=True))
        with BytesIO() as file:
            with ZipFile(file, "w") as packed:
                for index, member in enumerate(members):
                    new = encodings[index](replaced[index]) if index in replaced else contents[index]
                    packed.writestr(copy(member), new)
            return file.getvalue()

    return File(form, texts, pack)


def _check_members(name: str, members: Sequence[ZipInfo]) -> None:
    """Raise DataError if an archive is encrypted, too large after decompression, or has unusual members."""
    _check_size(f"{name}, unpacked,", sum(member.file_size for member in members), MAX_UNPACKED)
    names = Counter(member.filename for member in members)
    for member in members:
        path = PurePosixPath(member.filename)
        if member.flag_bits & 1:
            raise DataError(f"{name} is encrypted. Save it without a password.")
        if member.compress_type not in {ZIP_STORED, ZIP_DEFLATED}:
            raise DataError(f"{name}: {path} is compressed with an unknown method. Save the file again.")
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename or names[member.filename] > 1:
            raise DataError(f"{name}: the name of its member '{path}' is not valid. Save the file again.")
