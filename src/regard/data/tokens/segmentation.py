"""Segmentations drawn at random for training: BPE-dropout (Provilkov et al. 2020) and unigram sampling (Kudo 2018).

Segmentation happens within words. For each distinct word of a corpus a table holds some segmentations, drawn once by a
generator that (seed, word) begins; which of them a word gets in an epoch is arithmetic on (seed, epoch, sentence,
place). So training with sampled segmentations is a pure function of its seed, and costs one gather for a batch. The
library's own sampling has a random state that cannot be set.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from regard.data.ragged import Ragged, compute_offsets
from regard.data.settings import Sampling
from regard.data.tokens.pretokenization import TAB
from regard.data.tokens.subword_sampling import build_subword_sampler
from regard.data.tokens.tokenizers import END, Tokenizer
from regard.errors import ModelError

Ints = NDArray[np.int64]

_AT_ONCE = 1 << 16
"""Sentences whose segmentations are counted together."""

END_OF_SENTENCE = ""
"""The word that every target ends in: its segmentations are END."""


@dataclass(frozen=True)
class Segmentations:
    """`drawn` segmentations of each of some words: segmentation k of word w is row `w * drawn + k`."""

    table: Ragged
    drawn: int

    @classmethod
    def draw(cls, tokenizer: Tokenizer, words: Sequence[str], sampling: Sampling, seed: int) -> "Segmentations":
        """The words as `Tokenizer.words` gives them; each is drawn by itself, whatever else is in the table."""
        sampler = build_subword_sampler(tokenizer, sampling)
        ids: list[int] = []
        lengths: list[int] = []
        rows: list[tuple[int, ...]]
        for word in words:
            if word == END_OF_SENTENCE:
                rows = [(END,)] * sampling.drawn
            elif word.startswith(TAB):  # a tag, or the tab between fields, has nothing to draw
                rows = [tuple(own) for own in tokenizer.segment_words([word] * sampling.drawn)]
            else:
                rows = sampler.draw(word, sampling.drawn, _generator(seed, word))
            for drawn in rows:
                ids.extend(drawn)
                lengths.append(len(drawn))
        return cls(
            Ragged(np.array(ids, dtype=np.int32), compute_offsets(np.array(lengths, dtype=np.int64))), sampling.drawn
        )

    def segment(self, sentences: Ragged, choices: Ints) -> Ragged:
        """Sentences of word numbers as ids, with a choice from 0 to `drawn` - 1 for each word."""
        rows = sentences.flat.astype(np.int64) * self.drawn + choices
        starts = self.table.offsets[rows]
        lengths = self.table.offsets[rows + 1] - starts
        ends = compute_offsets(lengths)
        places = np.repeat(starts - ends[:-1], lengths) + np.arange(ends[-1])
        return Ragged(self.table.flat[places], ends[sentences.offsets])

    def count(self, sentences: Ragged, choices: Ints) -> Ints:
        """How many ids `segment` makes of each sentence."""
        rows = sentences.flat.astype(np.int64) * self.drawn + choices
        lengths = self.table.offsets[rows + 1] - self.table.offsets[rows]
        return np.diff(compute_offsets(lengths)[sentences.offsets])

    def longest(self, sentences: Ragged) -> Ints:
        """The most tokens that each sentence can have."""
        lengths = np.diff(self.table.offsets).reshape(-1, self.drawn).max(1)
        return np.diff(compute_offsets(lengths[sentences.flat])[sentences.offsets])

    def expected(self, sentences: Ragged) -> Ints:
        """How many tokens each sentence has in the mean, rounded up."""
        lengths = np.diff(self.table.offsets).reshape(-1, self.drawn).sum(1)
        sums = np.diff(compute_offsets(lengths[sentences.flat])[sentences.offsets])
        return -(-sums // self.drawn)

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, ids=self.table.flat, offsets=self.table.offsets, drawn=np.int64(self.drawn))

    @classmethod
    def load(cls, path: Path) -> "Segmentations":
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return cls(Ragged(arrays["ids"], arrays["offsets"]), int(arrays["drawn"]))
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise ModelError(
                f"{path} is no table of segmentations: {error}. Delete it; it can be drawn again."
            ) from None


@dataclass(frozen=True)
class Sampled:
    """One side of a corpus in words, whose segmentation is drawn anew in each epoch."""

    words: Ragged
    table: Segmentations
    seed: int
    longest: int
    """Tokens that a row has at the most; an end behind them stays."""
    ends: bool

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def lengths(self) -> Ints:
        """About how many tokens each row has."""
        return self.table.expected(self.words)

    def epoch_lengths(self, epoch: int) -> Ints:
        """How many tokens each row has as an epoch sees it; worked out for some of the rows at a time."""
        found = []
        for start in range(0, len(self), _AT_ONCE):
            rows = np.arange(start, min(start + _AT_ONCE, len(self)))
            own = self.words.take(rows)
            found.append(self.table.count(own, self._choices(rows, own, epoch)))
        return np.minimum(np.concatenate(found), self._most) if found else self.lengths

    def take(self, rows: Sequence[int], epoch: int = 0) -> Ragged:
        """Some of the rows as an epoch sees them."""
        own = self.words.take(rows)
        found = self.table.segment(own, self._choices(np.asarray(rows, dtype=np.int64), own, epoch))
        over = found.lengths > self._most
        if over.any():
            found = found.truncate(self._most, None)
            if self.ends:
                found.flat[found.offsets[1:][over] - 1] = END
        return found

    @property
    def _most(self) -> int:
        return self.longest + self.ends

    def _choices(self, rows: Ints, own: Ragged, epoch: int) -> Ints:
        return choices(self.seed, epoch, rows, own.lengths, self.table.drawn)


def number_words(tokenizer: Tokenizer, texts: Sequence[str], numbers: dict[str, int]) -> Ragged:
    """Texts as numbers of words; a word that has none yet gets the next in `numbers`, which grows."""
    flat: list[int] = []
    lengths = []
    for words in tokenizer.words(texts):
        flat.extend(numbers.setdefault(word, len(numbers)) for word in words)
        lengths.append(len(words))
    return Ragged(np.array(flat, dtype=np.int32), compute_offsets(np.array(lengths, dtype=np.int64)))


def choices(seed: int, epoch: int, sentences: Ints, lengths: Ints, drawn: int) -> Ints:
    """For each word of each sentence a number below `drawn`: a hash of (seed, epoch, sentence, place of the word)."""
    begin = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)
    keys = _mix(sentences.astype(np.uint64) + begin)
    places = np.arange(int(lengths.sum())) - np.repeat(compute_offsets(lengths)[:-1], lengths)
    drawn_words = _mix(np.repeat(keys, lengths) + places.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    # The upper bits, scaled: unlike a remainder, this favours no number that matters.
    return ((drawn_words >> np.uint64(32)) * np.uint64(drawn) >> np.uint64(32)).astype(np.int64)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele et al. 2014): every bit of the result hangs on every bit of the state."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _generator(seed: int, word: str) -> np.random.Generator:
    digest = hashlib.blake2b(word.encode("utf-8"), digest_size=16, key=str(seed).encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
