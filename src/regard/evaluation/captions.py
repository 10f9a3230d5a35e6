"""Metrics of captions, as the COCO caption evaluation computes them (Chen et al. 2015): tokenization, ROUGE-L, CIDEr-D.

The definitions are those of its implementation, https://github.com/tylin/coco-caption.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

Words = Sequence[str]

MAX_ORDER = 4
"""CIDEr-D compares n-grams of 1 to 4 words."""

_BETA = 1.2
"""ROUGE-L weights recall β² times as much as precision."""

_SIGMA = 6.0
"""CIDEr-D: standard deviation, in words, of the Gaussian penalty on a difference in length."""

_SCALE = 10.0

_TOKEN = re.compile(
    r"""
    (?<!\S)'(?:s|re|ve|ll|d|m)(?!\S)   # a contraction that has been split before
    | (?:[^\W\d_]\.){2,}               # an acronym: u.s.
    | \d+(?:[.,:]\d+)+                 # a number with separators
    | \w+(?:[-']\w+)*                  # a word with inner hyphens and apostrophes
    | [^\w\s]                          # any other character
    """,
    re.VERBOSE,
)

_CONTRACTION = re.compile(r"(?<=\w)(n't|'(?:s|re|ve|ll|d|m)|(?<=^can)not)$")

_PUNCTUATION = frozenset("\"'`´.?!,:;-…–—()[]{}“”‘’«»")


def tokenize_caption(text: str) -> list[str]:
    """Split a caption into lowercase words without punctuation, as the COCO caption evaluation does.

    That evaluation runs the Penn Treebank tokenizer of Stanford CoreNLP, which needs Java. These rules give the same
    words for common English: `A dog's ball isn't red.` becomes `a dog 's ball is n't red`.
    """
    text = unicodedata.normalize("NFC", text).lower().replace("’", "'")
    tokens = (token for token in _TOKEN.findall(text) if token not in _PUNCTUATION)
    return [part for token in tokens for part in _CONTRACTION.sub(r" \1", token).split()]


def compute_rouge_l(prediction: Words, references: Sequence[Words]) -> float:
    """Return ROUGE-L (Lin 2004), from 0 to 1: F_β of the longest common subsequence (LCS), with β = 1.2.

    P = LCS / words of the prediction, R = LCS / words of the reference, F = (1 + β²) P R / (R + β² P). As in the COCO
    caption evaluation, P and R are each the largest over the references.
    """
    from rapidfuzz.distance import LCSseq

    if not prediction:
        return float(any(not reference for reference in references))
    common = [(LCSseq.similarity(prediction, reference), len(reference)) for reference in references if reference]
    precision = max((length / len(prediction) for length, _ in common), default=0.0)
    recall = max((length / words for length, words in common), default=0.0)
    if not precision:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


class _Vectors(NamedTuple):
    """The tf-idf weight of each n-gram of a caption, for each n; their norms; and the number of words."""

    weights: list[dict[Words, float]]
    norms: list[float]
    words: int


class CiderScorer:
    """CIDEr-D (Vedantam et al. 2015), from 0 to 10, with the document frequencies of an evaluation set.

    For n = 1 to 4, a caption is a vector of its n-gram counts times log(N / df): N is the number of sources, and df the
    number of sources with the n-gram in one of their references, at least 1. The score is 10 times the cosine of
    prediction and reference, averaged over n and over the references. Weights of the prediction are clipped to those of
    the reference, and a difference of δ words multiplies the score by exp(−δ² / 2σ²), with σ = 6.

    With a single source, every n-gram of the references has df = N, so all scores are 0.
    """

    def __init__(self, references: Sequence[Sequence[Words]]) -> None:
        self._document_frequency = Counter(
            ngram
            for group in references
            for ngram in {ngram for words in group for ngrams in _count_ngrams(words) for ngram in ngrams}
        )
        self._log_documents = math.log(len(references))

    def score(self, prediction: Words, references: Sequence[Words]) -> float:
        predicted = self._weigh(prediction)
        similarities = [_compare(predicted, self._weigh(reference)) for reference in references]
        return _SCALE * sum(similarities) / len(similarities)

    def _weigh(self, words: Words) -> _Vectors:
        weights = [
            {ngram: count * self._inverse_frequency(ngram) for ngram, count in ngrams.items()}
            for ngrams in _count_ngrams(words)
        ]
        return _Vectors(weights, [math.hypot(*ngrams.values()) for ngrams in weights], len(words))

    def _inverse_frequency(self, ngram: Words) -> float:
        return self._log_documents - math.log(max(1, self._document_frequency[ngram]))


def _count_ngrams(words: Words) -> list[Counter[Words]]:
    """Count the n-grams of 1, 2, … words."""
    return [
        Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))
        for order in range(1, MAX_ORDER + 1)
    ]


def _compare(prediction: _Vectors, reference: _Vectors) -> float:
    """Return the clipped cosine, averaged over n, times the penalty on a difference in length."""
    cosines = 0.0
    for order in range(MAX_ORDER):
        norm = prediction.norms[order] * reference.norms[order]
        if norm:
            expected = reference.weights[order]
            clipped = (
                min(weight, expected[ngram]) * expected[ngram]
                for ngram, weight in prediction.weights[order].items()
                if ngram in expected
            )
            cosines += sum(clipped) / norm
    difference = prediction.words - reference.words
    return math.exp(-(difference**2) / (2 * _SIGMA**2)) * cosines / MAX_ORDER
