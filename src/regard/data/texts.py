"""Text as a source: tokenized, and truncated to a maximum length."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

from regard.data.batching import EncodedTexts, pad, warn_truncated
from regard.data.corpora import RawSource
from regard.data.ragged import Ragged
from regard.data.source_edits import EditedText, TextEdit, check_index
from regard.data.sources import SourceItem, SourceReader, Span
from regard.data.tokens.pretokenization import MARK
from regard.data.tokens.tokenizers import UNKNOWN, TokenizedText, Tokenizer
from regard.formatting import is_encodable, quote
from regard.models.contracts import Grid, Tokens


@final
@dataclass(frozen=True)
class TextItem(SourceItem):
    """A text with its tokens."""

    text: str
    tokenized: TokenizedText
    masked: tuple[Span, ...] = ()
    """The parts of the text whose tokens are replaced with the unknown token."""

    @property
    def label(self) -> str:
        return self.text

    @property
    def length(self) -> int:
        return len(self.tokenized.ids)

    @property
    def offsets(self) -> list[Span]:
        return self.tokenized.offsets

    @property
    def unknown(self) -> list[str]:
        parts = (part for part, token in zip(self._spelled, self.tokenized.ids, strict=True) if token == UNKNOWN)
        return list(dict.fromkeys(parts))

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
        end = self.max_length
        tokenized = self.tokenizer.encode([text if text.strip() else "" for text in sources])
        warn_truncated(sum(len(tokens.ids) > end for tokens in tokenized), end)
        truncated = (TokenizedText(tokens.ids[:end], tokens.texts[:end], tokens.offsets[:end]) for tokens in tokenized)
        return [TextItem(text, tokens) for text, tokens in zip(sources, truncated, strict=True)]

    def find_problem(self, source: RawSource) -> str | None:
        return None if is_encodable(str(source)) else f"{quote(source)} contains bytes that are not UTF-8 text."

    def edit(self, item: TextItem, edit: TextEdit, layout: Grid | None) -> TextItem:
        """Replace, delete or mask a word or token."""
        del layout
        text, masked = edit.apply(EditedText(item.text, item.masked), _find_part(item, edit))
        [read] = self.read([text])
        tokens = read.tokenized
        hidden = [any(start < span[1] and span[0] < end for span in masked) for start, end in tokens.offsets]
        ids = [UNKNOWN if is_hidden else token for token, is_hidden in zip(tokens.ids, hidden, strict=True)]
        return TextItem(text, tokens._replace(ids=ids), masked)

    def collate(self, items: Sequence[TextItem]) -> Tokens:
        return pad([item.tokenized.ids for item in items])

    def encode(self, sources: Sequence[RawSource]) -> EncodedTexts:
        end = self.max_length
        rows = self.tokenizer.ids([text if text.strip() else "" for text in sources])
        warn_truncated(sum(len(ids) > end for ids in rows), end)
        return EncodedTexts(Ragged.of(ids[:end] for ids in rows))

    def fingerprint(self, source: RawSource) -> str:
        return str(source)

    def find_unknown(self, sources: Sequence[RawSource]) -> list[list[str]]:
        return self.tokenizer.find_unknown(sources)

    def is_compatible(self, other: SourceReader) -> bool:
        return isinstance(other, TextReader) and self.tokenizer.to_json() == other.tokenizer.to_json()


def _find_part(item: TextItem, edit: TextEdit) -> Span:
    """Return the span of the word or token that an edit changes."""
    spans = item.offsets
    if edit.unit == "word":
        spans = [span for span, _ in item.tokenized.by_word(item.text)]
    check_index("position", edit.position, len(spans), edit.unit, "the source")
    return spans[edit.position]
