"""Learn the vocabulary of a unigram language model (Kudo 2018). It is a deterministic function of the words.

Candidates are frequent substrings of the words. Their probabilities are estimated by expectation maximization over all
segmentations of each word. The quarter of the candidates whose removal decreases the likelihood least is removed, and
this is repeated until the requested number is left. Shapes: W words, P pieces, E edges of the lattice of all words, N
its nodes.
"""

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from regard.data.tokens.pretokenization import MAX_WORD_LENGTH

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MAX_PIECE_LENGTH = 16

_CANDIDATES = 10
"""The number of candidates per requested piece."""

_SHARE_KEPT = 0.75
_EM_STEPS = 2


def learn_pieces(counts: Mapping[str, int], alphabet: Collection[str], size: int) -> list[tuple[str, float]]:
    """Return the pieces with their log-probabilities, the most likely first. They include the alphabet."""
    truncated: Counter[str] = Counter()
    for word, count in counts.items():
        truncated[word[:MAX_WORD_LENGTH]] += count
    words = sorted(truncated)
    counts_W = np.array([truncated[word] for word in words], dtype=np.float64)
    candidates = dict.fromkeys(alphabet, 1) | _find_candidates(truncated, size)
    pieces = sorted(candidates)
    weight_P = np.array([candidates[piece] for piece in pieces], dtype=np.float64)
    lattice = Lattice.of(words, pieces)
    while True:
        for _ in range(_EM_STEPS):
            expected_P = lattice.expected_counts(np.log(weight_P / weight_P.sum()), counts_W)
            # A minimum weight for unused pieces, because some characters of the alphabet may not occur in the words.
            weight_P = np.maximum(expected_P, 1e-3)
        log_p_P = np.log(weight_P / weight_P.sum())
        if len(pieces) <= size:
            break
        # If a piece is removed, its occurrences are segmented in the best other way.
        loss_P = weight_P * (log_p_P - Lattice.of(pieces, pieces, proper=True).best_scores(log_p_P))
        order = np.argsort(-loss_P, kind="stable")[: max(size, int(len(pieces) * _SHARE_KEPT))]
        kept = np.sort(order)
        pieces, weight_P, lattice = [pieces[index] for index in kept], weight_P[kept], lattice.keep(kept, len(pieces))
    return [(pieces[index], float(log_p_P[index])) for index in np.argsort(-log_p_P, kind="stable")]


def _find_candidates(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """Return all characters, and the substrings that occur at least twice and cover the most text, with counts."""
    found: dict[str, int] = {}
    shorter: Collection[str] = ("",)
    for length in range(1, _MAX_PIECE_LENGTH + 1):
        substrings: Counter[str] = Counter()
        for word, count in counts.items():
            for start in range(len(word) - length + 1):
                # A substring is frequent only if its prefix is.
                if word[start : start + length - 1] in shorter:
                    substrings[word[start : start + length]] += count
        shorter = {piece: count for piece, count in substrings.items() if count >= 2 or length == 1}
        found |= shorter
    single = [piece for piece in found if len(piece) == 1]
    long = sorted((piece for piece in found if len(piece) > 1), key=lambda piece: (-found[piece] * len(piece), piece))
    return {piece: found[piece] for piece in (*single, *long[: _CANDIDATES * size])}


@dataclass(frozen=True)
class Lattice:
    """All occurrences of pieces in words. Each one is an edge from its start node to its end node.

    A word of n characters has n + 1 consecutive nodes. Edges are sorted by their start position in the word. No two
    edges with the same start position have the same end node, so that all of them can be added at once.
    """

    piece_E: Ints
    start_E: Ints
    end_E: Ints
    position_E: Ints
    first_W: Ints
    length_W: Ints

    @classmethod
    def of(cls, words: Sequence[str], pieces: Sequence[str], *, proper: bool = False) -> "Lattice":
        """Build the lattice of words; with `proper`, without edges that cover an entire word."""
        number = {piece: index for index, piece in enumerate(pieces)}
        edges = array("q")
        node = 0
        for word in words:
            for start in range(len(word)):
                for end in range(start + 1, min(start + _MAX_PIECE_LENGTH, len(word)) + 1):
                    piece = number.get(word[start:end])
                    if piece is not None and not (proper and end - start == len(word)):
                        edges.extend((piece, node + start, node + end, start))
            node += len(word) + 1
        edges_E4 = np.array(edges, dtype=np.int64).reshape(-1, 4)
        piece_E, start_E, end_E, position_E = edges_E4[np.argsort(edges_E4[:, 3], kind="stable")].T
        length_W = np.array([len(word) for word in words], dtype=np.int64)
        first_W = np.cumsum(length_W + 1) - length_W - 1
        return cls(piece_E, start_E, end_E, position_E, first_W, length_W)

    def keep(self, pieces: Ints, count: int) -> "Lattice":
        """Return the lattice with only the given ones of `count` pieces, renumbered in order."""
        number_P = np.full(count, -1)
        number_P[pieces] = np.arange(len(pieces))
        kept = number_P[self.piece_E] >= 0
        edges = (number_P[self.piece_E[kept]], self.start_E[kept], self.end_E[kept], self.position_E[kept])
        return Lattice(*edges, self.first_W, self.length_W)

    def expected_counts(self, log_p_P: Floats, counts_W: Floats) -> Floats:
        """Return the expected number of uses of each piece, over all segmentations."""
        # A constant factor per character changes nothing, because all segmentations of a word have the same characters.
        # It prevents underflow of products of many small probabilities.
        length_E = self.end_E - self.start_E
        scale = -float(np.average(log_p_P[self.piece_E] / length_E, weights=np.exp(log_p_P[self.piece_E])))
        p_E = np.exp(log_p_P[self.piece_E] + scale * length_E)
        forward_N = np.zeros(int((self.length_W + 1).sum()))
        forward_N[self.first_W] = 1.0
        for edges in self._slices(self.position_E):
            forward_N[self.end_E[edges]] += forward_N[self.start_E[edges]] * p_E[edges]
        backward_N = np.zeros_like(forward_N)
        last_W = self.first_W + self.length_W
        backward_N[last_W] = counts_W / forward_N[last_W]
        by_end = np.argsort(self.position_E + length_E, kind="stable")
        for slice_ in reversed(list(self._slices((self.position_E + length_E)[by_end]))):
            edges = by_end[slice_]
            backward_N[self.start_E[edges]] += backward_N[self.end_E[edges]] * p_E[edges]
        used_E = forward_N[self.start_E] * p_E * backward_N[self.end_E]
        return np.bincount(self.piece_E, used_E, minlength=len(log_p_P)).astype(np.float64)

    def best_scores(self, log_p_P: Floats) -> Floats:
        """Return the log-probability of the most likely segmentation of each word; −∞ if there is none."""
        best_N = np.full(int((self.length_W + 1).sum()), -np.inf)
        best_N[self.first_W] = 0.0
        for edges in self._slices(self.position_E):
            end_E, reached_E = self.end_E[edges], best_N[self.start_E[edges]] + log_p_P[self.piece_E[edges]]
            best_N[end_E] = np.maximum(best_N[end_E], reached_E)
        best_W: Floats = best_N[self.first_W + self.length_W]
        return best_W

    @staticmethod
    def _slices(position_E: Ints) -> Iterator[slice]:
        """Yield the slice of the edges of each position; edges must be sorted by position."""
        if len(position_E):
            bounds = np.searchsorted(position_E, np.arange(position_E[-1] + 2))
            yield from (slice(start, end) for start, end in pairwise(bounds) if start < end)
