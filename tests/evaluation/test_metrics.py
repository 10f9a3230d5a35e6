"""Metrics against hand-computed values, against sacrebleu, and by their properties."""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from regard.data.corpora import Pairs
from regard.errors import ConfigError, DataError
from regard.evaluation.metrics import (
    EvaluationSet,
    MetricStatistics,
    ModelOutputs,
    compute_statistics,
    warn_if_tokenized,
)
from regard.evaluation.settings import parse_metric

NO_LOSSES = np.zeros((0, 2))
METRICS = ["accuracy", "ser", "wer", "per", "cer", "bleu", "chrf", "ter", "rouge_l", "cider"]
"""Those of predictions."""

Row = tuple[str, str, str]
"""Source, prediction, reference."""


def statistics(metric: str, *rows: Row) -> MetricStatistics:
    evaluation_set = EvaluationSet([source for source, _, _ in rows], [[reference] for _, _, reference in rows])
    outputs = ModelOutputs(evaluation_set, [prediction for _, prediction, _ in rows], NO_LOSSES)
    return compute_statistics(parse_metric(metric), outputs)


def value(metric: str, *rows: Row) -> float:
    return statistics(metric, *rows).value


def test_accuracy_and_ser_count_exact_matches() -> None:
    rows = [("1", "K AE T", "K AE T"), ("2", "D AO G", "D AA G"), ("3", "", ""), ("4", "a ", "a")]
    assert value("accuracy", *rows) == 0.5
    assert value("ser", *rows) == 50.0


@pytest.mark.parametrize("metric", ["wer", "per"])
def test_wer_and_per_divide_edits_by_the_length_of_the_references(metric: str) -> None:
    """K AE T → K AA T S: one substitution, one insertion. D AO G → D AO: one deletion. (2 + 1) / (4 + 2)."""
    rows = [("cats", "K AE T", "K AA T S"), ("dao", "D AO G", "D AO")]
    assert value(metric, *rows) == pytest.approx(100 * 3 / 6)


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("the cat sat", "the cat sat", 0),
        ("the cat sit", "the cat sat", 100 / 3),
        ("the sat", "the cat sat", 100 / 3),
        ("", "the cat sat", 100),
        ("a b c d e", "f", 500),
        ("cat  the ", "the cat", 100),
        ("Cat", "cat", 100),
    ],
)
def test_wer_by_hand(prediction: str, reference: str, expected: float) -> None:
    assert value("wer", ("x", prediction, reference)) == pytest.approx(expected)


def test_insertions_push_wer_above_100() -> None:
    """Three insertions and no edit, over one and two words."""
    assert value("wer", ("x", "yes it is so", "yes"), ("y", "not now", "not now")) == pytest.approx(100 * 3 / 3)
    assert value("wer", ("x", "yes it is so", "yes")) == 300


def test_wer_uses_the_closest_of_several_references() -> None:
    """One substitution to the second reference, which has four words; five edits to the first."""
    rows = [("x", "he goes home now", "they went back there yesterday"), ("x", "he goes home now", "she goes home now")]
    assert value("wer", *rows) == pytest.approx(100 / 4)
    assert value("wer", *rows, ("y", "a", "b c")) == pytest.approx(100 * (1 + 2) / (4 + 2))


def test_cer_counts_characters_including_spaces() -> None:
    assert value("cer", ("x", "kitten", "sitting")) == pytest.approx(100 * 3 / 7)
    assert value("cer", ("x", "ab", "a b")) == pytest.approx(100 / 3)
    assert value("per", ("x", "a  b ", "a b")) == 0


@pytest.mark.parametrize(("metric", "best"), [("accuracy", 1), ("ser", 0), ("wer", 0), ("cer", 0)])
def test_composed_and_decomposed_accents_are_equal(metric: str, best: float) -> None:
    assert value(metric, ("x", "caf\u00e9", "cafe\u0301")) == best


@pytest.mark.parametrize("metric", ["wer", "per", "cer"])
def test_empty_references_do_not_divide_by_zero(metric: str) -> None:
    assert value(metric, ("x", "", "")) == 0
    assert value(metric, ("x", "a b c", "")) == 100
    assert value(metric, ("x", "a", ""), ("y", "a", "a")) == 100


def test_bleu_by_hand() -> None:
    """Five of six words, three of five bigrams, two of four trigrams, one of three 4-grams; no brevity penalty."""
    row = ("x", "the cat sat on the mat", "the cat sat on a mat")
    assert value("bleu", row) == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_bleu_without_tokenization_splits_at_spaces_only() -> None:
    """13a splits off the full stop, and every n-gram matches; split at spaces, `mat.` and `mat` differ."""
    row = ("x", "the cat sat on the mat .", "the cat sat on the mat.")
    assert value("bleu", row) == pytest.approx(100)
    assert value("bleu:tokenize=none", row) == pytest.approx(100 * (5 / 7 * 4 / 6 * 3 / 5 * 2 / 4) ** 0.25)
    assert value("bleu:lowercase=true", ("x", "A B C D", "a b c d")) == pytest.approx(100)


def test_chrf_by_hand() -> None:
    """Precision 1; recall 2/3 for characters and 1/2 for bigrams, 7/12 on average; β = 2."""
    recall = (2 / 3 + 1 / 2) / 2
    assert value("chrf", ("x", "ab", "abc")) == pytest.approx(100 * 5 * recall / (4 + recall))


def test_ter_counts_a_shift_as_one_edit() -> None:
    assert value("ter", ("x", "b a c", "a b c")) == pytest.approx(100 / 3)
    assert value("wer", ("x", "b a c", "a b c")) == pytest.approx(200 / 3)


def test_loss_is_averaged_over_tokens_and_perplexity_is_its_exponential() -> None:
    losses = np.array([[2.0, 1.0], [4.0, 3.0]])
    outputs = ModelOutputs(EvaluationSet(["a", "b"], [["x"], ["y"]]), [], losses)
    assert compute_statistics(parse_metric("loss"), outputs).value == pytest.approx(1.5)
    assert compute_statistics(parse_metric("perplexity"), outputs).value == pytest.approx(math.exp(1.5))
    overflowing = ModelOutputs(outputs.evaluation_set, [], losses * [1e4, 1])
    assert compute_statistics(parse_metric("perplexity"), overflowing).value == math.inf


def test_pairs_with_the_same_source_share_their_references() -> None:
    rows = [("read", "R IY D", "R EH D"), ("read", "R IY D", "R IY D"), ("dog", "D AO", "D AO G")]
    assert value("accuracy", *rows) == 0.5
    assert value("ser", *rows) == 50
    assert value("per", *rows) == pytest.approx(100 * (0 + 1) / (3 + 3))
    assert "nrefs:var" in statistics("per", *rows).signature


def test_the_longest_of_equally_close_references_counts_in_any_order() -> None:
    rows = [("x", "a b", "a c"), ("x", "a b", "a b c")]
    assert value("per", *rows) == value("per", *rows[::-1]) == pytest.approx(100 / 3)


SENTENCES = [
    ("1", "a man rides a red bike .", "a man rides a bicycle ."),
    ("1", "a man rides a red bike .", "a man is on a red bike ."),
    ("2", "two dogs play in snow", "two dogs are playing in the snow"),
    ("2", "two dogs play in snow", "two dogs play in snow"),
]


@pytest.mark.parametrize(("name", "metric"), [("bleu", BLEU()), ("chrf", CHRF()), ("ter", TER())])
def test_references_are_grouped_by_line_or_by_source(name: str, metric: BLEU | CHRF | TER) -> None:
    predictions, references = [row[1] for row in SENTENCES], [row[2] for row in SENTENCES]
    lines = metric.corpus_score(predictions, [references]).score
    sources = metric.corpus_score(predictions[::2], [references[::2], references[1::2]]).score
    assert lines != sources
    assert value(name, *SENTENCES) == pytest.approx(lines)
    assert value(f"{name}:references=by_source", *SENTENCES) == pytest.approx(sources)
    assert value(f"{name}:references=auto", *SENTENCES) == pytest.approx(sources)
    uneven = SENTENCES[:3]
    assert value(f"{name}:references=auto", *uneven) == pytest.approx(
        metric.corpus_score(predictions[:3], [references[:3]]).score
    )
    ragged = metric.corpus_score(predictions[:3:2], [references[:3:2], [references[1], None]]).score  # type: ignore[list-item]
    assert value(f"{name}:references=by_source", *uneven) == pytest.approx(ragged)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("bleu", BLEU()),
        ("bleu:tokenize=none", BLEU(tokenize="none", force=True)),
        ("bleu:tokenize=intl,lowercase=true", BLEU(tokenize="intl", lowercase=True)),
        ("bleu:tokenize=char,smooth=floor", BLEU(tokenize="char", smooth_method="floor")),
        ("bleu:smooth=add-k", BLEU(smooth_method="add-k")),
        ("bleu:tokenize=zh,smooth=none", BLEU(tokenize="zh", smooth_method="none")),
        ("bleu:max_order=4", BLEU(max_ngram_order=4)),
        ("chrf", CHRF()),
        ("chrf:word_order=2,lowercase=true", CHRF(word_order=2, lowercase=True)),
        ("ter", TER()),
        ("ter:normalized=true,case_sensitive=true", TER(normalized=True, case_sensitive=True)),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_values_and_signatures_equal_those_of_sacrebleu(name: str, metric: BLEU | CHRF | TER) -> None:
    generator = random.Random(7)
    words = ["The", "the", "cat,", "sat", "on", "(a)", "mat.", "It's", "3.5", "%", "Über", "中文", "!"]
    references = [" ".join(generator.choices(words, k=generator.randint(1, 12))) for _ in range(60)]
    predictions = [" ".join(word for word in text.split() if generator.random() < 0.8) for text in references]
    rows = [(str(index), *row) for index, row in enumerate(zip(predictions, references, strict=True))]
    result = statistics(name, *rows)
    assert result.value == pytest.approx(metric.corpus_score(predictions, [references]).score, rel=1e-12)
    assert result.signature == str(metric.get_signature())


def table_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """The edit distance by its definition, one row of the table at a time."""
    above = list(range(len(other) + 1))
    for row, left in enumerate(one, 1):
        current = [row]
        for column, right in enumerate(other, 1):
            current.append(min(above[column] + 1, current[-1] + 1, above[column - 1] + (left != right)))
        above = current
    return above[-1]


texts = st.text("abc ", max_size=90)


@given(texts, texts)
def test_edits_are_those_of_the_definition(prediction: str, reference: str) -> None:
    row = ("x", prediction, reference)
    assert statistics("cer", row).statistics_NK.tolist() == [[table_distance(prediction, reference), len(reference)]]
    words = prediction.split(), reference.split()
    assert statistics("wer", row).statistics_NK.tolist() == [[table_distance(*words), len(words[1])]]


rows_of_texts = st.lists(st.tuples(st.text("ab", min_size=1, max_size=2), texts, texts), min_size=1, max_size=8)


@given(rows_of_texts)
def test_accuracy_and_ser_are_complementary(rows: list[Row]) -> None:
    assert value("accuracy", *rows) + value("ser", *rows) / 100 == pytest.approx(1)
    assert 0 <= value("accuracy", *rows) <= 1


@given(rows_of_texts)
def test_wer_and_per_are_equal(rows: list[Row]) -> None:
    assert value("wer", *rows) == value("per", *rows)


sentences = st.lists(st.sampled_from(["a", "bc", "d"]), min_size=4, max_size=9)


@given(st.lists(sentences, min_size=1, max_size=6))
def test_the_references_have_the_best_values(references: list[list[str]]) -> None:
    rows = [(str(index), " ".join(words), " ".join(words)) for index, words in enumerate(references)]
    best = {"accuracy": 1, "ser": 0, "wer": 0, "per": 0, "cer": 0, "bleu": 100, "chrf": 100, "ter": 0}
    assert {name: value(name, *rows) for name in best} == pytest.approx(best)


@given(st.lists(sentences, min_size=1, max_size=6), st.randoms())
def test_wer_is_symmetric_if_lengths_are_equal(references: list[list[str]], generator: random.Random) -> None:
    rows = [
        (str(index), " ".join(generator.choices(["a", "bc", "d"], k=len(words))), " ".join(words))
        for index, words in enumerate(references)
    ]
    swapped = [(source, reference, prediction) for source, prediction, reference in rows]
    assert value("wer", *rows) == pytest.approx(value("wer", *swapped))


@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=30)
@given(rows_of_texts, st.randoms())
def test_the_order_of_the_pairs_does_not_matter(metric: str, rows: list[Row], generator: random.Random) -> None:
    predictions: dict[str, str] = {}
    rows = [(source, predictions.setdefault(source, text), reference) for source, text, reference in rows]
    shuffled = generator.sample(rows, len(rows))
    assert value(metric, *shuffled) == pytest.approx(value(metric, *rows))


@given(rows_of_texts, texts, texts, texts)
def test_another_reference_never_lowers_accuracy(rows: list[Row], prediction: str, first: str, second: str) -> None:
    rows = [*rows, ("another", prediction, first)]
    assert value("accuracy", *rows, ("another", prediction, second)) >= value("accuracy", *rows)


def test_the_confidence_interval_of_a_share_is_that_of_the_binomial() -> None:
    """700 of 1,000 predictions are right: ± 1.96 √(0.7 · 0.3 / 1,000)."""
    result = statistics("accuracy", *((str(n), "a", "a" if n < 700 else "b") for n in range(1_000)))
    half = 1.96 * math.sqrt(0.7 * 0.3 / 1_000)
    assert result.confidence_interval() == pytest.approx((0.7 - half, 0.7 + half), abs=0.004)
    low, high = result.confidence_interval(level=0.5)
    assert high - low == pytest.approx(2 * 0.6745 * half / 1.96, abs=0.004)


@pytest.mark.parametrize("metric", METRICS)
def test_confidence_intervals_are_seeded_contain_the_value_and_shrink_with_more_sentences(metric: str) -> None:
    generator = random.Random(0)
    rows = []
    for index in range(400):
        reference = " ".join(generator.choices("abcdefgh", k=8))
        prediction = reference if index % 2 else " ".join(generator.choices("abcdefgh", k=7))
        rows.append((str(index), prediction, reference))
    result = statistics(metric, *rows)
    low, high = result.confidence_interval(resamples=200)
    assert low < result.value < high
    assert result.confidence_interval(resamples=200) == (low, high)
    assert result.confidence_interval(resamples=200, seed=1) != (low, high)
    few_low, few_high = statistics(metric, *rows[:40]).confidence_interval(resamples=200)
    assert few_high - few_low > 2 * (high - low)


def test_an_evaluation_set_is_built_from_pairs_or_two_lists() -> None:
    pairs = EvaluationSet.from_pairs(Pairs.of([("a", "x"), ("a", "y")]))
    assert pairs == EvaluationSet(["a", "a"], [["x"], ["y"]]) == EvaluationSet.from_lists(["a", "a"], ["x", "y"])
    several = EvaluationSet.from_lists(["a", "b"], [["x", "y"], "z"])
    assert several.pairs.sources == ["a", "a", "b"]
    assert several.pairs.targets == ["x", "y", "z"]
    assert several.group_references() == {0: ["x", "y"], 1: ["z"]} == several.group_references("by_line")


@pytest.mark.parametrize("references", [["x", "y"], [[]]])
def test_a_source_without_a_reference_of_its_own_is_rejected(references: list[str | list[str]]) -> None:
    with pytest.raises(ConfigError, match="Pass"):
        EvaluationSet.from_lists(["a"], references)


def test_an_empty_evaluation_set_is_rejected() -> None:
    with pytest.raises(DataError, match="no pairs"):
        compute_statistics(parse_metric("accuracy"), ModelOutputs(EvaluationSet([], []), [], NO_LOSSES))


def test_tokenizing_text_that_looks_tokenized_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    evaluation_set = EvaluationSet(["1", "2", "3"], [["a b ."], ["c d ?"], ["e f"]])
    warn_if_tokenized(evaluation_set, [parse_metric("bleu:tokenize=none"), parse_metric("chrf")])
    warn_if_tokenized(EvaluationSet(["1", "2"], [["a b."], ["c d ."]]), [parse_metric("bleu")])
    assert not caplog.records
    warn_if_tokenized(evaluation_set, [parse_metric("bleu")])
    assert "Use bleu:tokenize=none" in caplog.text
