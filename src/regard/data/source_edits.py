"""Edits of a source: replace, delete or mask a word of a text, or mask cells of an image."""

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal, NamedTuple, final

from pydantic import Field

from regard.config import Settings
from regard.errors import ConfigError
from regard.formatting import quantity
from regard.quantities import OptionalCount

Span = tuple[int, int]


class EditedText(NamedTuple):
    """A text, and the spans whose tokens are replaced with the unknown token."""

    text: str
    masked: tuple[Span, ...] = ()

    def replace(self, span: Span, replacement: str) -> "EditedText":
        """Replace a part of the text. Masked spans after it move with their text."""
        start, end = span
        growth = len(replacement) - (end - start)
        moved = [(left + growth, right + growth) for left, right in self.masked if left >= end]
        masked = (*((left, right) for left, right in self.masked if right <= start), *moved)
        return EditedText(self.text[:start] + replacement + self.text[end:], masked)

    def delete_word(self, span: Span) -> "EditedText":
        """Delete a word with the white space before it; of the first word, with the white space after it. A tag is
        deleted with the semicolon that separates it from another tag.
        """
        start, end = span
        if self.text.startswith(";", end):
            return self.replace((start, end + 1), "")
        before = self.text[:start].removesuffix(";").rstrip()
        if before:
            return self.replace((len(before), end), "")
        # A tab before tags stays.
        return self.replace((start, len(self.text) - len(self.text[end:].lstrip(" "))), "")

    def mask(self, span: Span) -> "EditedText":
        """Replace the tokens of a part with the unknown token."""
        return EditedText(self.text, (*self.masked, span))


class SourceEdit(Settings, ABC):
    """A change of the source, which is encoded again."""

    noun: ClassVar[str]
    """The kind of source that it changes, as a source reader calls it."""


class TextEdit(SourceEdit, ABC):
    """A change of one word or token of a text. Words are separated by white space; a tag is a word."""

    noun: ClassVar[str] = "text"

    position: OptionalCount = Field(description="the index of the word or token, from 0")
    unit: Literal["word", "token"] = "word"

    @abstractmethod
    def apply(self, text: EditedText, span: Span) -> EditedText:
        """Change the part of the text at this span."""


@final
class ReplaceSource(TextEdit):
    """Replace a word or token with a text."""

    kind: Literal["replace_source"] = "replace_source"
    text: Annotated[str, Field(min_length=1)]

    def apply(self, text: EditedText, span: Span) -> EditedText:
        return text.replace(span, self.text)


@final
class DeleteSource(TextEdit):
    """Delete a word or token."""

    kind: Literal["delete_source"] = "delete_source"

    def apply(self, text: EditedText, span: Span) -> EditedText:
        return text.delete_word(span) if self.unit == "word" else text.replace(span, "")


@final
class MaskSource(TextEdit):
    """Replace the tokens of a word, or one token, with the unknown token. The number of tokens does not change."""

    kind: Literal["mask_source"] = "mask_source"

    def apply(self, text: EditedText, span: Span) -> EditedText:
        return text.mask(span)


@final
class MaskRegion(SourceEdit):
    """Fill cells of the grid of an image with the average color of the image."""

    noun: ClassVar[str] = "image"

    kind: Literal["mask_region"] = "mask_region"
    cells: Annotated[tuple[OptionalCount, ...], Field(min_length=1)]


def check_index(name: str, index: int, count: int, noun: str, owner: str) -> None:
    """Raise ConfigError unless 0 ≤ index < count."""
    if index >= count:
        accepted = f"Use {name} 0 to {count - 1}." if count else "There is nothing to change."
        raise ConfigError(f"{name} {index} is out of range: {owner} has {quantity(count, noun)}. {accepted}")
