"""Metrics: how good the answers are.

Every measure is a function of sums: a row of statistics for each sentence, and a value of the rows added up. So its
value on any resample of the sentences, and with it a confidence interval, costs no second look at the texts.

N sentences, K statistics, R resamples.
"""

import logging
import math
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.corpora import Pairs
from regard.errors import ConfigError, DataError
from regard.evaluation.settings import (
    Accuracy,
    Bleu,
    CharacterErrorRate,
    Chrf,
    Loss,
    Metric,
    Perplexity,
    References,
    SymbolErrorRate,
    Ter,
    WordErrorRate,
)
from regard.version import __version__

log = logging.getLogger(__name__)

Statistics = NDArray[np.float64]

RESAMPLES = 1_000


@dataclass(frozen=True)
class EvaluationSet:
    """Sources, each with the references that answer it."""

    sources: list[str]
    references: list[list[str]]

    @classmethod
    def of(cls, pairs: Pairs) -> "EvaluationSet":
        return cls(list(pairs.sources), [[target] for target in pairs.targets])

    @classmethod
    def read(cls, sources: Sequence[Any], references: Sequence[Any] | None) -> "EvaluationSet":
        """From lists as users have them: pairs, or sources and for each a reference or a list of them."""
        if references is None:
            if isinstance(sources, str) or any(isinstance(pair, str) or len(pair) != 2 for pair in sources):
                raise ConfigError("Give sources and references, or a list of pairs (source, reference).")
            return cls([source for source, _ in sources], [[reference] for _, reference in sources])
        if isinstance(sources, str) or isinstance(references, str) or len(sources) != len(references):
            raise ConfigError(
                f"There are {len(sources)} sources and {len(references)} references: give two lists, with a reference, "
                "or a list of references, for each source."
            )
        if not all(isinstance(one, str) or one for one in references):
            raise ConfigError("A source has an empty list of references: give at least one for each.")
        return cls(list(sources), [[one] if isinstance(one, str) else list(one) for one in references])

    @property
    def pairs(self) -> Pairs:
        """Each source with each of its references."""
        rows = list(zip(self.sources, self.references, strict=True))
        return Pairs(
            [source for source, references in rows for _ in references],
            [reference for _, references in rows for reference in references],
        )

    def gathered(self, by: References = "by_source") -> dict[int, list[str]]:
        """The references of each line, or of the first line of each source."""
        firsts: dict[str, int] = {}
        shared: dict[int, list[str]] = {}
        for line, (source, references) in enumerate(zip(self.sources, self.references, strict=True)):
            shared.setdefault(firsts.setdefault(source, line), []).extend(references)
        counts = {len(references) for references in shared.values()}
        if by == "by_source" or (by == "auto" and len(counts) == 1 and counts != {1}):
            return shared
        return dict(enumerate(self.references))


@dataclass(frozen=True)
class ModelOutputs:
    """What measures judge by: the answer to each question, and for each pair (−log p, tokens) of its reference."""

    questions: EvaluationSet
    answers: list[str]
    losses_N2: Statistics


@dataclass(frozen=True)
class MetricStatistics:
    """What a measure found: the statistics of each sentence, and the value of any sum of them."""

    statistics_NK: Statistics
    value_of: Callable[[list[float]], float]
    signature: str

    @property
    def value(self) -> float:
        return self.value_of(self.statistics_NK.sum(0).tolist())

    def interval(self, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, float]:
        """Between which values the measure lies on `level` of the resamples of the sentences (Efron 1979; Koehn 2004).

        Two models judged on the same questions are resampled alike.
        """
        generator = np.random.default_rng(seed)
        count = len(self.statistics_NK)
        values_R = [
            self.value_of(self.statistics_NK[generator.integers(count, size=count)].sum(0).tolist())
            for _ in range(resamples)
        ]
        low, high = np.quantile(values_R, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)


def judge(measure: Metric, evidence: ModelOutputs) -> MetricStatistics:
    if not evidence.questions.sources:
        raise DataError("There is no pair to judge a model on. Give at least one source with its reference.")
    return _JUDGES[type(measure)](measure, evidence)


def _loss(measure: Loss | Perplexity, evidence: ModelOutputs) -> MetricStatistics:
    def mean(totals: list[float]) -> float:
        nats = totals[0] / totals[1]
        if measure.kind == "loss":
            return nats
        return math.exp(nats) if nats < 700 else math.inf

    return MetricStatistics(evidence.losses_N2, mean, _signature("token", evidence.questions, "by_line"))


def _exact(measure: Accuracy | WordErrorRate, evidence: ModelOutputs) -> MetricStatistics:
    def share(totals: list[float]) -> float:
        right = totals[0] / totals[1]
        return right if measure.kind == "accuracy" else 100 * (1 - right)

    rows = [
        (_composed(evidence.answers[line]) in map(_composed, references), 1)
        for line, references in evidence.questions.gathered().items()
    ]
    return MetricStatistics(np.array(rows, dtype=np.float64), share, _signature("sequence", evidence.questions))


def _edits(measure: SymbolErrorRate | CharacterErrorRate, evidence: ModelOutputs) -> MetricStatistics:
    def cut(text: str) -> Sequence[str]:
        return _composed(text).split() if measure.kind == "per" else _composed(text)

    def rate(totals: list[float]) -> float:
        edits, length = totals
        return 100 * edits / length if length else 100.0 * bool(edits)

    rows = [
        _to_the_closest(cut(evidence.answers[line]), map(cut, references))
        for line, references in evidence.questions.gathered().items()
    ]
    unit = "symbol" if measure.kind == "per" else "character"
    return MetricStatistics(np.array(rows, dtype=np.float64), rate, _signature(unit, evidence.questions))


def _to_the_closest(answer: Sequence[str], references: Iterable[Sequence[str]]) -> tuple[int, int]:
    """The edits to the closest reference, and its length; of equally close ones the longest."""
    distance, length = min((edit_distance(answer, reference), -len(reference)) for reference in references)
    return distance, -length


def edit_distance(ours: Sequence[Hashable], theirs: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and substitutions between two sequences (Levenshtein 1966).

    A column of the table of distances differs by −1, 0 or 1 from row to row; the rows of a rise and those of a fall
    are the bits of two integers, and a column is worked out from the one before at once (Myers 1999).
    """
    if not ours:
        return len(theirs)
    places: dict[Hashable, int] = {}
    for row, symbol in enumerate(ours):
        places[symbol] = places.get(symbol, 0) | 1 << row
    every, last = (1 << len(ours)) - 1, 1 << len(ours) - 1
    rise, fall, distance = every, 0, len(ours)
    for symbol in theirs:
        equal = places.get(symbol, 0)
        level = (((equal & rise) + rise) ^ rise) | equal | fall
        right_rise, right_fall = fall | every & ~(level | rise), level & rise
        distance += bool(right_rise & last) - bool(right_fall & last)
        right_rise, right_fall = right_rise << 1 | 1, right_fall << 1
        rise, fall = (right_fall | ~(level | right_rise)) & every, right_rise & level & every
    return distance


def _composed(text: str) -> str:
    """The same letters compare equal however their accents are encoded."""
    return unicodedata.normalize("NFC", text)


def _signature(unit: str, questions: EvaluationSet, by: References = "by_source") -> str:
    counts = {len(references) for references in questions.gathered(by).values()}
    several = counts.pop() if len(counts) == 1 else "var"
    composed = "" if unit == "token" else "|norm:nfc"
    return f"nrefs:{several}|unit:{unit}{composed}|version:regard-{__version__}"


def _bleu(measure: Bleu, evidence: ModelOutputs) -> MetricStatistics:
    from sacrebleu.metrics.bleu import BLEU

    # Its own warning of tokenized text would come at every validation: see `note_tokenized`.
    metric = BLEU(measure.lowercase, force=True, tokenize=measure.tokenize, smooth_method=measure.smooth)
    return _by_sacrebleu(metric, evidence, measure.references)


def note_tokenized(questions: EvaluationSet, metrics: Iterable[Metric]) -> None:
    """Say that text which looks tokenized is about to be tokenized again."""
    endings = [
        reference.endswith((" .", " ?", " !")) for references in questions.references for reference in references
    ]
    twice = [measure for measure in metrics if isinstance(measure, Bleu) and measure.tokenize != "none"]
    if twice and sum(endings) > len(endings) / 2:
        log.warning(
            "The references look tokenized, and %s tokenizes them again: bleu:tokenize=none takes them as they are, as "
            "published figures on tokenized text do.",
            twice[0].label,
        )


def _chrf(measure: Chrf, evidence: ModelOutputs) -> MetricStatistics:
    from sacrebleu.metrics.chrf import CHRF

    return _by_sacrebleu(CHRF(word_order=measure.word_order, lowercase=measure.lowercase), evidence, measure.references)


def _ter(measure: Ter, evidence: ModelOutputs) -> MetricStatistics:
    from sacrebleu.metrics.ter import TER

    return _by_sacrebleu(
        TER(normalized=measure.normalized, case_sensitive=measure.case_sensitive), evidence, measure.references
    )


def _by_sacrebleu(metric: Any, evidence: ModelOutputs, by: References) -> MetricStatistics:
    """By the two halves of sacrebleu's `corpus_score`: the statistics of each sentence, and the score of their sum."""
    gathered = evidence.questions.gathered(by)
    most = max(map(len, gathered.values()))
    filled = [references + [None] * (most - len(references)) for references in gathered.values()]
    answers = [evidence.answers[line] for line in gathered]
    rows = metric._extract_corpus_statistics(answers, list(zip(*filled, strict=True)))
    return MetricStatistics(
        np.array(rows, dtype=np.float64),
        lambda totals: float(metric._compute_score_from_stats(totals).score),
        str(metric.get_signature()),
    )


_JUDGES: Mapping[type[Metric], Callable[[Any, ModelOutputs], MetricStatistics]] = {
    Loss: _loss,
    Perplexity: _loss,
    Accuracy: _exact,
    WordErrorRate: _exact,
    SymbolErrorRate: _edits,
    CharacterErrorRate: _edits,
    Bleu: _bleu,
    Chrf: _chrf,
    Ter: _ter,
}
