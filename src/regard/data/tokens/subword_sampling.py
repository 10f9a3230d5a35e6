"""Samplers of word segmentations: BPE with dropout of merges, and paths through a unigram lattice."""

import json
import math
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np

from regard.data.settings import Sampling
from regard.data.tokens.tokenizers import UNKNOWN, Tokenizer
from regard.data.tokens.vocabularies import BYTES, SPECIALS
from regard.errors import ConfigError

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
