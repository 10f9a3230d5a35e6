"""Breakdown: metrics for groups of sentences, F1 of words by their frequency, and the worst sentences.

Sentences are grouped by the length of the source, by its rarest word in the training data, or by the number of its
words that are not in the training data. Words are separated by spaces; punctuation around them is removed.

N rows of statistics.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from regard.data.corpora import RawSource, are_texts
from regard.errors import ConfigError, DataError
from regard.evaluation.metrics import EvaluationSet, MetricStatistics
from regard.evaluation.settings import BreakdownName, Metric
from regard.formatting import quantity, table

FREQUENCIES = (0, 1, 2, 3, 4, 5, 10, 100, 1000)
"""The first frequency of each bucket, as in compare-mt (Neubig et al. 2019)."""

UNSEEN = (0, 1, 2, 3)

_MAX_LENGTH_BUCKETS = 6

_WORDS_PER_SENTENCE = 4
"""If half of the sources have fewer words, length is counted in characters."""

_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¡¿«»“”„‘’‚…–—·。、，！？：；（）「」『』।؟،"


class Bucket(NamedTuple):
    """A range of integers, both ends included. Without an end, it is open."""

    start: int
    end: int | None

    @property
    def label(self) -> str:
        if self.end is None:
            return f"{self.start:,}+"
        return f"{self.start:,}" if self.end == self.start else f"{self.start:,}–{self.end:,}"

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.start <= number and (self.end is None or number <= self.end)


def make_buckets(starts: Sequence[int]) -> list[Bucket]:
    """Return the buckets with these starts; the last one is open."""
    return [*(Bucket(start, following - 1) for start, following in pairwise(starts)), Bucket(starts[-1], None)]


class Grouping(NamedTuple):
    """The lines of an evaluation set in each of some buckets."""

    name: BreakdownName
    title: str
    lines: dict[Bucket, list[int]]


@dataclass(frozen=True)
class WordCounts:
    """How often each word occurs in the sources and in the targets of the training data."""

    source: Counter[str]
    target: Counter[str]

    @classmethod
    def of(cls, pairs: Iterable[tuple[RawSource, str]]) -> "WordCounts":
        source: Counter[str] = Counter()
        target: Counter[str] = Counter()
        for source_text, target_text in pairs:
            source.update(split_words(source_text) if isinstance(source_text, str) else ())
            target.update(split_words(target_text))
        return cls(source, target)


@dataclass(frozen=True)
class GroupValues:
    """The number of sentences in a bucket, and their metrics by label."""

    bucket: Bucket
    sentences: int
    values: dict[str, float]


@dataclass(frozen=True)
class WordScores:
    """Precision, recall and F1, in percent, of the words with a training frequency in a bucket."""

    bucket: Bucket
    reference_words: int
    precision: float
    recall: float

    @property
    def f1(self) -> float:
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


@dataclass(frozen=True)
class Breakdown:
    """Metrics by group of sentences and, for the breakdown by frequency, scores of words."""

    name: BreakdownName
    title: str
    metrics: list[Metric]
    groups: list[GroupValues]
    words: list[WordScores]

    def __str__(self) -> str:
        labels = [metric.label for metric in self.metrics]
        rows = [
            [
                group.bucket.label,
                f"{group.sentences:,}",
                *(metric.format(group.values[metric.label]) for metric in self.metrics),
            ]
            for group in self.groups
        ]
        parts = [table([self.title, "sentences", *labels], rows)] if self.groups else []
        if len(self.groups) == 1:  # a table of one row would repeat the values of all sentences
            bucket, count = self.groups[0].bucket.label, quantity(self.groups[0].sentences, "sentence")
            parts = [f"No breakdown by {self.title}: the only group is {bucket} ({count})."]
        if self.words:
            word_rows = [
                [
                    scores.bucket.label,
                    f"{scores.reference_words:,}",
                    *(f"{value:.2f}" for value in (scores.f1, scores.precision, scores.recall)),
                ]
                for scores in self.words
            ]
            title = "training frequency of target words"
            parts.append(table([title, "words", "F1", "precision", "recall"], word_rows))
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        words = [
            {
                **_bucket_to_json(scores.bucket),
                "reference_words": scores.reference_words,
                "f1": scores.f1,
                "precision": scores.precision,
                "recall": scores.recall,
            }
            for scores in self.words
        ]
        return {
            "by": self.title,
            "groups": [
                {**_bucket_to_json(group.bucket), "sentences": group.sentences, "values": group.values}
                for group in self.groups
            ],
            **({"words": words} if words else {}),
        }


def _bucket_to_json(bucket: Bucket) -> dict[str, Any]:
    return {"from": bucket.start, "to": bucket.end}


@dataclass(frozen=True)
class ScoredSentence:
    """A line of an evaluation set with its prediction, and the sentence-level value of a metric."""

    line: int
    """Counted from 1."""
    source: str
    references: list[str]
    prediction: str | None
    metric: Metric
    value: float

    def __str__(self) -> str:
        lines = [f"line {self.line}: {self.metric.label} {self.metric.format(self.value)}"]
        lines += [f"  source      {self.source}", *(f"  reference   {reference}" for reference in self.references)]
        return "\n".join([*lines, *([] if self.prediction is None else [f"  prediction  {self.prediction}"])])

    def to_json(self) -> dict[str, Any]:
        return {
            "line": self.line,
            "source": self.source,
            "references": self.references,
            "prediction": self.prediction,
            self.metric.label: self.value,
        }


def split_words(text: str) -> list[str]:
    """Split a text at spaces, and remove punctuation around the words. Punctuation by itself is a word."""
    return [token.strip(_PUNCTUATION) or token for token in text.split()]


def group_by_length(evaluation_set: EvaluationSet) -> Grouping:
    """Group lines by the length of the source; by that of the reference, if the sources are not text.

    The length is counted in words, or in characters if half of the texts have fewer than four words.
    """
    texts, side = evaluation_set.sources, "source"
    if not are_texts(texts):
        texts, side = [references[0] for references in evaluation_set.references], "reference"
    words = [len(text.split()) for text in texts]
    in_words = float(np.median(words)) >= _WORDS_PER_SENTENCE
    lengths = words if in_words else [len(text) for text in texts]
    title = f"{side} length in {'words' if in_words else 'characters'}"
    return Grouping("length", title, _assign(lengths, choose_length_buckets(lengths)))


def choose_length_buckets(lengths: Sequence[int]) -> list[Bucket]:
    """Return up to six buckets of equal width, 1, 2 or 5 times a power of ten; the last one includes the longest 5 %.

    >>> [bucket.label for bucket in choose_length_buckets([3, 17, 24, 38])]
    ['1–10', '11–20', '21–30', '31+']
    """
    usual = max(1, float(np.quantile(lengths, 0.95)))
    widths = (factor * 10**power for power in range(9) for factor in (1, 2, 5))
    width = next(width for width in widths if math.ceil(usual / width) <= _MAX_LENGTH_BUCKETS)
    starts = [1 + width * index for index in range(math.ceil(usual / width))]
    return make_buckets([min(1, *lengths), *starts[1:]])


def group_by_rarest_word(evaluation_set: EvaluationSet, counts: WordCounts) -> Grouping:
    """Group lines by the training frequency of the rarest word of the source."""
    frequencies = [
        min((counts.source[word] for word in split_words(text)), default=0) for text in evaluation_set.sources
    ]
    title = "training frequency of the rarest source word"
    return Grouping("frequency", title, _assign(frequencies, make_buckets(FREQUENCIES)))


def group_by_unseen_words(evaluation_set: EvaluationSet, counts: WordCounts) -> Grouping:
    """Group lines by the number of words of the source that are not in the training data."""
    unseen = [sum(not counts.source[word] for word in split_words(text)) for text in evaluation_set.sources]
    return Grouping("unseen", "source words not in the training data", _assign(unseen, make_buckets(UNSEEN)))


def _assign(numbers: Sequence[int], buckets: Sequence[Bucket]) -> dict[Bucket, list[int]]:
    """Return the lines in each bucket that is not empty."""
    lines = {bucket: [line for line, number in enumerate(numbers) if number in bucket] for bucket in buckets}
    return {bucket: members for bucket, members in lines.items() if members}


def find_lines(statistics: MetricStatistics, evaluation_set: EvaluationSet) -> list[int]:
    """Return the line of each row of statistics.

    A metric has a row for each line, for each distinct source (its first line), or for each pair of a source and a
    reference. The number of rows determines which.
    """
    count = len(statistics.statistics_NK)
    by_source = list(evaluation_set.group_references("by_source"))
    pairs = [line for line, references in enumerate(evaluation_set.references) for _ in references]
    for lines in (by_source, list(range(len(evaluation_set.sources))), pairs):
        if len(lines) == count:
            return lines
    raise ConfigError(
        f"A metric has {count} rows of statistics for {len(evaluation_set.sources)} sentences, so it has no breakdown. "
        "Return a row for each sentence in MetricStatistics, or use another metric."
    )


def compute_group_values(
    grouping: Grouping, statistics: Mapping[Metric, MetricStatistics], evaluation_set: EvaluationSet
) -> list[GroupValues]:
    """Compute metrics from the statistics of the sentences in each bucket. A bucket without any is left out."""
    lines = {metric: np.array(find_lines(result, evaluation_set)) for metric, result in statistics.items()}
    groups = []
    for bucket, members in grouping.lines.items():
        values, sentences = {}, 0
        for metric, result in statistics.items():
            selected = np.isin(lines[metric], members)
            sentences = max(sentences, int(selected.sum()))
            sums = result.statistics_NK[selected].sum(0).tolist()
            values[metric.label] = result.compute_value(sums) if selected.any() else math.nan
        if sentences:
            groups.append(GroupValues(bucket, sentences, values))
    return groups


def score_words(
    predictions: Sequence[str], references: Sequence[Sequence[str]], counts: Mapping[str, int]
) -> list[WordScores]:
    """Compute precision and recall of words by their training frequency (as compare-mt does).

    A word of a prediction is correct if it is in the reference, at most as often as it occurs there. If a line has
    several references, the first one is used.
    """
    correct: Counter[str] = Counter()
    predicted: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    for prediction, (reference, *_) in zip(predictions, references, strict=True):
        words, reference_words = Counter(split_words(prediction)), Counter(split_words(reference))
        predicted.update(words)
        expected.update(reference_words)
        correct.update(words & reference_words)
    scores = []
    for bucket in make_buckets(FREQUENCIES):
        totals = [
            sum(number for word, number in words.items() if counts.get(word, 0) in bucket)
            for words in (correct, predicted, expected)
        ]
        if totals[1] or totals[2]:
            precision, recall = (100 * totals[0] / total if total else 0.0 for total in totals[1:])
            scores.append(WordScores(bucket, totals[2], precision, recall))
    return scores


def compute_breakdown(
    name: BreakdownName,
    statistics: Mapping[Metric, MetricStatistics],
    evaluation_set: EvaluationSet,
    predictions: Sequence[str],
    counts: WordCounts | None,
) -> Breakdown:
    """Compute metrics by group of sentences. Frequency and unseen words need the counts of the training data."""
    grouping = group_lines(name, evaluation_set, counts)
    groups = [] if grouping is None else compute_group_values(grouping, statistics, evaluation_set)
    words = []
    if name == "frequency" and counts is not None and predictions:
        words = score_words(predictions, evaluation_set.references, counts.target)
    return Breakdown(name, "" if grouping is None else grouping.title, list(statistics), groups, words)


_BY_TRAINING_WORDS: dict[str, Callable[[EvaluationSet, WordCounts], Grouping]] = {
    "frequency": group_by_rarest_word,
    "unseen": group_by_unseen_words,
}


def group_lines(name: BreakdownName, evaluation_set: EvaluationSet, counts: WordCounts | None) -> Grouping | None:
    """Group lines by length, frequency or unseen words; None for frequency if the sources are not text."""
    if name == "length":
        return group_by_length(evaluation_set)
    if counts is None:
        raise ConfigError(f"The breakdown by {name} needs the training data. Pass its pairs.")
    if are_texts(evaluation_set.sources):
        return _BY_TRAINING_WORDS[name](evaluation_set, counts)
    if name == "unseen":
        raise DataError("The breakdown by unseen words needs sources that are text. Use length or frequency instead.")
    return None


def find_worst(
    metric: Metric,
    statistics: MetricStatistics,
    evaluation_set: EvaluationSet,
    predictions: Sequence[str],
    count: int,
) -> list[ScoredSentence]:
    """Return the sentences with the worst sentence-level values, worst first.

    Ties are broken by the edit distance to the reference, relative to the length: a wrong sentence is worse if more of
    it is wrong.
    """
    from rapidfuzz.distance.Levenshtein import normalized_distance

    def measure_error(line: int) -> float:
        references = evaluation_set.references[line]
        return min(normalized_distance(predictions[line], reference) for reference in references) if predictions else 0

    values = statistics.sentence_values
    badness = -values if metric.higher_is_better else values
    lines = find_lines(statistics, evaluation_set)
    ranked = sorted(range(len(values)), key=lambda row: (-badness[row], -measure_error(lines[row])))
    return [
        ScoredSentence(
            lines[row] + 1,
            str(evaluation_set.sources[lines[row]]),
            evaluation_set.references[lines[row]],
            predictions[lines[row]] if predictions else None,
            metric,
            float(values[row]),
        )
        for row in ranked[:count]
    ]
