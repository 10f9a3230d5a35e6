"""Metrics of captions against hand-computed values, against their definitions, and by their properties."""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.evaluation.captions import CiderScorer, compute_rouge_l, tokenize_caption
from regard.evaluation.metrics import EvaluationSet, MetricStatistics, ModelOutputs, compute_statistics
from regard.evaluation.settings import parse_metric

CAPTION_BLEU = "tokenize=coco,smooth=none,references=by_source"
METRICS = [
    *(f"bleu:max_order={order},{CAPTION_BLEU}" for order in (1, 2, 3)),
    f"bleu:{CAPTION_BLEU}",
    "rouge_l",
    "cider",
]

Captions = Sequence[tuple[str, Sequence[str]]]
"""Predictions, each with its references."""


def statistics(metric: str, captions: Captions) -> MetricStatistics:
    evaluation_set = EvaluationSet([f"{row}.jpg" for row in range(len(captions))], [list(refs) for _, refs in captions])
    outputs = ModelOutputs(evaluation_set, [prediction for prediction, _ in captions], np.zeros((0, 2)))
    return compute_statistics(parse_metric(metric), outputs)


def value(metric: str, *captions: tuple[str, Sequence[str]]) -> float:
    return statistics(metric, captions).value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A man rides a bike.", "a man rides a bike"),
        ("Two dogs , one red , run !", "two dogs one red run"),
        ("A dog's ball isn't red; they're", "a dog 's ball is n't red they 're"),
        ("The man’s hat", "the man 's hat"),
        ("the dogs' bowls", "the dogs bowls"),
        ("black-and-white T-shirt - (left)", "black-and-white t-shirt left"),
        ('3.5 of 10,000 at 7:30, 50 % "sold"', "3.5 of 10,000 at 7:30 50 % sold"),
        ("I cannot see", "i can not see"),
        ("a U.S. flag…", "a u.s. flag"),
        ("Cafe\u0301", "caf\u00e9"),
        (" ... ", ""),
    ],
)
def test_captions_are_split_into_lowercase_words_without_punctuation(text: str, words: str) -> None:
    assert tokenize_caption(text) == words.split()
    assert tokenize_caption(words) == words.split()  # text that is tokenized already stays the same


def test_bleu_counts_ngrams_up_to_the_maximum_order() -> None:
    """Five of six words, three of five bigrams, two of four trigrams, one of three 4-grams; no brevity penalty."""
    caption = ("The cat sat on the mat.", ["the cat sat on a mat"])
    precisions = [5 / 6, 3 / 5, 2 / 4, 1 / 3]
    for order in (1, 2, 3, 4):
        expected = 100 * math.prod(precisions[:order]) ** (1 / order)
        assert value(f"bleu:max_order={order},{CAPTION_BLEU}", caption) == pytest.approx(expected)


def test_bleu_of_captions_clips_to_the_best_reference_and_uses_the_closest_length() -> None:
    """`a a b`: the second reference contains `a` twice, the first `b`, so all three words match. The closest lengths
    are 2 and 4, of which the shorter counts: no brevity penalty. The second source: one of one word, where the closest
    reference has two. Precision 4/4, lengths 4 and 2 + 2: no penalty. With `c` alone: exp(1 − 2).
    """
    first, second = ("a a b", ["b b", "a a c d"]), ("c", ["c d", "c d e"])
    assert value(f"bleu:max_order=1,{CAPTION_BLEU}", first, second) == pytest.approx(100)
    assert value(f"bleu:max_order=1,{CAPTION_BLEU}", second) == pytest.approx(100 * math.exp(-1))


def test_bleu_without_smoothing_is_0_if_no_ngram_of_some_order_matches() -> None:
    caption = ("a b", ["b a"])
    assert value(f"bleu:max_order=1,{CAPTION_BLEU}", caption) == pytest.approx(100)
    assert value(f"bleu:max_order=2,{CAPTION_BLEU}", caption) == 0


def test_rouge_l_by_hand() -> None:
    """The longest common subsequence is `cat sat`: P = 2/3, R = 2/4, F = 2.44 · P · R / (R + 1.44 · P)."""
    expected = 2.44 * 2 / 3 * 1 / 2 / (1 / 2 + 1.44 * 2 / 3)
    assert value("rouge_l", ("A cat sat.", ["the cat sat down"])) == pytest.approx(100 * expected)
    assert value("rouge_l", ("a cat sat", ["the cat sat down"]), ("x", ["y"])) == pytest.approx(50 * expected)


def test_rouge_l_uses_the_best_precision_and_the_best_recall() -> None:
    """`a b c x y z`: P = 3/4, R = 3/6. `a b`: P = 2/4, R = 2/2."""
    caption = ("a b c d", ["a b c x y z", "a b"])
    assert value("rouge_l", caption) == pytest.approx(100 * 2.44 * 0.75 / (1 + 1.44 * 0.75))


def test_rouge_l_of_empty_captions() -> None:
    assert compute_rouge_l([], [["a"]]) == compute_rouge_l(["a"], [[]]) == 0
    assert compute_rouge_l([], [[], ["a"]]) == 1
    assert compute_rouge_l(["a"], [[], ["a"]]) == 1


def test_cider_by_hand() -> None:
    """Two sources with the references `a b` and `a c`: a has df 2, so its weight is 0; the others weigh ln 2.

    `a b` → `a b`: the cosines of words and bigrams are 1, and there are no longer n-grams: 10 · 2/4.
    `a c c` → `a c`: c has the weights 2 ln 2 and ln 2. Clipped, the cosine is ln 2 · ln 2 / (2 ln 2 · ln 2) = 1/2. Of
    the bigrams `a c` and `c c` (df 0, counted as 1), the first matches: 1/√2. One word too long: exp(−1/72).
    """
    second = math.exp(-1 / 72) * (1 / 2 + 1 / math.sqrt(2)) / 4
    captions = [("a b", ["a b"]), ("a c c", ["a c"])]
    assert statistics("cider", captions).statistics_NK.tolist() == [
        pytest.approx([5, 1]),
        pytest.approx([10 * second, 1]),
    ]
    assert value("cider", *captions) == pytest.approx((5 + 10 * second) / 2)


def test_cider_averages_over_references_and_counts_a_source_once() -> None:
    """N = 2. `b` is in both references of the first source, so df = 1, and its weight is ln 2. Prediction `b`: the
    cosine of words is 1 with `b`, and with `b d` 1/√2 (both weigh ln 2), one word too short.
    """
    captions = [("b", ["b", "b d"]), ("c", ["c"])]
    expected = 10 * (1 + math.exp(-1 / 72) / math.sqrt(2)) / 2 / 4
    assert statistics("cider", captions).statistics_NK[0, 0] == pytest.approx(expected)


def test_cider_of_a_single_source_is_0() -> None:
    assert value("cider", ("a b c d", ["a b c d"])) == 0


def naive_lcs(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence, from the full table."""
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for row, left in enumerate(one):
        for column, right in enumerate(other):
            longest = max(table[row][column + 1], table[row + 1][column])
            table[row + 1][column + 1] = table[row][column] + 1 if left == right else longest
    return table[-1][-1]


def naive_cider(predictions: list[list[str]], references: list[list[list[str]]]) -> list[float]:
    """CIDEr-D by equation, with dense vectors over all n-grams of the corpus."""

    def ngrams(words: list[str], order: int) -> list[str]:
        return [" ".join(words[start : start + order]) for start in range(len(words) - order + 1)]

    scores = []
    for prediction, group in zip(predictions, references, strict=True):
        total = 0.0
        for reference in group:
            for order in (1, 2, 3, 4):
                texts = [prediction, *(text for other in references for text in other)]
                axes = sorted({ngram for text in texts for ngram in ngrams(text, order)})
                df = [sum(any(axis in ngrams(text, order) for text in other) for other in references) for axis in axes]
                idf = np.array([math.log(len(references) / max(1, count)) for count in df])
                counts = [[ngrams(text, order).count(axis) for axis in axes] for text in (prediction, reference)]
                g_c, g_r = np.array(counts).reshape(2, len(axes)) * idf
                norm = float(np.linalg.norm(g_c) * np.linalg.norm(g_r))
                penalty = math.exp(-((len(prediction) - len(reference)) ** 2) / (2 * 6**2))
                total += penalty * float(np.minimum(g_c, g_r) @ g_r) / norm if norm else 0.0
        scores.append(10 * total / 4 / len(group))
    return scores


words = st.lists(st.sampled_from("abcde"), max_size=7)
corpora = st.lists(st.tuples(words, st.lists(words, min_size=1, max_size=3)), min_size=1, max_size=5)


@settings(max_examples=60)
@given(corpora)
def test_cider_equals_its_definition(corpus: list[tuple[list[str], list[list[str]]]]) -> None:
    predictions, references = [prediction for prediction, _ in corpus], [group for _, group in corpus]
    scorer = CiderScorer(references)
    scores = [scorer.score(prediction, group) for prediction, group in corpus]
    assert scores == pytest.approx(naive_cider(predictions, references), abs=1e-12)
    assert all(0 <= score <= 10 + 1e-9 for score in scores)


@given(words, st.lists(words, min_size=1, max_size=3))
def test_rouge_l_equals_its_definition(prediction: list[str], references: list[list[str]]) -> None:
    score = compute_rouge_l(prediction, references)
    assert 0 <= score <= 1
    if prediction and any(references):
        p = max(naive_lcs(prediction, reference) / len(prediction) for reference in references)
        r = max(naive_lcs(prediction, reference) / len(reference) for reference in references if reference)
        expected = (1 + 1.2**2) * p * r / (r + 1.2**2 * p) if p else 0
        assert score == pytest.approx(expected)


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=4, max_size=9), min_size=1, max_size=6))
def test_the_references_have_the_best_values(references: list[list[str]]) -> None:
    """For CIDEr, every n must have an n-gram with a weight above 0: here, a word that only one source has."""
    texts = [" ".join([*reference, f"word{row}"]) for row, reference in enumerate(references)]
    captions = [(text, [text]) for text in [*texts, "another source of the corpus"]]
    assert {metric: value(metric, *captions) for metric in METRICS} == pytest.approx(
        {metric: 10 if metric == "cider" else 100 for metric in METRICS}
    )


@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=25)
@given(corpora, st.randoms())
def test_the_order_of_references_and_sources_does_not_matter(
    metric: str, corpus: list[tuple[list[str], list[list[str]]]], generator: random.Random
) -> None:
    captions = [(" ".join(prediction), [" ".join(words) for words in group]) for prediction, group in corpus]
    shuffled = [(prediction, generator.sample(group, len(group))) for prediction, group in captions]
    expected = value(metric, *captions)
    assert value(metric, *generator.sample(shuffled, len(shuffled))) == pytest.approx(expected)
    # Lines with the same source share their references.
    lines = [(f"{row}.jpg", prediction, words) for row, (prediction, group) in enumerate(captions) for words in group]
    evaluation_set = EvaluationSet([source for source, _, _ in lines], [[words] for _, _, words in lines])
    outputs = ModelOutputs(evaluation_set, [prediction for _, prediction, _ in lines], np.zeros((0, 2)))
    assert compute_statistics(parse_metric(metric), outputs).value == pytest.approx(expected)


def test_signatures_contain_references_tokenization_and_order() -> None:
    captions = [("a b", ["a b", "b"]), ("c", ["c", "d"])]
    assert statistics("cider", captions).signature.startswith("nrefs:2|tok:coco|version:regard-")
    assert statistics("rouge_l:tokenize=none", captions[:1]).signature.startswith("nrefs:2|tok:none|version:regard-")
    bleu = statistics(f"bleu:max_order=2,{CAPTION_BLEU}", captions).signature
    assert bleu.startswith("nrefs:2|case:lc|eff:no|tok:coco|smooth:none|version:")
    assert bleu.endswith("|order:2")
    assert value("rouge_l:tokenize=none", ("A .", ["a ."])) == pytest.approx(50)


def test_a_resample_keeps_the_document_frequencies() -> None:
    """The statistics are one score for each source, so the interval is that of an average of these scores."""
    generator = random.Random(0)
    references = [" ".join(generator.choices("abcdefgh", k=8)) for _ in range(60)]
    result = statistics("cider", [(" ".join(text.split()[:6]), [text]) for text in references])
    scores = result.statistics_NK[:, 0]
    low, high = result.confidence_interval()
    deviation = 1.96 * scores.std() / math.sqrt(len(scores))
    assert (low, high) == pytest.approx((scores.mean() - deviation, scores.mean() + deviation), abs=deviation / 4)
