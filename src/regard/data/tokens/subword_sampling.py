"""Segmentations of a word drawn at random: merges that are left out, or paths through the lattice of pieces."""

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
"""How much less likely than the rarest piece a character is that has none, as in the library."""


class Sampler(Protocol):
    """Draws segmentations of a word with a generator that is at its beginning."""

    def draw(self, word: str, drawn: int, generator: np.random.Generator) -> list[Segmentation]: ...


def build_subword_sampler(tokenizer: Tokenizer, sampling: Sampling) -> Sampler:
    model = json.loads(tokenizer.inner.to_str())["model"]
    if model["type"] == "BPE" and sampling.dropout is not None:
        return BPEDropout(model, sampling.dropout)
    if model["type"] == "Unigram" and sampling.alpha is not None:
        return UnigramSampling(model, sampling.alpha)
    raise ConfigError(
        f"Segmentations cannot be drawn from a {model['type']} tokenizer with {sampling}: dropout is for BPE, and "
        "alpha for unigram tokenizers."
    )


class BPEDropout:
    """Merges as BPE does, the best first, but at each step every possible merge is left out with probability p.

    The best merge that is not left out is the first, the second, … with probability (1 - p) p^k: its place among all
    is one geometric number. The states that a word passes through are kept while it is drawn.
    """

    def __init__(self, model: Mapping[str, Any], dropout: float) -> None:
        self._vocabulary: dict[str, int] = model["vocab"]
        self._dropout = dropout
        self._bytes, self._fuses = model["byte_fallback"], model["fuse_unk"]
        number = self._vocabulary
        self._merges = {
            (number[left], number[right]): (rank, number[left + right])
            for rank, (left, right) in reversed(list(enumerate(model["merges"])))
        }
        made = {left + right for left, right in model["merges"]}
        self._whole = {token for token in number if len(token) > 1 and token not in made}

    def draw(self, word: str, drawn: int, generator: np.random.Generator) -> list[Segmentation]:
        if word in self._whole:
            return [(self._vocabulary[word],)] * drawn
        start = _State(self._characters(word))
        if self._dropout == 1 or len(start.ids) == 1:
            return [start.ids] * drawn
        steps = len(start.ids) - 1
        skipped = (generator.geometric(1 - self._dropout, (drawn, steps)) - 1).tolist()
        known = {start.ids: start}
        return [self._walk(start, row, known) for row in skipped]

    def _walk(self, state: "_State", skipped: list[int], known: dict[Segmentation, "_State"]) -> Segmentation:
        for skip in skipped:
            if state.merges is None:
                state.merges = self._possible(state.ids)
                state.after = [None] * len(state.merges)
            if skip >= len(state.merges):
                break
            following = state.after[skip]
            if following is None:
                _, place, merged = state.merges[skip]
                ids = (*state.ids[:place], merged, *state.ids[place + 2 :])
                following = state.after[skip] = known.setdefault(ids, _State(ids))
            state = following
        return state.ids

    def _possible(self, ids: Segmentation) -> list[tuple[int, int, int]]:
        """Every merge that there is, as (rank, place, what it makes), the best first."""
        found = []
        for place in range(len(ids) - 1):
            merge = self._merges.get((ids[place], ids[place + 1]))
            if merge is not None:
                found.append((merge[0], place, merge[1]))
        return sorted(found)

    def _characters(self, word: str) -> Segmentation:
        ids: list[int] = []
        for character in word:
            index = self._vocabulary.get(character)
            if index is not None:
                ids.append(index)
            elif self._bytes or not (self._fuses and ids and ids[-1] == UNKNOWN):
                ids += _unseen(character, self._vocabulary, self._bytes)
        return tuple(ids)


class _State:
    """A word in tokens on its way, the merges that it allows, and where each of them leads."""

    __slots__ = ("after", "ids", "merges")

    def __init__(self, ids: Segmentation) -> None:
        self.ids = ids
        self.merges: list[tuple[int, int, int]] | None = None
        self.after: list[_State | None] = []


class _Edge(NamedTuple):
    start: int
    token: int
    log_p: float


class UnigramSampling:
    """A segmentation is drawn with a probability in proportion to p^alpha, from among all there are.

    The lattice is summed up forwards, and a path is drawn backwards from its end.
    """

    def __init__(self, model: Mapping[str, Any], alpha: float) -> None:
        self._vocabulary = {token: index for index, (token, _) in enumerate(model["vocab"])}
        self._bytes = model["byte_fallback"]
        ours = {*SPECIALS, *BYTES}
        # What is not a piece but a symbol or a tag is certain, and is drawn whole.
        self._whole = {token for token, score in model["vocab"] if score == 0 and token not in ours}
        pieces = [(token, score) for token, score in model["vocab"] if score != 0]
        self._pieces = {token: (self._vocabulary[token], alpha * score) for token, score in pieces}
        self._longest = max(len(token) for token, _ in pieces)
        self._unknown = alpha * (min(score for _, score in pieces) - _UNKNOWN_PENALTY)

    def draw(self, word: str, drawn: int, generator: np.random.Generator) -> list[Segmentation]:
        if word in self._whole:
            return [(self._vocabulary[word],)] * drawn
        edges, shares = self._lattice(word)
        uniform = generator.random((drawn, len(word))).tolist()
        return [self._path(word, edges, shares, row) for row in uniform]

    def _lattice(self, word: str) -> tuple[list[list[_Edge]], list[list[float]]]:
        """The edges that end at each place, and their running shares of what reaches it."""
        edges: list[list[_Edge]] = [[]]
        shares: list[list[float]] = [[]]
        total = [0.0]
        for end in range(1, len(word) + 1):
            here = []
            for start in range(max(0, end - self._longest), end):
                piece = self._pieces.get(word[start:end])
                if piece is not None:
                    here.append(_Edge(start, piece[0], total[start] + piece[1]))
                elif start == end - 1:
                    here.append(_Edge(start, UNKNOWN, total[start] + self._unknown))
            highest = max(edge.log_p for edge in here)
            running = list(accumulate(math.exp(edge.log_p - highest) for edge in here))
            total.append(highest + math.log(running[-1]))
            edges.append(here)
            shares.append([share / running[-1] for share in running])
        return edges, shares

    def _path(
        self, word: str, edges: list[list[_Edge]], shares: list[list[float]], uniform: list[float]
    ) -> Segmentation:
        ids: list[int] = []
        end = len(word)
        unseen = 0
        while end:
            here = edges[end]
            # Rounding may leave the last share a trifle below 1.
            edge = here[0] if len(here) == 1 else here[min(bisect_right(shares[end], uniform[end - 1]), len(here) - 1)]
            if edge.token == UNKNOWN:
                # Characters without a piece that stand together are one, as in the library.
                unseen += 1
            else:
                ids += reversed(_unseen(word[end : end + unseen], self._vocabulary, self._bytes))
                ids.append(edge.token)
                unseen = 0
            end = edge.start
        ids += reversed(_unseen(word[:unseen], self._vocabulary, self._bytes))
        return tuple(reversed(ids))


def _unseen(text: str, vocabulary: Mapping[str, int], by_bytes: bool) -> list[int]:
    """Characters that the vocabulary does not have: their bytes, or one unknown token."""
    if by_bytes:
        return [vocabulary[BYTES[byte]] for byte in text.encode("utf-8")]
    return [UNKNOWN] if text else []
