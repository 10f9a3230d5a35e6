"""Translations of sentences with word alignments, and archives, for tests of documents."""

import io
import zipfile
from collections.abc import Mapping

from regard.data.tokens.tokenizers import find_words
from regard.serving.documents.text import Translation


def align(sentence: str, text: str, links: str) -> Translation:
    """Links in Pharaoh format: the index of a word of the sentence, and of one of the translation."""
    source, target = find_words(sentence), find_words(text)
    pairs = [map(int, link.split("-")) for link in links.split()]
    return Translation(text, tuple((source[i], target[j]) for i, j in pairs))


def pack(members: Mapping[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w", method) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return file.getvalue()


def unpack(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}
