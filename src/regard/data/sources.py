"""Source readers, which convert sources as a user passes them into the batches that an encoder reads, and edits of
sources.

Each kind of source has a reader, the only part of the data pipeline that depends on the kind. `TextReader` in
`source_readers.py` reads text.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from regard.config import Settings
from regard.data.corpora import Augment, RawSource
from regard.data.ragged import Ids
from regard.errors import ArgumentTypeError, ConfigError, is_iterable
from regard.formatting import add_article, quantity
from regard.models.contracts import Grid, Source
from regard.quantities import OptionalCount

Span = tuple[int, int]


class SourceItem(ABC):
    """One source, ready to be collated into a batch. Predictions are displayed with its labels."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The name under which the source is displayed: a text itself, or the name of a file."""

    @property
    @abstractmethod
    def length(self) -> int:
        """The length of the source, by which batches are formed. The prediction for a source of length 0 is empty."""

    @property
    def tokens(self) -> list[str]:
        """The tokens of a text, which label the memory slots. Other kinds have none, and their slots are numbered."""
        return []

    @property
    def offsets(self) -> list[Span]:
        """The span of each token in the text."""
        return []

    @property
    def unknown(self) -> list[str]:
        """The parts of the source that have no token in the vocabulary."""
        return []

    @property
    def pixels(self) -> NDArray[np.uint8] | None:
        """The source as an image (height, width, 3), over which attention weights are drawn; None if there is none."""
        return None


class EncodedSources(Protocol):
    """The sources of a corpus, ready to be batched. They may differ between epochs."""

    @property
    def lengths(self) -> Ids:
        """The length of each source, by which batches are formed; approximate if lengths differ between epochs."""

    def epoch_lengths(self, epoch: int) -> Ids: ...

    def __len__(self) -> int: ...

    def batch(self, rows: Sequence[int], epoch: int = 0, *, bucketed_shapes: bool = False) -> Source:
        """Return some sources as a batch on the CPU.

        With `bucketed_shapes`, its widths are rounded up, so that more batches have equal shapes.
        """


class SourceReader(ABC):
    """Reads sources of one kind. Two readers that read in the same way must compare equal."""

    noun: ClassVar[str]
    """The word for a source in messages, after the article "a"."""
    accepts: ClassVar[str]
    """The accepted types of a source, for messages."""

    @abstractmethod
    def is_source(self, value: object) -> bool:
        """Whether a value is one source, and not a list of sources."""

    @abstractmethod
    def read(self, sources: Sequence[RawSource]) -> Sequence[SourceItem]:
        """Read sources for prediction. Raise `DataError` for one that cannot be read.

        If sources are large, an item may hold only what is displayed, and `collate` reads the content.
        """

    @abstractmethod
    def collate(self, items: Sequence[Any]) -> Source:
        """Return items of this reader as a batch on the CPU."""

    @abstractmethod
    def encode(self, sources: Sequence[RawSource]) -> EncodedSources:
        """Prepare the sources of a corpus for training or scoring. They may be read later, batch by batch."""

    @abstractmethod
    def fingerprint(self, source: RawSource) -> str:
        """Return a hash of the content of a source: of the file, if the source is the name of a file."""

    @property
    def vocabulary_size(self) -> int | None:
        """The number of tokens that sources consist of; None if they do not consist of tokens."""
        return None

    def find_unknown(self, sources: Sequence[RawSource]) -> list[list[str]]:
        """Return the parts of each source that have no token in the vocabulary."""
        return [[] for _ in sources]

    def find_problem(self, source: RawSource) -> str | None:
        """Return what is wrong with a source that cannot be read; None if it can be read."""
        del source
        return None

    def edit(self, item: Any, edit: Any, layout: Grid | None) -> SourceItem:
        """Return an item of this reader with a change: a `SourceEdit` for its noun. `layout` is how
        the encoder arranges the slots of the item.
        """
        del item, layout
        raise ConfigError(
            f"{edit.kind} is not supported for sources that {type(self).__name__} reads. Edit the source."
        )

    def is_compatible(self, other: "SourceReader") -> bool:
        """Whether models that were trained with the two readers can read the same batches."""
        return self == other


@final
@dataclass(frozen=True, eq=False)
class LazySources:
    """Sources of equal length that are read when a batch needs them, because they may not all fit into memory."""

    reader: SourceReader
    sources: Sequence[RawSource]
    length: int

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def lengths(self) -> Ids:
        return np.full(len(self.sources), self.length)

    def epoch_lengths(self, epoch: int) -> Ids:
        """Return the lengths, which are the same in every epoch."""
        del epoch
        return self.lengths

    def batch(self, rows: Sequence[int], epoch: int = 0, *, bucketed_shapes: bool = False) -> Source:
        """Read some sources, which are the same in every epoch."""
        del epoch, bucketed_shapes
        return self.reader.collate(self.reader.read([self.sources[row] for row in rows]))


@final
@dataclass(frozen=True, eq=False)
class AugmentedSources:
    """Sources that are changed at random in training. The change is a pure function of the seed, the epoch and the
    index of a pair, so that a resumed run reads the same sources.
    """

    encoded: EncodedSources
    augment: Augment
    seed: int

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def lengths(self) -> Ids:
        return self.encoded.lengths

    def epoch_lengths(self, epoch: int) -> Ids:
        return self.encoded.epoch_lengths(epoch)

    def batch(self, rows: Sequence[int], epoch: int = 0, *, bucketed_shapes: bool = False) -> Source:
        """Return some sources as they are in an epoch."""
        source: Source = self.augment(
            self.encoded.batch(rows, epoch, bucketed_shapes=bucketed_shapes), rows, epoch, self.seed
        )
        return source


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
        accepted = f"Use {name} 0 to {count - 1}, counted from 0." if count else "There is nothing to change."
        raise ConfigError(f"there is no {noun} {index}: {owner} has {quantity(count, noun)}. {accepted}")


def check_source(source: Any, reader: SourceReader) -> None:
    if not reader.is_source(source):
        raise ArgumentTypeError(f"source must be one {reader.noun} ({reader.accepts}), not {type(source).__name__}.")


def check_sources(source: Any, reader: SourceReader) -> tuple[list[RawSource], bool]:
    """Return the sources as a list, and whether `source` is a single source. Raise ArgumentTypeError, with the
    index, for a value that the reader does not accept.
    """
    if reader.is_source(source):
        return [source], True
    noun, accepts = reader.noun, reader.accepts
    if isinstance(source, bytes | Mapping) or not is_iterable(source):
        raise ArgumentTypeError(
            f"source must be {add_article(noun)} ({accepts}) or a list of {noun}s, not {type(source).__name__}."
        )
    sources = list(source)
    check_items("source", sources, reader)
    return sources, False


def check_items(name: str, sources: Iterable[Any], reader: SourceReader) -> None:
    for index, item in enumerate(sources):
        if not reader.is_source(item):
            raise ArgumentTypeError(
                f"{name}[{index}] must be {add_article(reader.noun)} ({reader.accepts}), not {type(item).__name__}."
            )
