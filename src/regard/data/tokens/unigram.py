"""The vocabulary of a unigram language model of pieces (Kudo 2018): the same words always give the same pieces.

Frequent substrings of the words are candidates. Their probabilities are fitted by expectation maximization over all
segmentations of each word; those whose loss would cost the least likelihood are taken away, a quarter at a time, until
as many are left as are wanted. Letters: W words, P pieces, E edges of the lattice of all words, N its nodes.
"""

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LONGEST = 16
"""Characters of a piece, at most."""

_WORD = 200
"""Characters of a word that are learned from: text without spaces has words as long as its lines."""

_CANDIDATES = 10
"""Candidates for each piece that is wanted."""

_KEPT = 0.75
_ROUNDS = 2


def learn_pieces(counts: Mapping[str, int], alphabet: Collection[str], size: int) -> list[tuple[str, float]]:
    """The pieces with their log-probabilities, the likeliest first; every character of the alphabet is among them."""
    cut: Counter[str] = Counter()
    for word, count in counts.items():
        cut[word[:_WORD]] += count
    words = sorted(cut)
    counts_W = np.array([cut[word] for word in words], dtype=np.float64)
    found = dict.fromkeys(alphabet, 1) | _candidates(cut, size)
    pieces = sorted(found)
    weight_P = np.array([found[piece] for piece in pieces], dtype=np.float64)
    lattice = Lattice.of(words, pieces)
    while True:
        for _ in range(_ROUNDS):
            expected_P = lattice.expected(np.log(weight_P / weight_P.sum()), counts_W)
            # A piece that no segmentation uses keeps a trifle: the alphabet has characters that stand in no word.
            weight_P = np.maximum(expected_P, 1e-3)
        log_p_P = np.log(weight_P / weight_P.sum())
        if len(pieces) <= size:
            break
        # Without a piece, its share of the text would be written in the best of its other segmentations.
        loss_P = weight_P * (log_p_P - Lattice.of(pieces, pieces, proper=True).best(log_p_P))
        order = np.argsort(-loss_P, kind="stable")[: max(size, int(len(pieces) * _KEPT))]
        kept = np.sort(order)
        pieces, weight_P, lattice = [pieces[index] for index in kept], weight_P[kept], lattice.keep(kept, len(pieces))
    return [(pieces[index], float(log_p_P[index])) for index in np.argsort(-log_p_P, kind="stable")]


def _candidates(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """Substrings of the words that occur at least twice, those that cover most text; and every character."""
    found: dict[str, int] = {}
    shorter: Collection[str] = ("",)
    for length in range(1, _LONGEST + 1):
        here: Counter[str] = Counter()
        for word, count in counts.items():
            for start in range(len(word) - length + 1):
                # What is rare is not looked for inside what is longer.
                if word[start : start + length - 1] in shorter:
                    here[word[start : start + length]] += count
        shorter = {piece: count for piece, count in here.items() if count >= 2 or length == 1}
        found |= shorter
    long = sorted((piece for piece in found if len(piece) > 1), key=lambda piece: (-found[piece] * len(piece), piece))
    return {piece: found[piece] for piece in (*filter(_single, found), *long[: _CANDIDATES * size])}


def _single(piece: str) -> bool:
    return len(piece) == 1


@dataclass(frozen=True)
class Lattice:
    """Every place of every piece in every word: an edge from the node where it begins to the node where it ends.

    The nodes of a word of n characters are n + 1 numbers in a row. Edges are held in the order of the place in the
    word where they begin; of those that begin at one place, no two end in the same node, so they are added at once.
    """

    piece_E: Ints
    start_E: Ints
    end_E: Ints
    place_E: Ints
    first_W: Ints
    length_W: Ints

    @classmethod
    def of(cls, words: Sequence[str], pieces: Sequence[str], *, proper: bool = False) -> "Lattice":
        """The lattice of some words; with `proper`, without pieces that are a whole word."""
        number = {piece: index for index, piece in enumerate(pieces)}
        edges = array("q")
        node = 0
        for word in words:
            for start in range(len(word)):
                for end in range(start + 1, min(start + _LONGEST, len(word)) + 1):
                    piece = number.get(word[start:end])
                    if piece is not None and not (proper and end - start == len(word)):
                        edges.extend((piece, node + start, node + end, start))
            node += len(word) + 1
        edges_E4 = np.array(edges, dtype=np.int64).reshape(-1, 4)
        piece_E, start_E, end_E, place_E = edges_E4[np.argsort(edges_E4[:, 3], kind="stable")].T
        length_W = np.array([len(word) for word in words], dtype=np.int64)
        first_W = np.cumsum(length_W + 1) - length_W - 1
        return cls(piece_E, start_E, end_E, place_E, first_W, length_W)

    def keep(self, pieces: Ints, count: int) -> "Lattice":
        """The lattice with only some of so many pieces, numbered anew in their order."""
        number_P = np.full(count, -1)
        number_P[pieces] = np.arange(len(pieces))
        here = number_P[self.piece_E] >= 0
        edges = (number_P[self.piece_E[here]], self.start_E[here], self.end_E[here], self.place_E[here])
        return Lattice(*edges, self.first_W, self.length_W)

    def expected(self, log_p_P: Floats, counts_W: Floats) -> Floats:
        """How often each piece is expected to be used, over all segmentations by their probability."""
        # Every segmentation of a word has the same characters: a factor for each changes nothing, and keeps the
        # products of many small probabilities away from 0.
        length_E = self.end_E - self.start_E
        scale = -float(np.average(log_p_P[self.piece_E] / length_E, weights=np.exp(log_p_P[self.piece_E])))
        p_E = np.exp(log_p_P[self.piece_E] + scale * length_E)
        forward_N = np.zeros(int((self.length_W + 1).sum()))
        forward_N[self.first_W] = 1.0
        for edges in self._places(self.place_E):
            forward_N[self.end_E[edges]] += forward_N[self.start_E[edges]] * p_E[edges]
        backward_N = np.zeros_like(forward_N)
        last_W = self.first_W + self.length_W
        backward_N[last_W] = counts_W / forward_N[last_W]
        by_end = np.argsort(self.place_E + length_E, kind="stable")
        for slice_ in reversed(list(self._places((self.place_E + length_E)[by_end]))):
            edges = by_end[slice_]
            backward_N[self.start_E[edges]] += backward_N[self.end_E[edges]] * p_E[edges]
        used_E = forward_N[self.start_E] * p_E * backward_N[self.end_E]
        return np.bincount(self.piece_E, used_E, minlength=len(log_p_P)).astype(np.float64)

    def best(self, log_p_P: Floats) -> Floats:
        """The log-probability of the likeliest segmentation of each word; minus infinity where there is none."""
        best_N = np.full(int((self.length_W + 1).sum()), -np.inf)
        best_N[self.first_W] = 0.0
        for edges in self._places(self.place_E):
            end_E, reached_E = self.end_E[edges], best_N[self.start_E[edges]] + log_p_P[self.piece_E[edges]]
            best_N[end_E] = np.maximum(best_N[end_E], reached_E)
        best_W: Floats = best_N[self.first_W + self.length_W]
        return best_W

    @staticmethod
    def _places(place_E: Ints) -> Iterator[slice]:
        """The edges of each place, which stand together."""
        if len(place_E):
            bounds = np.searchsorted(place_E, np.arange(place_E[-1] + 2))
            yield from (slice(start, end) for start, end in pairwise(bounds) if start < end)
