"""Breakdowns put each sentence in the right bucket, and their statistics sum to those of the whole set."""

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from regard.errors import ConfigError, DataError
from regard.evaluation.breakdown import (
    Bucket,
    WordCounts,
    choose_length_buckets,
    compute_breakdown,
    find_lines,
    find_worst,
    group_by_length,
    group_by_rarest_word,
    group_by_unseen_words,
    make_buckets,
    score_words,
    split_words,
)
from regard.evaluation.metrics import EvaluationSet, MetricStatistics, ModelOutputs, compute_statistics
from regard.evaluation.settings import Metric, parse_metric

ACCURACY, CORPUS_BLEU, CER = map(parse_metric, ("accuracy", "bleu", "cer"))
SOURCES = ["a dog runs in the park today", "the cat sleeps on a mat now", "zebra and the cat", "the the the the the"]
REFERENCES = ["ein Hund rennt", "die Katze schläft", "Zebra und Katze", "die die"]
PREDICTIONS = ["ein Hund rennt", "die Katze rennt", "Hund und Katze", "die"]
TRAINING = [("the cat sleeps on a mat now", "die Katze schläft"), ("a dog runs in the park", "ein Hund rennt die")]


@pytest.fixture
def evaluation_set() -> EvaluationSet:
    return EvaluationSet.from_lists(SOURCES, REFERENCES)


def compute(evaluation_set: EvaluationSet, *metrics: Metric) -> dict[Metric, MetricStatistics]:
    outputs = ModelOutputs(evaluation_set, PREDICTIONS, np.zeros((0, 2)))
    return {metric: compute_statistics(metric, outputs) for metric in metrics}


def test_buckets_cover_all_numbers_once() -> None:
    buckets = make_buckets([0, 1, 2, 5, 10])
    assert [bucket.label for bucket in buckets] == ["0", "1", "2–4", "5–9", "10+"]
    for number in range(50):
        assert sum(number in bucket for bucket in buckets) == 1
    assert Bucket(1000, None).label == "1,000+"


@pytest.mark.parametrize(
    ("lengths", "labels"),
    [
        (range(1, 39), ["1–10", "11–20", "21–30", "31+"]),
        (range(1, 7), ["1", "2", "3", "4", "5", "6+"]),
        (range(4, 200), ["1–50", "51–100", "101–150", "151+"]),
        ([0, 3], ["0–1", "2", "3+"]),
        ([7], ["1–2", "3–4", "5–6", "7+"]),
    ],
)
def test_length_buckets_have_round_limits(lengths: list[int], labels: list[str]) -> None:
    assert [bucket.label for bucket in choose_length_buckets(list(lengths))] == labels


def test_length_is_counted_in_words_or_for_short_texts_in_characters(evaluation_set: EvaluationSet) -> None:
    grouping = group_by_length(evaluation_set)
    assert grouping.title == "source length in words"
    lengths = [len(source.split()) for source in SOURCES]
    for bucket, lines in grouping.lines.items():
        assert all(lengths[line] in bucket for line in lines)
    assert sorted(line for lines in grouping.lines.values() for line in lines) == [0, 1, 2, 3]
    words = EvaluationSet.from_lists(["phoneme", "word"], ["a", "b"])
    assert group_by_length(words).title == "source length in characters"


def test_without_texts_the_length_is_that_of_the_reference() -> None:
    assert group_by_length(EvaluationSet([0, 1], [["a b c d e"], ["a b c d"]])).title == "reference length in words"


def test_lines_are_grouped_by_frequency_and_by_unseen_words(evaluation_set: EvaluationSet) -> None:
    counts = WordCounts.of(TRAINING)
    assert counts.source["the"] == 2
    rarest = {bucket.label: lines for bucket, lines in group_by_rarest_word(evaluation_set, counts).lines.items()}
    assert rarest == {"0": [0, 2], "1": [1], "2": [3]}  # "today", "zebra" and "and" are not in the training data
    unseen = {bucket.label: lines for bucket, lines in group_by_unseen_words(evaluation_set, counts).lines.items()}
    assert unseen == {"0": [1, 3], "1": [0], "2": [2]}


def test_values_of_groups_are_those_of_the_subsets(evaluation_set: EvaluationSet) -> None:
    """Also for BLEU, which is not an average over sentences."""
    statistics = compute(evaluation_set, ACCURACY, CORPUS_BLEU)
    breakdown = compute_breakdown("unseen", statistics, evaluation_set, PREDICTIONS, WordCounts.of(TRAINING))
    assert [group.sentences for group in breakdown.groups] == [2, 1, 1]
    assert [group.values["accuracy"] for group in breakdown.groups] == [0.0, 1.0, 0.0]
    subset = BLEU().corpus_score([PREDICTIONS[1], PREDICTIONS[3]], [[REFERENCES[1], REFERENCES[3]]]).score
    assert breakdown.groups[0].values["bleu"] == pytest.approx(subset)
    assert "source words not in the training data" in str(breakdown)


def test_a_breakdown_with_one_group_says_why_there_is_no_table(evaluation_set: EvaluationSet) -> None:
    counts = WordCounts.of((source, "") for source in evaluation_set.sources)
    breakdown = compute_breakdown("unseen", compute(evaluation_set, ACCURACY), evaluation_set, PREDICTIONS, counts)
    assert str(breakdown) == "No breakdown by source words not in the training data: the only group is 0 (4 sentences)."


def test_scores_of_words_by_hand(evaluation_set: EvaluationSet) -> None:
    """Target words with frequency 1: Katze, schläft, ein, Hund, rennt; with 2: die; unseen: Zebra, und."""
    scores = {
        scores.bucket.label: scores
        for scores in score_words(PREDICTIONS, evaluation_set.references, WordCounts.of(TRAINING).target)
    }
    assert list(scores) == ["0", "1", "2"]
    unseen, once, twice = scores.values()
    assert (unseen.reference_words, unseen.precision, unseen.recall) == (2, 100.0, 50.0)
    assert unseen.f1 == pytest.approx(200 / 3)
    # Predicted: ein Hund rennt, Katze rennt, Hund Katze; correct: ein Hund rennt, Katze, Katze.
    assert [once.reference_words, once.precision, once.recall] == pytest.approx([6, 500 / 7, 500 / 6])
    assert [twice.reference_words, twice.precision, twice.recall] == pytest.approx([3, 100, 200 / 3])


def test_words_have_no_punctuation_around_them() -> None:
    assert split_words("“The dog’s bone,” he says – twice!") == ["The", "dog’s", "bone", "he", "says", "–", "twice"]


def test_rows_of_statistics_belong_to_lines() -> None:
    repeated = EvaluationSet.from_lists(["a", "b", "a"], ["1", "2", "3"])
    assert find_lines(MetricStatistics.average([0, 0, 0]), repeated) == [0, 1, 2]
    assert find_lines(MetricStatistics.average([0, 0]), repeated) == [0, 1]  # by source
    several = EvaluationSet.from_lists(["a", "b"], [["1", "2"], ["3"]])
    assert find_lines(MetricStatistics.average([0, 0, 0]), several) == [0, 0, 1]  # by pair
    with pytest.raises(ConfigError, match="7 rows of statistics for 3 sentences"):
        find_lines(MetricStatistics.average([0] * 7), repeated)


def test_the_worst_sentences_come_first(evaluation_set: EvaluationSet) -> None:
    statistics = compute(evaluation_set, ACCURACY, CER, CORPUS_BLEU)
    by_accuracy = find_worst(ACCURACY, statistics[ACCURACY], evaluation_set, PREDICTIONS, 3)
    # All three are wrong, so the edit distance decides: 4 of 7, 5 of 15 and 6 of 17 characters.
    assert [sentence.line for sentence in by_accuracy] == [4, 2, 3]
    by_cer = find_worst(CER, statistics[CER], evaluation_set, PREDICTIONS, 10)
    assert [sentence.line for sentence in by_cer] == [4, 2, 3, 1]
    assert by_cer[0].prediction == "die"
    assert by_cer[0].references == ["die die"]
    assert by_cer[0].value == pytest.approx(100 * 4 / 7)
    assert "line 4: cer 57.14%" in str(by_cer[0])
    assert by_cer[-1].value == 0.0
    # A correct sentence of three words has BLEU 100, although it contains no 4-gram.
    by_bleu = find_worst(CORPUS_BLEU, statistics[CORPUS_BLEU], evaluation_set, PREDICTIONS, 4)
    assert by_bleu[-1].line == 1
    assert by_bleu[-1].value == pytest.approx(BLEU(effective_order=True).sentence_score("a b c", ["a b c"]).score)


def test_frequency_needs_training_data(evaluation_set: EvaluationSet) -> None:
    with pytest.raises(ConfigError, match="needs the training data"):
        compute_breakdown("frequency", compute(evaluation_set, ACCURACY), evaluation_set, PREDICTIONS, None)


def test_sources_that_are_not_text_have_no_unseen_words() -> None:
    images = EvaluationSet([0, 1, 2, 3], [[reference] for reference in REFERENCES])
    counts = WordCounts.of([(0, "ein Hund")])
    statistics = compute(images, ACCURACY)
    with pytest.raises(DataError, match="needs sources that are text"):
        compute_breakdown("unseen", statistics, images, PREDICTIONS, counts)
    breakdown = compute_breakdown("frequency", statistics, images, PREDICTIONS, counts)
    assert not breakdown.groups
    assert breakdown.words
