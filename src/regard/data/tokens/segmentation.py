"""Random segmentations for training: BPE-dropout (Provilkov et al. 2020) and unigram sampling (Kudo 2018).

Words are segmented independently. A table contains several segmentations of each distinct word of a corpus, sampled
once with a generator that is seeded with (seed, word). A hash of (seed, epoch, sentence, position) selects the
segmentation of each word. Training is therefore a pure function of the seed, and a batch costs one gather. The sampling
of the `tokenizers` library cannot be seeded.
"""

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.data.ragged import Ragged, compute_offsets
from regard.data.settings import Sampling
from regard.data.tokens.pretokenization import MAX_WORD_LENGTH, TAB
from regard.data.tokens.tokenizers import END, UNKNOWN, Tokenizer
from regard.data.tokens.vocabularies import BYTES, SPECIALS
from regard.errors import ConfigError
from regard.regular_files import open_regular

Ints = NDArray[np.int64]

_CHUNK = 1 << 16
"""The number of sentences whose tokens are counted at a time."""

END_OF_SENTENCE = ""
"""The last word of every target. Its only segmentation is END."""


@dataclass(frozen=True)
class SegmentationTable:
    """`samples` segmentations of each word: segmentation k of word w is row `w * samples + k`."""

    table: Ragged
    samples: int

    @classmethod
    def sample(cls, tokenizer: Tokenizer, words: Sequence[str], sampling: Sampling, seed: int) -> "SegmentationTable":
        """Sample segmentations of words from `Tokenizer.words`. Those of a word do not depend on the other words."""
        sampler = build_subword_sampler(tokenizer, sampling)
        ids: list[int] = []
        lengths: list[int] = []
        rows: list[tuple[int, ...]]
        for word in words:
            if word == END_OF_SENTENCE:
                rows = [(END,)] * sampling.segmentations
            elif word.startswith(TAB) or len(word) > MAX_WORD_LENGTH:
                # A tag, or the tab between fields, has only one segmentation. Very long words are not sampled, because
                # the time is quadratic in the length of a word.
                rows = [tuple(*tokenizer.segment_words([word]))] * sampling.segmentations
            else:
                rows = sampler.sample(word, sampling.segmentations, _generator(seed, word))
            for row in rows:
                ids.extend(row)
                lengths.append(len(row))
        return cls(
            Ragged(np.array(ids, dtype=np.int32), compute_offsets(np.array(lengths, dtype=np.int64))),
            sampling.segmentations,
        )

    def segment(self, sentences: Ragged, choices: Ints) -> Ragged:
        """Convert sentences of word numbers to ids, with a choice from 0 to `samples` - 1 for each word."""
        rows = sentences.flat.astype(np.int64) * self.samples + choices
        starts = self.table.offsets[rows]
        lengths = self.table.offsets[rows + 1] - starts
        ends = compute_offsets(lengths)
        indices = np.repeat(starts - ends[:-1], lengths) + np.arange(ends[-1])
        return Ragged(self.table.flat[indices], ends[sentences.offsets])

    def count_tokens(self, sentences: Ragged, choices: Ints) -> Ints:
        """Return the number of ids that `segment` returns for each sentence."""
        return np.diff(compute_offsets(self.token_counts(sentences, choices))[sentences.offsets])

    def token_counts(self, sentences: Ragged, choices: Ints) -> Ints:
        """Return the number of ids that `segment` returns for each word of all sentences."""
        rows = sentences.flat.astype(np.int64) * self.samples + choices
        counts: Ints = self.table.offsets[rows + 1] - self.table.offsets[rows]
        return counts

    def mean_lengths(self, sentences: Ragged) -> Ints:
        """Return the average number of tokens of each sentence, rounded up."""
        lengths = np.diff(self.table.offsets).reshape(-1, self.samples).sum(1)
        sums = np.diff(compute_offsets(lengths[sentences.flat])[sentences.offsets])
        return -(-sums // self.samples)

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, ids=self.table.flat, offsets=self.table.offsets, samples=np.int64(self.samples))

    @classmethod
    def load(cls, path: Path) -> "SegmentationTable":
        with open_regular(path) as file, np.load(file, allow_pickle=False) as arrays:
            return cls(Ragged(arrays["ids"], arrays["offsets"]), int(arrays["samples"]))


@dataclass(frozen=True)
class SampledSide:
    """One side of a corpus as word numbers, with a different segmentation in each epoch."""

    words: Ragged
    table: SegmentationTable
    seed: int
    max_length: int
    """The maximum number of tokens of a row, without END."""
    has_end: bool

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def lengths(self) -> Ints:
        """The average number of tokens of each row."""
        return self.table.mean_lengths(self.words)

    def epoch_lengths(self, epoch: int) -> Ints:
        """Return the number of tokens of each row in an epoch. It is computed in chunks to save memory."""
        counts = []
        for start in range(0, len(self), _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, len(self)))
            words = self.words.take(rows)
            counts.append(self.table.count_tokens(words, self._choices(rows, words, epoch)))
        return np.minimum(np.concatenate(counts), self._max_total) if counts else self.lengths

    def take(self, rows: Sequence[int], epoch: int = 0) -> Ragged:
        """Return some rows, with their segmentation in an epoch."""
        words = self.words.take(rows)
        ids = self.table.segment(words, self._choices(np.asarray(rows, dtype=np.int64), words, epoch))
        too_long = ids.lengths > self._max_total
        if too_long.any():
            ids = ids.truncate(self._max_total, None)
            if self.has_end:
                ids.flat[ids.offsets[1:][too_long] - 1] = END
        return ids

    def repeat_for_tokens(self, values: Ragged, rows: Sequence[int], epoch: int) -> Ragged:
        """Repeat each value, one for each word of each sentence, for all tokens of the word in an epoch."""
        words = self.words.take(rows)
        counts = self.table.token_counts(words, self._choices(np.asarray(rows, dtype=np.int64), words, epoch))
        repeated = np.repeat(values.take(rows).flat, counts)
        return Ragged(repeated, compute_offsets(counts)[words.offsets]).truncate(self._max_total, None)

    @property
    def _max_total(self) -> int:
        return self.max_length + self.has_end

    def _choices(self, rows: Ints, words: Ragged, epoch: int) -> Ints:
        return choose_segmentations(self.seed, epoch, rows, words.lengths, self.table.samples)


def number_words(tokenizer: Tokenizer, texts: Sequence[str], numbers: dict[str, int]) -> Ragged:
    """Convert texts to word numbers. A new word is added to `numbers` with the next number."""
    flat: list[int] = []
    lengths = []
    for words in tokenizer.words(texts):
        flat.extend(numbers.setdefault(word, len(numbers)) for word in words)
        lengths.append(len(words))
    return Ragged(np.array(flat, dtype=np.int32), compute_offsets(np.array(lengths, dtype=np.int64)))


def choose_segmentations(seed: int, epoch: int, sentences: Ints, lengths: Ints, samples: int) -> Ints:
    """Return a number below `samples` for each word of each sentence: a hash of (seed, epoch, sentence, position)."""
    start = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)
    keys = _mix(sentences.astype(np.uint64) + start)
    positions = np.arange(int(lengths.sum())) - np.repeat(compute_offsets(lengths)[:-1], lengths)
    hashes = _mix(np.repeat(keys, lengths) + positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    # Scaling the upper bits has a negligible bias, unlike the remainder.
    return ((hashes >> np.uint64(32)) * np.uint64(samples) >> np.uint64(32)).astype(np.int64)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finalizer of SplitMix64 (Steele et al. 2014): every output bit depends on every input bit."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _generator(seed: int, word: str) -> np.random.Generator:
    digest = hashlib.blake2b(word.encode("utf-8"), digest_size=16, key=str(seed).encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


Segmentation = tuple[int, ...]

_UNKNOWN_PENALTY = 10.0
"""The log-probability of an unknown character is this much below that of the rarest token, as in `tokenizers`."""


class SubwordSampler(Protocol):
    """Samples segmentations of a word, with a generator in its initial state."""

    def sample(self, word: str, count: int, generator: np.random.Generator) -> list[Segmentation]: ...


def build_subword_sampler(tokenizer: Tokenizer, sampling: Sampling) -> SubwordSampler:
    model = json.loads(tokenizer.inner.to_str())["model"]
    if model["type"] == "BPE" and sampling.dropout is not None:
        return BPEDropout(model, sampling.dropout)
    if model["type"] == "Unigram" and sampling.alpha is not None:
        return UnigramSampling(model, sampling.alpha)
    raise ConfigError(
        f"Segmentations of a {model['type']} tokenizer cannot be sampled with {sampling}: use dropout for BPE, and "
        "alpha for unigram tokenizers."
    )


class BPEDropout:
    """BPE in which each possible merge is dropped with probability p at each step.

    The best merge that is not dropped has rank k among the possible merges with probability (1 - p) p^k, so that one
    geometric random number selects it. The states of a word are stored while it is sampled.
    """

    def __init__(self, model: Mapping[str, Any], dropout: float) -> None:
        self._vocabulary: dict[str, int] = model["vocab"]
        self._dropout = dropout
        self._byte_fallback, self._fuse_unknown = model["byte_fallback"], model["fuse_unk"]
        index = self._vocabulary
        self._merges = {
            (index[left], index[right]): (rank, index[left + right])
            for rank, (left, right) in reversed(list(enumerate(model["merges"])))
        }
        merged = {left + right for left, right in model["merges"]}
        self._symbols = {token for token in index if len(token) > 1 and token not in merged}

    def sample(self, word: str, count: int, generator: np.random.Generator) -> list[Segmentation]:
        if word in self._symbols:
            return [(self._vocabulary[word],)] * count
        start = _State(self._characters(word))
        if self._dropout == 1 or len(start.ids) == 1:
            return [start.ids] * count
        steps = len(start.ids) - 1
        dropped = (generator.geometric(1 - self._dropout, (count, steps)) - 1).tolist()
        states = {start.ids: start}
        return [self._merge(start, row, states) for row in dropped]

    def _merge(self, state: "_State", dropped: list[int], states: dict[Segmentation, "_State"]) -> Segmentation:
        """Merge tokens until no merge is left. `dropped` is the number of better merges that each step drops."""
        for rank in dropped:
            if state.merges is None:
                state.merges = self._possible_merges(state.ids)
                state.next = [None] * len(state.merges)
            if rank >= len(state.merges):
                break
            following = state.next[rank]
            if following is None:
                _, position, merged = state.merges[rank]
                ids = (*state.ids[:position], merged, *state.ids[position + 2 :])
                following = state.next[rank] = states.setdefault(ids, _State(ids))
            state = following
        return state.ids

    def _possible_merges(self, ids: Segmentation) -> list[tuple[int, int, int]]:
        """Return all possible merges as (rank, position, merged token), the best first."""
        merges = []
        for position in range(len(ids) - 1):
            merge = self._merges.get((ids[position], ids[position + 1]))
            if merge is not None:
                merges.append((merge[0], position, merge[1]))
        return sorted(merges)

    def _characters(self, word: str) -> Segmentation:
        ids: list[int] = []
        for character in word:
            index = self._vocabulary.get(character)
            if index is not None:
                ids.append(index)
            elif self._byte_fallback or not (self._fuse_unknown and ids and ids[-1] == UNKNOWN):
                ids += _encode_unseen(character, self._vocabulary, self._byte_fallback)
        return tuple(ids)


class _State:
    """An intermediate segmentation of a word, its possible merges, and the state after each of them."""

    __slots__ = ("ids", "merges", "next")

    def __init__(self, ids: Segmentation) -> None:
        self.ids = ids
        self.merges: list[tuple[int, int, int]] | None = None
        self.next: list[_State | None] = []


class _Edge(NamedTuple):
    start: int
    token: int
    log_p: float


class UnigramSampling:
    """Samples segmentations with probabilities proportional to p^alpha.

    A forward pass computes the total probability of all paths to each position; a path is then sampled backwards from
    the end.
    """

    def __init__(self, model: Mapping[str, Any], alpha: float) -> None:
        self._vocabulary = {token: index for index, (token, _) in enumerate(model["vocab"])}
        self._byte_fallback = model["byte_fallback"]
        reserved = {*SPECIALS, *BYTES}
        # Symbols and tags have a log-probability of 0. They have only one segmentation.
        self._symbols = {token for token, score in model["vocab"] if score == 0 and token not in reserved}
        subwords = [(token, score) for token, score in model["vocab"] if score != 0]
        self._subwords = {token: (self._vocabulary[token], alpha * score) for token, score in subwords}
        self._max_length = max(len(token) for token, _ in subwords)
        self._unknown = alpha * (min(score for _, score in subwords) - _UNKNOWN_PENALTY)

    def sample(self, word: str, count: int, generator: np.random.Generator) -> list[Segmentation]:
        if word in self._symbols:
            return [(self._vocabulary[word],)] * count
        edges, cumulative = self._lattice(word)
        uniform = generator.random((count, len(word))).tolist()
        return [self._sample_path(word, edges, cumulative, row) for row in uniform]

    def _lattice(self, word: str) -> tuple[list[list[_Edge]], list[list[float]]]:
        """Return the edges that end at each position, and their cumulative probabilities."""
        edges: list[list[_Edge]] = [[]]
        cumulative: list[list[float]] = [[]]
        total = [0.0]
        for end in range(1, len(word) + 1):
            incoming = []
            for start in range(max(0, end - self._max_length), end):
                subword = self._subwords.get(word[start:end])
                if subword is not None:
                    incoming.append(_Edge(start, subword[0], total[start] + subword[1]))
                elif start == end - 1:
                    incoming.append(_Edge(start, UNKNOWN, total[start] + self._unknown))
            highest = max(edge.log_p for edge in incoming)
            sums = list(accumulate(math.exp(edge.log_p - highest) for edge in incoming))
            total.append(highest + math.log(sums[-1]))
            edges.append(incoming)
            cumulative.append([value / sums[-1] for value in sums])
        return edges, cumulative

    def _sample_path(
        self, word: str, edges: list[list[_Edge]], cumulative: list[list[float]], uniform: list[float]
    ) -> Segmentation:
        ids: list[int] = []
        end = len(word)
        unseen = 0
        while end:
            incoming = edges[end]
            if len(incoming) == 1:
                edge = incoming[0]
            else:
                # Because of rounding, the last cumulative probability may be slightly below 1.
                edge = incoming[min(bisect_right(cumulative[end], uniform[end - 1]), len(incoming) - 1)]
            if edge.token == UNKNOWN:
                # Consecutive unknown characters are one token, as in `tokenizers`.
                unseen += 1
            else:
                ids += reversed(_encode_unseen(word[end : end + unseen], self._vocabulary, self._byte_fallback))
                ids.append(edge.token)
                unseen = 0
            end = edge.start
        ids += reversed(_encode_unseen(word[:unseen], self._vocabulary, self._byte_fallback))
        return tuple(reversed(ids))


def _encode_unseen(text: str, vocabulary: Mapping[str, int], byte_fallback: bool) -> list[int]:
    """Encode characters that are not in the vocabulary as bytes, or as one unknown token."""
    if byte_fallback:
        return [vocabulary[BYTES[byte]] for byte in text.encode("utf-8")]
    return [UNKNOWN] if text else []
