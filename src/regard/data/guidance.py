"""Guided alignment: word alignments of training pairs, as distributions over source tokens that supervise an attention.

Word links are expanded to tokens: a target token is linked to all tokens of the source words that its word is linked
to. B rows, T target tokens, S source tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.cache import cache_key, get_or_build
from regard.data.corpora import Corpus
from regard.data.lines import display_name, hash_file
from regard.data.pharaoh import Links, format_links, read_alignments
from regard.data.ragged import Ids, Ragged, RaggedFile, map_ragged
from regard.data.tokens.segmentation import SampledSide
from regard.data.tokens.tokenizers import Tokenizer, index_pretokenized, index_words
from regard.errors import DataError
from regard.formatting import quantity

_FORMAT = 1
"""The version of the cache format; increase it when the content of entries changes."""

_CHUNK = 10_000
"""The number of pairs that are tokenized at a time."""

_MAX_WORDS = 1 << 31

_SIDES = ("source", "target")


class AlignmentFile(NamedTuple):
    """A file of word alignments in Pharaoh format, with a line for each pair of the training files; and whether the
    step that reads a token is supervised, instead of the step that predicts it.
    """

    path: str
    one_based: bool = False
    shift: bool = False

    def hash(self) -> str:
        return hash_file(self.path)


@final
@dataclass(frozen=True, eq=False)
class SampledTokenWords:
    """The word of each token (1 + its index; 0 for white space), if segmentations differ between epochs."""

    pretokenized: Ragged
    """The word of each pre-tokenized word."""
    side: SampledSide

    def take(self, rows: Sequence[int], epoch: int = 0) -> Ragged:
        return self.side.repeat_for_tokens(self.pretokenized, rows, epoch)


@final
@dataclass(frozen=True, eq=False)
class EncodedAlignments:
    """The word of each token of training pairs (1 + its index; 0 for white space), and the links between words.

    Row n of `links` contains the source and target word of each link, alternately.
    """

    source_words: Ragged | SampledTokenWords
    target_words: Ragged | SampledTokenWords
    links: Ragged
    shift: bool = False
    """Whether the row of a token is that of the step that reads it: one later than the step that predicts it."""

    def batch(self, rows: Sequence[int], source_width: int, target_width: int, epoch: int = 0) -> torch.Tensor:
        """Return the distribution over source tokens for each target token (B, T, S); zeros if it is not linked."""
        sources, targets = self.source_words.take(rows, epoch), self.target_words.take(rows, epoch)
        weights_BTS = np.zeros((len(rows), target_width, source_width), np.float32)
        for index, row in enumerate(rows):
            expanded_TS = _expand(sources[index], targets[index], self.links[row])[: target_width - self.shift]
            tokens, slots = expanded_TS.shape
            weights_BTS[index, self.shift : self.shift + tokens, :slots] = expanded_TS
        return torch.from_numpy(weights_BTS)


def _expand(source_words: Ids, target_words: Ids, links: Ids) -> NDArray[np.float32]:
    """Return the distribution over the source tokens of a pair for each target token."""
    source_S, target_T = source_words.astype(np.int64), target_words.astype(np.int64)
    links_L2 = links.astype(np.int64).reshape(-1, 2)
    words = np.zeros((target_T.max(initial=0) + 1, source_S.max(initial=0) + 1), np.float32)
    # Links to words that were truncated are ignored. Word 0 is white space, which is not linked.
    kept = (links_L2[:, 0] + 1 < words.shape[1]) & (links_L2[:, 1] + 1 < words.shape[0])
    words[links_L2[kept, 1] + 1, links_L2[kept, 0] + 1] = 1.0
    linked_TS = words[target_T][:, source_S]
    expanded_TS: NDArray[np.float32] = linked_TS / np.maximum(linked_TS.sum(1, keepdims=True), np.float32(1))
    return expanded_TS


class AlignedSide(NamedTuple):
    """How one side of a corpus was tokenized."""

    tokenizer: Tokenizer
    max_length: int
    sampled: SampledSide | None
    """The rows of the side, if segmentations are sampled."""

    def index_words(self, texts: Sequence[str]) -> Ragged:
        """Return 1 + the index of the word of each token; of each pre-tokenized word if segmentations are sampled."""
        if self.sampled is None:
            tokenized = self.tokenizer.encode(texts)
            indices = [index_words(text, tokens.offsets) for text, tokens in zip(texts, tokenized, strict=True)]
        else:
            indices = index_pretokenized(self.tokenizer, texts)
        end = [0] if self.sampled is not None and self.sampled.has_end else []
        return Ragged.of([*(1 + word for word in row[: self.max_length]), *end] for row in indices)


def prepare_alignments(
    corpus: Corpus, fingerprint: dict[str, str], file: AlignmentFile, sides: Sequence[AlignedSide]
) -> EncodedAlignments:
    """Read the alignments of the training pairs of a corpus, or load them from the cache.

    Raises:
        DataError: The file does not have a line for each row of the training files, or links words that do not exist.
    """
    tokenized = [[side.tokenizer.to_json(), side.max_length, side.sampled is not None] for side in sides]
    key = cache_key(_FORMAT, fingerprint, file.hash(), file.one_based, tokenized)
    folder = get_or_build("alignments", key, lambda draft: _encode(corpus, file, sides, draft))
    source, target = (
        words if side.sampled is None else SampledTokenWords(words, side.sampled)
        for side, words in zip(sides, (map_ragged(folder, name) for name in _SIDES), strict=True)
    )
    return EncodedAlignments(source, target, map_ragged(folder, "links"), file.shift)


def _encode(corpus: Corpus, file: AlignmentFile, sides: Sequence[AlignedSide], folder: Path) -> None:
    with ExitStack() as stack:
        words = [stack.enter_context(RaggedFile(folder, name, _MAX_WORDS)) for name in _SIDES]
        links = stack.enter_context(RaggedFile(folder, "links", _MAX_WORDS))
        pairs = _aligned_pairs(corpus, file)
        while chunk := list(islice(pairs, _CHUNK)):
            texts_by_side = zip(*(pair for pair, _ in chunk), strict=True)
            for written, side, texts in zip(words, sides, texts_by_side, strict=True):
                written.write(side.index_words(texts))
            links.write(Ragged.of([word for link in sorted(linked) for word in link] for _, linked in chunk))


def _aligned_pairs(corpus: Corpus, file: AlignmentFile) -> Iterator[tuple[tuple[str, str], Links]]:
    """Yield each training pair with its links. Rows that are not used for training have a line in the file, too."""
    rows: Iterator[tuple[str, str] | None] = iter(corpus.train) if corpus.train_rows is None else corpus.train_rows()
    alignments = read_alignments(file.path, one_based=file.one_based)
    number = 0
    for number, pair in enumerate(rows, start=1):
        gold = next(alignments, None)
        if gold is None:
            raise _count_error(file, number - 1, number + sum(1 for _ in rows))
        if pair is not None:
            _check_words(file, number, gold.possible, pair)
            yield pair, gold.possible
    surplus = sum(1 for _ in alignments)
    if surplus:
        raise _count_error(file, number + surplus, number)


def _count_error(file: AlignmentFile, lines: int, pairs: int) -> DataError:
    return DataError(
        f"{display_name(file.path)} has {quantity(lines, 'line')}, but the training data has "
        f"{quantity(pairs, 'pair')}. Line n of the alignments must belong to pair n of the training files, including "
        "pairs that are held out: create the alignments again from the same files."
    )


def _check_words(file: AlignmentFile, number: int, links: Links, pair: tuple[str, str]) -> None:
    """Raise an error if a link refers to a word that does not exist."""
    source_words, target_words = (len(text.split()) for text in pair)
    wrong = min((link for link in links if link[0] >= source_words or link[1] >= target_words), default=None)
    if wrong is not None:
        link = format_links([wrong], one_based=file.one_based)
        raise DataError(
            f"{display_name(file.path)}:{number}: the link {link} refers to a word that does not exist: the source has "
            f"{quantity(source_words, 'word')}, the target {target_words:,}. Align the words of the training data, "
            "separated by white space. If they are counted from 1, set training.guided_alignment.one_based=true."
        )
