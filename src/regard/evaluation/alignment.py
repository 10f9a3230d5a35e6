"""Word alignments: from attention weights to links, symmetrization of two directions, and alignment error rate.

T target tokens or words, S source tokens or words.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from regard.config import Settings
from regard.data.pharaoh import GoldLinks, Link, Links, format_links
from regard.errors import ConfigError
from regard.formatting import did_you_mean
from regard.quantities import Heads, Layers, PositiveFraction

FloatArray = NDArray[np.floating]
WordIndices = Sequence[int] | NDArray[np.integer]
"""The index of the word of each token; −1 for a token that is not part of a word."""

Unit = Literal["words", "tokens"]
Method = Literal["argmax", "threshold", "entropy"]
Symmetrization = Literal["intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"]

SYMMETRIZATIONS: tuple[Symmetrization, ...] = get_args(Symmetrization)


class AlignmentSettings(Settings):
    """Which attention weights are used, and how they are converted to links.

    The default is the head that guided alignment supervised, else the average over the heads of the last layer.
    """

    method: Method = Field(
        "argmax",
        description="argmax: link each target word to the source word with the largest weight; threshold: link to all "
        "words with at least this weight; entropy: as argmax, but leave words with spread-out weights unaligned",
    )
    threshold: PositiveFraction = Field(0.2, description="with method threshold: minimum weight of a link")
    max_entropy: PositiveFraction = Field(
        0.7, description="with method entropy: maximum entropy, as a share of that of uniform weights"
    )
    attention: str | None = Field(None, description="name of the attention in the model")
    layer: Layers | None = Field(None, description="instead of attention: number of the layer, counted from 1")
    head: Heads | None = Field(None, description="number of the head, counted from 1; by default the average")
    shift: bool = Field(
        False, description="use the weights of the step that reads a token, not those of the step that predicts it"
    )
    tokens: bool | None = Field(
        None, description="align tokens instead of words; by default if one side of most pairs is a single word"
    )

    def extract_links(self, weights_TS: FloatArray) -> Links:
        """Return the links of weights over words."""
        methods: dict[Method, Callable[[], Links]] = {
            "argmax": lambda: link_largest(weights_TS),
            "threshold": lambda: link_above(weights_TS, self.threshold),
            "entropy": lambda: link_confident(weights_TS, self.max_entropy),
        }
        return methods[self.method]()


class AlignmentOptions(TypedDict, total=False):
    """`AlignmentSettings` as keyword arguments."""

    method: Method
    threshold: float
    max_entropy: float
    attention: str
    layer: int
    head: int
    shift: bool
    tokens: bool | None


class WordAlignment(NamedTuple):
    """The words of a pair, and the links between them. `str` returns the links in Pharaoh format.

    If `unit` is `tokens`, the fields contain tokens of the model instead of words.
    """

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    links: Links
    unit: Unit = "words"

    def __str__(self) -> str:
        return format_links(self.links)

    @property
    def aligned_words(self) -> list[tuple[str, str]]:
        """The source word and the target word of each link."""
        return [(self.source_words[i], self.target_words[j]) for i, j in sorted(self.links)]

    def symmetrize(self, reverse: "WordAlignment", method: Symmetrization) -> "WordAlignment":
        """Combine this alignment with that of a model of the opposite direction, whose source is this target.

        Raises:
            ConfigError: The models split a text into different tokens.
        """
        if (self.source_words, self.target_words) != (reverse.target_words, reverse.source_words):
            raise ConfigError(
                f"The models split a text into different tokens ({' '.join(self.source_words)} and "
                f"{' '.join(reverse.target_words)}; {' '.join(self.target_words)} and "
                f"{' '.join(reverse.source_words)}), so their links cannot be combined. Align words (--words)."
            )
        return self._replace(links=symmetrize(self.links, flip(reverse.links), method))


def merge_words(weights_TS: FloatArray, target_words: WordIndices, source_words: WordIndices) -> FloatArray:
    """Return weights over words, given those over tokens: columns of a word are summed, and its rows are averaged.

    Words without tokens have the weight 0. The result ends with the last word that has tokens.
    """
    targets, sources = np.asarray(target_words, np.int64), np.asarray(source_words, np.int64)
    merged = np.zeros((targets.max(initial=-1) + 1, sources.max(initial=-1) + 1))
    rows, columns = np.flatnonzero(targets >= 0), np.flatnonzero(sources >= 0)
    np.add.at(merged, np.ix_(targets[rows], sources[columns]), weights_TS[np.ix_(rows, columns)])
    counts = np.bincount(targets[rows], minlength=len(merged))
    return merged / np.maximum(counts, 1)[:, None]


def link_largest(weights_TS: FloatArray) -> Links:
    """Link each target word to the source word with the largest weight. A word without weights stays unaligned."""
    if not weights_TS.shape[1]:
        return frozenset()
    largest_T = weights_TS.argmax(1)
    return frozenset((int(i), j) for j, i in enumerate(largest_T) if weights_TS[j, i] > 0)


def link_above(weights_TS: FloatArray, threshold: float) -> Links:
    """Link each target word to all source words with at least this weight."""
    return frozenset((int(i), int(j)) for j, i in np.argwhere(weights_TS >= threshold))


def link_confident(weights_TS: FloatArray, max_entropy: float) -> Links:
    """Link each target word to the source word with the largest weight, unless its weights are spread out.

    The entropy of a row is divided by log S, the entropy of uniform weights. A target word whose entropy is above
    `max_entropy` stays unaligned.
    """
    entropy_T = normalized_entropy(weights_TS)
    return frozenset((i, j) for i, j in link_largest(weights_TS) if entropy_T[j] <= max_entropy)


def normalized_entropy(weights_TS: FloatArray) -> FloatArray:
    """Return the entropy of each row divided by log S: 0 if all weight is on one word, 1 for uniform weights."""
    if weights_TS.shape[1] < 2:
        return np.zeros(len(weights_TS))
    totals_T1 = weights_TS.sum(1, keepdims=True)
    p_TS = weights_TS / np.where(totals_T1 > 0, totals_T1, 1.0)
    entropy_T: FloatArray = -(p_TS * np.log(np.where(p_TS > 0, p_TS, 1.0))).sum(1) / np.log(weights_TS.shape[1])
    return entropy_T


def flip(links: Links) -> Links:
    """Exchange source and target."""
    return frozenset((j, i) for i, j in links)


def symmetrize(forward: Links, backward: Links, method: Symmetrization = "grow-diag-final") -> Links:
    """Combine the alignments of two directions (Koehn et al. 2003). All links are (source word, target word).

    grow-diag starts from the intersection. It adds links of the union that are next to a link, diagonals included, if
    one of their words is not aligned yet. grow-diag-final then adds the other links with an unaligned word, first those
    of `forward`; grow-diag-final-and those with two unaligned words.

    Raises:
        ConfigError: There is no such method.
    """
    if method not in SYMMETRIZATIONS:
        raise ConfigError(
            f"'{method}' is not a symmetrization.{did_you_mean(method, SYMMETRIZATIONS)} Available: "
            f"{', '.join(SYMMETRIZATIONS)}."
        )
    if method == "intersection":
        return forward & backward
    if method == "union":
        return forward | backward
    grown = _AlignedWords(forward & backward)
    _grow_diagonally(grown, forward | backward)
    if method != "grow-diag":
        for links in (forward, backward):
            for link in _in_target_order(links):
                if grown.is_free(link, both=method == "grow-diag-final-and"):
                    grown.add(link)
    return frozenset(grown.links)


class _AlignedWords:
    """A growing set of links, and the words that they align."""

    def __init__(self, links: Links) -> None:
        self.links = set(links)
        self._sources = {i for i, _ in links}
        self._targets = {j for _, j in links}

    def add(self, link: Link) -> None:
        self.links.add(link)
        self._sources.add(link[0])
        self._targets.add(link[1])

    def is_free(self, link: Link, *, both: bool = False) -> bool:
        """Whether one of the words of a link, or each of them, is not aligned."""
        free = link[0] not in self._sources, link[1] not in self._targets
        return all(free) if both else any(free)


_NEIGHBORS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def _grow_diagonally(grown: _AlignedWords, union: Links) -> None:
    """Add neighboring links until none can be added. A link that is added can have neighbors, too."""
    added = True
    while added:
        added = False
        for i, j in _in_target_order(union):
            for across, down in _NEIGHBORS if (i, j) in grown.links else ():
                link = i + across, j + down
                if link in union and link not in grown.links and grown.is_free(link):
                    grown.add(link)
                    added = True


def _in_target_order(links: Links) -> list[Link]:
    return sorted(links, key=lambda link: link[::-1])


class AlignmentScore(NamedTuple):
    """The counts of links from which alignment error rate is computed. The scores of pairs are added.

    With the predicted links A, the sure links S and the possible links P ⊇ S (Och and Ney 2003):

        precision = |A ∩ P| / |A|     recall = |A ∩ S| / |S|     AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)
    """

    predicted: int = 0
    sure: int = 0
    predicted_sure: int = 0
    predicted_possible: int = 0

    @classmethod
    def of(cls, predicted: Links, gold: GoldLinks) -> "AlignmentScore":
        """Return the score of one pair."""
        possible = gold.possible | gold.sure
        return cls(len(predicted), len(gold.sure), len(predicted & gold.sure), len(predicted & possible))

    def __add__(self, other: object) -> "AlignmentScore":
        if not isinstance(other, AlignmentScore):
            return NotImplemented
        return AlignmentScore(*(one + two for one, two in zip(self, other, strict=True)))

    @property
    def precision(self) -> float:
        return self.predicted_possible / self.predicted if self.predicted else 1.0

    @property
    def recall(self) -> float:
        return self.predicted_sure / self.sure if self.sure else 1.0

    @property
    def aer(self) -> float:
        """Alignment error rate, from 0 to 1; lower is better."""
        total = self.predicted + self.sure
        return 1 - (self.predicted_sure + self.predicted_possible) / total if total else 0.0

    def to_json(self) -> dict[str, float]:
        return {
            "aer": self.aer,
            "precision": self.precision,
            "recall": self.recall,
            "links": self.predicted,
            "sure": self.sure,
        }

    def __str__(self) -> str:
        return (
            f"AER {self.aer:.1%}, precision {self.precision:.1%}, recall {self.recall:.1%} "
            f"({self.predicted:,} links, {self.sure:,} sure gold links)"
        )


def score_alignments(predicted: Sequence[Links], gold: Sequence[GoldLinks]) -> AlignmentScore:
    """Return the score of the alignments of a corpus.

    Raises:
        ConfigError: There is not one gold alignment for each pair.
    """
    if len(predicted) != len(gold):
        raise ConfigError(
            f"There are {len(predicted):,} alignments, but {len(gold):,} gold alignments. Pass one for each pair."
        )
    return sum((AlignmentScore.of(*pair) for pair in zip(predicted, gold, strict=True)), AlignmentScore())
