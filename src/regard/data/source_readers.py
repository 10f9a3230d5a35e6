"""The reader of text, which tokenizes it and truncates it to a maximum length, and the registry of source readers.

An encoder declares the kind of source that it reads (`Encoder.source_kind`), and a corpus the kind of its sources. The
default is "text".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from typing import ClassVar, final

from regard.data.batching import EncodedTexts, pad, warn_truncated
from regard.data.corpora import RawSource
from regard.data.images.reader import ImageReader
from regard.data.ragged import Ragged
from regard.data.sources import EditedText, SourceItem, SourceReader, Span, TextEdit, check_index
from regard.data.tokens.pretokenization import MARK
from regard.data.tokens.tokenizers import END, UNKNOWN, TokenizedText, Tokenizer, TokenizerPair
from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import is_encodable, quote
from regard.models.contracts import Grid, Tokens
from regard.models.settings import IMAGE, TEXT, EncoderSettings


@final
@dataclass(frozen=True)
class TextItem(SourceItem):
    """A text with the ids of its tokens. Their texts and spans are computed on first use, because most predictions do
    not need them, and they take longer than the ids.
    """

    text: str
    ids: list[int]
    tokenizer: Tokenizer = field(repr=False)
    masked: tuple[Span, ...] = ()
    """The parts of the text whose tokens are replaced with the unknown token."""

    @cached_property
    def tokenized(self) -> TokenizedText:
        [tokens] = self.tokenizer.encode([_strip_blank(self.text)])
        texts, offsets = (self.tokenizer.truncate(part, self.length) for part in (tokens.texts, tokens.offsets))
        return TokenizedText(self.ids, texts, offsets)

    @property
    def label(self) -> str:
        return self.text

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def offsets(self) -> list[Span]:
        return self.tokenized.offsets

    @property
    def unknown(self) -> list[str]:
        if UNKNOWN not in self.ids:
            return []
        spans = (span for span, token in zip(self.offsets, self.ids, strict=True) if token == UNKNOWN)
        return list(dict.fromkeys(self.text[slice(*span)] for span in spans if not self.is_masked(span)))

    def is_masked(self, span: Span) -> bool:
        """Whether the token at this span is replaced with the unknown token."""
        return any(start < span[1] and span[0] < end for start, end in self.masked)

    @property
    def tokens(self) -> list[str]:
        """The tokens as they are spelled in the text, with the word-start mark of the vocabulary.

        An unknown token has no text in the vocabulary. In a vocabulary with marks, it starts a word if it is the first
        token after a space.
        """
        tokenized = self.tokenized
        has_marks = any(text.startswith(MARK) for text in tokenized.texts)
        labels = []
        before = ""
        for token, text, spelling, (start, _) in zip(
            tokenized.ids, tokenized.texts, self._spelled, tokenized.offsets, strict=True
        ):
            if token == END:
                labels.append(text)
                continue
            if token == UNKNOWN:
                first = before != MARK and (start == 0 or self.text[start - 1].isspace())
                starts = has_marks and first and not spelling.isspace()
            else:
                starts = text.startswith(MARK)
            before = text
            has_mark = spelling.startswith(MARK)  # the text contains the mark itself
            labels.append(MARK + spelling.strip() if starts and not has_mark else spelling)
        return labels

    @cached_property
    def _spelled(self) -> list[str]:
        """The part of the text that each token covers."""
        return [self.text[start:end] for start, end in self.tokenized.offsets]


@final
@dataclass(frozen=True)
class TextReader(SourceReader):
    """Tokenizes texts, and truncates them to `max_length` tokens with a warning.

    White space alone has no tokens, because training drops such sources.
    """

    noun: ClassVar[str] = "text"
    accepts: ClassVar[str] = "str"

    tokenizer: Tokenizer
    max_length: int

    @property
    def vocabulary_size(self) -> int:
        return len(self.tokenizer)

    def is_source(self, value: object) -> bool:
        return isinstance(value, str)

    def read(self, sources: Sequence[RawSource]) -> list[TextItem]:
        return [TextItem(text, ids, self.tokenizer) for text, ids in zip(sources, self._encode(sources), strict=True)]

    def find_problem(self, source: RawSource) -> str | None:
        return None if is_encodable(str(source)) else f"{quote(source)} contains bytes that are not UTF-8 text."

    def edit(self, item: TextItem, edit: TextEdit, layout: Grid | None) -> TextItem:
        """Replace, delete or mask a word or token."""
        del layout
        text, masked = edit.apply(EditedText(item.text, item.masked), _find_part(item, edit))
        [read] = self.read([text])
        edited = replace(read, masked=masked)
        ids = [UNKNOWN if edited.is_masked(span) else token for span, token in zip(read.offsets, read.ids, strict=True)]
        return replace(edited, ids=ids)

    def collate(self, items: Sequence[TextItem]) -> Tokens:
        return pad([item.ids for item in items])

    def encode(self, sources: Sequence[RawSource]) -> EncodedTexts:
        return EncodedTexts(Ragged.of(self._encode(sources)))

    def _encode(self, sources: Sequence[RawSource]) -> list[list[int]]:
        rows = self.tokenizer.ids([_strip_blank(text) for text in sources])
        warn_truncated(sum(len(ids) > self.max_length for ids in rows), self.max_length)
        return [self.tokenizer.truncate(ids, self.max_length) for ids in rows]

    def fingerprint(self, source: RawSource) -> str:
        return str(source)

    def find_unknown(self, sources: Sequence[RawSource]) -> list[list[str]]:
        return self.tokenizer.find_unknown(sources)

    def is_compatible(self, other: SourceReader) -> bool:
        return isinstance(other, TextReader) and self.tokenizer.to_json() == other.tokenizer.to_json()


def _strip_blank(text: str) -> str:
    """Return a text; an empty one if it consists of white space, which has no tokens."""
    return "" if text.isspace() else text


def _find_part(item: TextItem, edit: TextEdit) -> Span:
    """Return the span of the word or token that an edit changes."""
    spans = item.offsets
    if edit.unit == "word":
        spans = [span for span, _ in item.tokenized.by_word(item.text)]
    check_index("position", edit.position, len(spans), edit.unit, "the source")
    return spans[edit.position]


_READERS: dict[str, Callable[..., SourceReader]] = {IMAGE: ImageReader}


def register_reader(source_kind: str, reader: Callable[..., SourceReader]) -> None:
    """Register the reader of a kind of source: a subclass of `SourceReader`, or a function that builds one.

    It is called with the options of the encoder that it has parameters for. In this way, an option of the encoder can
    also control the preprocessing of its sources.

    >>> regard.register_reader("picture", PictureReader)
    """
    if not isinstance(source_kind, str) or not callable(reader):
        raise ArgumentTypeError(
            f"register_reader expects the name of a kind of source and a class or function, not {source_kind!r} and "
            f"{reader!r}."
        )
    if source_kind in {TEXT, IMAGE}:
        raise ConfigError(
            f"The reader of {source_kind} cannot be replaced. Choose another name for the kind of source."
        )
    _READERS[source_kind] = reader


def find_reader(encoder: EncoderSettings) -> SourceReader | None:
    """Build the reader that an encoder needs; None if it reads text, which needs a tokenizer."""
    if encoder.source_kind == TEXT:
        return None
    if encoder.source_kind not in _READERS:
        raise ConfigError(
            f"The encoder '{encoder.kind}' reads sources of the kind '{encoder.source_kind}', but no reader is "
            "registered for this kind. Register one with regard.register_reader."
        )
    build = _READERS[encoder.source_kind]
    return build(**encoder.options(frozenset(signature(build).parameters)))


def build_reader(encoder: EncoderSettings, tokenizers: TokenizerPair, max_length: int) -> SourceReader:
    """Build the reader that an encoder needs."""
    return find_reader(encoder) or TextReader(tokenizers.source, max_length)
