"""Measures against numbers worked by hand, against sacrebleu, and by the laws that they obey."""

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

from regard.errors import ConfigError, DataError
from regard.evaluation.metrics import (
    EvaluationSet,
    MetricStatistics,
    ModelOutputs,
    edit_distance,
    judge,
    note_tokenized,
)
from regard.evaluation.settings import parse_metric

NO_LOSSES = np.zeros((0, 2))
OF_ANSWERS = ["accuracy", "wer", "per", "cer", "bleu", "chrf", "ter"]

Row = tuple[str, str, str]


def judged(measure: str, *rows: Row) -> MetricStatistics:
    """Rows of (source, answer, reference)."""
    questions = EvaluationSet([source for source, _, _ in rows], [[reference] for _, _, reference in rows])
    return judge(parse_metric(measure), ModelOutputs(questions, [answer for _, answer, _ in rows], NO_LOSSES))


def value(measure: str, *rows: Row) -> float:
    return judged(measure, *rows).value


def test_accuracy_and_wer_count_whole_sequences() -> None:
    rows = [("1", "K AE T", "K AE T"), ("2", "D AO G", "D AA G"), ("3", "", ""), ("4", "a ", "a")]
    assert value("accuracy", *rows) == 0.5
    assert value("wer", *rows) == 50.0


def test_per_is_edits_over_the_length_of_the_references() -> None:
    """Of K AE T → K AA T S a substitution and an insertion, of D AO G → D AO none: (2 + 1) / (4 + 2)."""
    rows = [("cats", "K AE T", "K AA T S"), ("dao", "D AO G", "D AO")]
    assert value("per", *rows) == pytest.approx(100 * 3 / 6)


def test_cer_counts_characters_with_white_space() -> None:
    assert value("cer", ("x", "kitten", "sitting")) == pytest.approx(100 * 3 / 7)
    assert value("cer", ("x", "ab", "a b")) == pytest.approx(100 / 3)
    assert value("per", ("x", "a  b ", "a b")) == 0


def test_an_accent_is_the_same_letter_however_it_is_encoded() -> None:
    for measure, best in (("accuracy", 1), ("cer", 0)):
        assert value(measure, ("x", "caf\u00e9", "cafe\u0301")) == best


def test_empty_references_are_no_division_by_zero() -> None:
    assert value("per", ("x", "", "")) == 0
    assert value("cer", ("x", "abc", "")) == 100


def test_bleu_by_hand() -> None:
    """Five of six words, three of five pairs, two of four triples, one of three fours; no brevity penalty."""
    row = ("x", "the cat sat on the mat", "the cat sat on a mat")
    assert value("bleu", row) == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_bleu_without_tokenisation_takes_words_as_they_are() -> None:
    """13a cuts the full stop off, and every n-gram matches; between white space `mat.` is another word than `mat`."""
    row = ("x", "the cat sat on the mat .", "the cat sat on the mat.")
    assert value("bleu", row) == pytest.approx(100)
    assert value("bleu:tokenize=none", row) == pytest.approx(100 * (5 / 7 * 4 / 6 * 3 / 5 * 2 / 4) ** 0.25)
    assert value("bleu:lowercase=true", ("x", "A B C D", "a b c d")) == pytest.approx(100)


def test_chrf_by_hand() -> None:
    """Precision 1; recall 2/3 of the letters and 1/2 of the pairs, 7/12 in the mean; recall counts twice."""
    recall = (2 / 3 + 1 / 2) / 2
    assert value("chrf", ("x", "ab", "abc")) == pytest.approx(100 * 5 * recall / (4 + recall))


def test_ter_counts_a_move_as_one_edit() -> None:
    assert value("ter", ("x", "b a c", "a b c")) == pytest.approx(100 / 3)
    assert value("per", ("x", "b a c", "a b c")) == pytest.approx(200 / 3)


def test_loss_is_the_mean_over_tokens_and_perplexity_its_exponential() -> None:
    losses = np.array([[2.0, 1.0], [4.0, 3.0]])
    evidence = ModelOutputs(EvaluationSet(["a", "b"], [["x"], ["y"]]), [], losses)
    assert judge(parse_metric("loss"), evidence).value == pytest.approx(1.5)
    assert judge(parse_metric("perplexity"), evidence).value == pytest.approx(math.exp(1.5))
    hopeless = ModelOutputs(evidence.questions, [], losses * [1e4, 1])
    assert judge(parse_metric("perplexity"), hopeless).value == math.inf


def test_pairs_with_one_source_are_references_of_each_other() -> None:
    rows = [("read", "R IY D", "R EH D"), ("read", "R IY D", "R IY D"), ("dog", "D AO", "D AO G")]
    assert value("accuracy", *rows) == 0.5
    assert value("wer", *rows) == 50
    assert value("per", *rows) == pytest.approx(100 * (0 + 1) / (3 + 3))
    assert "nrefs:var" in judged("per", *rows).signature


def test_of_equally_close_references_the_longest_counts_in_any_order() -> None:
    rows = [("x", "a b", "a c"), ("x", "a b", "a b c")]
    assert value("per", *rows) == value("per", *rows[::-1]) == pytest.approx(100 / 3)


SENTENCES = [
    ("1", "a man rides a red bike .", "a man rides a bicycle ."),
    ("1", "a man rides a red bike .", "a man is on a red bike ."),
    ("2", "two dogs play in snow", "two dogs are playing in the snow"),
    ("2", "two dogs play in snow", "two dogs play in snow"),
]


@pytest.mark.parametrize(("name", "metric"), [("bleu", BLEU()), ("chrf", CHRF()), ("ter", TER())])
def test_references_are_by_line_by_source_or_as_they_look(name: str, metric: BLEU | CHRF | TER) -> None:
    answers, references = [row[1] for row in SENTENCES], [row[2] for row in SENTENCES]
    lines = metric.corpus_score(answers, [references]).score
    sources = metric.corpus_score(answers[::2], [references[::2], references[1::2]]).score
    assert lines != sources
    assert value(name, *SENTENCES) == pytest.approx(lines)
    assert value(f"{name}:references=by_source", *SENTENCES) == pytest.approx(sources)
    assert value(f"{name}:references=auto", *SENTENCES) == pytest.approx(sources)
    uneven = SENTENCES[:3]
    assert value(f"{name}:references=auto", *uneven) == pytest.approx(
        metric.corpus_score(answers[:3], [references[:3]]).score
    )
    ragged = metric.corpus_score(answers[:3:2], [references[:3:2], [references[1], None]]).score
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
        ("chrf", CHRF()),
        ("chrf:word_order=2,lowercase=true", CHRF(word_order=2, lowercase=True)),
        ("ter", TER()),
        ("ter:normalized=true,case_sensitive=true", TER(normalized=True, case_sensitive=True)),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_values_and_signatures_are_those_of_sacrebleu(name: str, metric: BLEU | CHRF | TER) -> None:
    draw = random.Random(7)
    words = ["The", "the", "cat,", "sat", "on", "(a)", "mat.", "It's", "3.5", "%", "Über", "中文", "!"]
    references = [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(60)]
    answers = [" ".join(word for word in text.split() if draw.random() < 0.8) for text in references]
    rows = [(str(number), *row) for number, row in enumerate(zip(answers, references, strict=True))]
    found = judged(name, *rows)
    assert found.value == pytest.approx(metric.corpus_score(answers, [references]).score, rel=1e-12)
    assert found.signature == str(metric.get_signature())


def table_distance(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """The definition, a row of the table at a time."""
    above = list(range(len(theirs) + 1))
    for row, left in enumerate(ours, 1):
        here = [row]
        for column, right in enumerate(theirs, 1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (left != right)))
        above = here
    return above[-1]


texts = st.text("abc ", max_size=90)


@given(texts, texts)
def test_edit_distance_is_that_of_the_table(ours: str, theirs: str) -> None:
    assert edit_distance(ours, theirs) == table_distance(ours, theirs) == edit_distance(theirs, ours)
    assert edit_distance(ours.split(), theirs.split()) == table_distance(ours.split(), theirs.split())


rows_of_texts = st.lists(st.tuples(st.text("ab", min_size=1, max_size=2), texts, texts), min_size=1, max_size=8)


@given(rows_of_texts)
def test_accuracy_and_wer_are_two_sides_of_one_count(rows: list[Row]) -> None:
    assert value("accuracy", *rows) + value("wer", *rows) / 100 == pytest.approx(1)
    assert 0 <= value("accuracy", *rows) <= 1


sentences = st.lists(st.sampled_from(["a", "bc", "d"]), min_size=4, max_size=9)


@given(st.lists(sentences, min_size=1, max_size=6))
def test_the_references_themselves_are_the_best_answers(references: list[list[str]]) -> None:
    right = [(str(number), " ".join(words), " ".join(words)) for number, words in enumerate(references)]
    best = {"accuracy": 1, "wer": 0, "per": 0, "cer": 0, "bleu": 100, "chrf": 100, "ter": 0}
    assert {name: value(name, *right) for name in best} == pytest.approx(best)


@given(st.lists(sentences, min_size=1, max_size=6), st.randoms())
def test_per_is_the_same_from_either_side_where_lengths_are_equal(
    references: list[list[str]], draw: random.Random
) -> None:
    rows = [
        (str(number), " ".join(draw.choices(["a", "bc", "d"], k=len(words))), " ".join(words))
        for number, words in enumerate(references)
    ]
    turned = [(source, reference, answer) for source, answer, reference in rows]
    assert value("per", *rows) == pytest.approx(value("per", *turned))


@settings(max_examples=30)
@given(rows_of_texts, st.randoms())
def test_the_order_of_the_pairs_does_not_matter(rows: list[Row], draw: random.Random) -> None:
    said: dict[str, str] = {}
    rows = [(source, said.setdefault(source, answer), reference) for source, answer, reference in rows]
    mixed = draw.sample(rows, len(rows))
    for name in OF_ANSWERS:
        assert value(name, *mixed) == pytest.approx(value(name, *rows))


@given(rows_of_texts, texts, texts, texts)
def test_one_more_reference_never_costs_a_right_answer(rows: list[Row], answer: str, one: str, more: str) -> None:
    rows = [*rows, ("another", answer, one)]
    assert value("accuracy", *rows, ("another", answer, more)) >= value("accuracy", *rows)


def test_confidence_of_a_share_is_that_of_the_binomial() -> None:
    """Of 1,000 answers 700 are right: ± 1.96 √(0.7 · 0.3 / 1,000)."""
    found = judged("accuracy", *((str(n), "a", "a" if n < 700 else "b") for n in range(1_000)))
    half = 1.96 * math.sqrt(0.7 * 0.3 / 1_000)
    assert found.interval() == pytest.approx((0.7 - half, 0.7 + half), abs=0.004)
    low, high = found.interval(level=0.5)
    assert high - low == pytest.approx(2 * 0.6745 * half / 1.96, abs=0.004)


@pytest.mark.parametrize("name", OF_ANSWERS)
def test_confidence_is_seeded_holds_the_value_and_shrinks_with_evidence(name: str) -> None:
    draw = random.Random(0)
    rows = []
    for number in range(400):
        reference = " ".join(draw.choices("abcdefgh", k=8))
        answer = reference if number % 2 else " ".join(draw.choices("abcdefgh", k=7))
        rows.append((str(number), answer, reference))
    found = judged(name, *rows)
    low, high = found.interval(resamples=200)
    assert low < found.value < high
    assert found.interval(resamples=200) == (low, high) != found.interval(resamples=200, seed=1)
    few_low, few_high = judged(name, *rows[:40]).interval(resamples=200)
    assert few_high - few_low > 2 * (high - low)


def test_questions_are_read_as_users_have_them() -> None:
    pairs = EvaluationSet.read([("a", "x"), ("a", "y")], None)
    assert pairs == EvaluationSet(["a", "a"], [["x"], ["y"]]) == EvaluationSet.read(["a", "a"], ["x", "y"])
    several = EvaluationSet.read(["a", "b"], [["x", "y"], "z"])
    assert several.pairs.sources == ["a", "a", "b"]
    assert several.pairs.targets == ["x", "y", "z"]
    assert several.gathered() == {0: ["x", "y"], 1: ["z"]} == several.gathered("by_line")


@pytest.mark.parametrize(
    ("sources", "references"),
    [(["a"], None), ("ab", None), (["a"], ["x", "y"]), ("ab", ["x", "y"]), (["a", "b"], "xy"), (["a"], [[]])],
)
def test_questions_that_are_none_are_told(sources: Sequence[str], references: Sequence[str] | None) -> None:
    with pytest.raises(ConfigError, match=r"[Gg]ive"):
        EvaluationSet.read(sources, references)


def test_nothing_to_judge_is_told() -> None:
    with pytest.raises(DataError, match="no pair"):
        judge(parse_metric("accuracy"), ModelOutputs(EvaluationSet([], []), [], NO_LOSSES))


def test_text_that_looks_tokenized_is_told_where_it_would_be_tokenized_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    questions = EvaluationSet(["1", "2", "3"], [["a b ."], ["c d ?"], ["e f"]])
    note_tokenized(questions, [parse_metric("bleu:tokenize=none"), parse_metric("chrf")])
    note_tokenized(EvaluationSet(["1", "2"], [["a b."], ["c d ."]]), [parse_metric("bleu")])
    assert not caplog.records
    note_tokenized(questions, [parse_metric("bleu")])
    assert "bleu:tokenize=none takes them as they are" in caplog.text
