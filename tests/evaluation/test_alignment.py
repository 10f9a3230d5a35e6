"""Word alignments: weights to links, symmetrization, and alignment error rate, with numbers computed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config import resolve
from regard.data.pharaoh import GoldLinks, Link, Links, parse_links
from regard.errors import ConfigError
from regard.evaluation.alignment import (
    SYMMETRIZATIONS,
    AlignmentScore,
    AlignmentSettings,
    Method,
    Symmetrization,
    WordAlignment,
    link_above,
    link_confident,
    link_largest,
    merge_words,
    normalized_entropy,
    score_alignments,
    symmetrize,
)

FORWARD: Links = frozenset({(0, 0), (1, 1), (2, 1), (4, 4)})
BACKWARD: Links = frozenset({(0, 0), (1, 1), (1, 2), (4, 0), (1, 6)})

links = st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=14)


def test_the_columns_of_a_word_are_summed_and_its_rows_are_averaged() -> None:
    weights = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.1, 0.3], [0.0, 0.0, 1.0, 0.0]])
    merged = merge_words(weights, [0, 0, 1], [0, 0, 1, 2])
    np.testing.assert_allclose(merged, [[0.45, 0.2, 0.35], [0.0, 1.0, 0.0]])


def test_tokens_of_white_space_are_ignored_and_words_without_tokens_have_no_weight() -> None:
    weights = np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]])
    np.testing.assert_allclose(merge_words(weights, [1, -1], [0, -1, 2]), [[0.0, 0.0, 0.0], [0.6, 0.0, 0.1]])
    assert merge_words(np.zeros((0, 2)), [], [0, 1]).shape == (0, 2)


def test_argmax_links_each_target_word_to_one_source_word() -> None:
    weights = np.array([[0.1, 0.7, 0.2], [0.4, 0.4, 0.2], [0.0, 0.0, 0.0]])
    assert link_largest(weights) == {(1, 0), (0, 1)}
    assert link_largest(np.zeros((2, 0))) == frozenset()


def test_a_threshold_links_to_any_number_of_words() -> None:
    weights = np.array([[0.5, 0.5, 0.0], [0.4, 0.3, 0.3], [0.0, 0.1, 0.9]])
    assert link_above(weights, 0.4) == {(0, 0), (1, 0), (0, 1), (2, 2)}


def test_words_with_spread_out_weights_stay_unaligned_by_entropy() -> None:
    weights = np.array([[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.0, 0.2, 0.0, 0.2]])
    np.testing.assert_allclose(normalized_entropy(weights), [0.0, 0.5, 1.0, 0.5], atol=1e-12)
    assert link_confident(weights, 0.6) == {(0, 0), (0, 1), (1, 3)}
    assert link_confident(weights, 0.4) == {(0, 0)}
    assert normalized_entropy(np.array([[1.0]])) == 0.0


@pytest.mark.parametrize(
    ("method", "expected"), [("argmax", "0-0 1-1"), ("threshold", "0-0 0-1 1-1"), ("entropy", "0-0")]
)
def test_settings_choose_the_method(method: Method, expected: str) -> None:
    weights = np.array([[0.9, 0.1], [0.4, 0.6]])
    settings = AlignmentSettings(method=method, threshold=0.3, max_entropy=0.6)
    assert settings.extract_links(weights) == parse_links(expected).sure


def test_a_setting_out_of_range_is_rejected() -> None:
    with pytest.raises(ConfigError, match="threshold"):
        resolve(AlignmentSettings, {}, {"threshold": 1.5})


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("intersection", "0-0 1-1"),
        ("union", "0-0 1-1 2-1 4-4 1-2 4-0 1-6"),
        # 2-1 and 1-2 are next to 1-1, and 2 is a new source word, 2 a new target word.
        ("grow-diag", "0-0 1-1 2-1 1-2"),
        # 4-4 has two unaligned words, 1-6 one. After 4-4, both words of 4-0 are aligned.
        ("grow-diag-final", "0-0 1-1 2-1 1-2 4-4 1-6"),
        ("grow-diag-final-and", "0-0 1-1 2-1 1-2 4-4"),
    ],
)
def test_two_directions_are_combined_as_computed_by_hand(method: Symmetrization, expected: str) -> None:
    assert symmetrize(FORWARD, BACKWARD, method) == parse_links(expected).sure


def test_growing_continues_from_links_that_were_added() -> None:
    diagonal: Links = frozenset((n, n) for n in range(5))
    assert symmetrize(frozenset({(0, 0)}), diagonal, "grow-diag") == diagonal


@given(links, links)
def test_every_symmetrization_is_between_intersection_and_union(forward: Links, backward: Links) -> None:
    combined = {method: symmetrize(forward, backward, method) for method in SYMMETRIZATIONS}
    assert combined["grow-diag"] <= combined["grow-diag-final-and"]
    assert combined["grow-diag"] <= combined["grow-diag-final"]
    for method in SYMMETRIZATIONS:
        assert forward & backward <= combined[method] <= forward | backward


@given(links, links)
def test_grow_diag_final_aligns_every_word_that_one_direction_aligns(forward: Links, backward: Links) -> None:
    def words(aligned: Links) -> set[tuple[str, int]]:
        return {("source", i) for i, _ in aligned} | {("target", j) for _, j in aligned}

    assert words(symmetrize(forward, backward)) == words(forward | backward)


@given(links)
def test_two_equal_directions_are_not_changed(same: Links) -> None:
    assert {symmetrize(same, same, method) for method in SYMMETRIZATIONS} == {same}


def test_an_unknown_symmetrization_is_named() -> None:
    with pytest.raises(ConfigError, match="'grow-diagonal' is not a symmetrization"):
        symmetrize(FORWARD, BACKWARD, "grow-diagonal")  # type: ignore[arg-type]


def test_alignment_error_rate_computed_by_hand() -> None:
    predicted: Links = frozenset({(0, 0), (1, 1), (2, 3), (3, 2)})
    score = AlignmentScore.of(predicted, parse_links("0-0 1-1 4-4 2?3"))
    assert score == AlignmentScore(predicted=4, sure=3, predicted_sure=2, predicted_possible=3)
    assert score.precision == pytest.approx(3 / 4)
    assert score.recall == pytest.approx(2 / 3)
    assert score.aer == pytest.approx(1 - (2 + 3) / (4 + 3))


def test_links_of_a_corpus_are_counted_together_and_rates_are_not_averaged() -> None:
    gold = [parse_links("0-0"), parse_links("0-0 1-1 2-2")]
    score = score_alignments([frozenset(), gold[1].sure], gold)
    assert score.aer == pytest.approx(1 - (3 + 3) / (3 + 4))
    assert score.recall == pytest.approx(3 / 4)
    with pytest.raises(ConfigError, match="1 alignments, but 2 gold alignments"):
        score_alignments([frozenset()], gold)


@given(links, links, links)
def test_error_rates_are_between_zero_and_one(predicted: Links, sure: Links, possible: Links) -> None:
    score = AlignmentScore.of(predicted, GoldLinks(sure, sure | possible))
    assert 0 <= score.aer <= 1
    assert AlignmentScore.of(sure, GoldLinks(sure, sure | possible)).aer == 0


@given(links, links)
def test_without_possible_links_one_minus_aer_is_the_f1_score(predicted: Links, sure: Links) -> None:
    score = AlignmentScore.of(predicted, GoldLinks.of(sure))
    total = len(predicted) + len(sure)
    assert 1 - score.aer == pytest.approx(2 * len(predicted & sure) / total if total else 1)


def test_an_alignment_is_printed_in_pharaoh_format_and_lists_its_words() -> None:
    pairs: frozenset[Link] = frozenset({(1, 0), (0, 1)})
    alignment = WordAlignment(("la", "maison"), ("house", "the"), pairs)
    assert str(alignment) == "0-1 1-0"
    assert alignment.aligned_words == [("la", "the"), ("maison", "house")]
    reverse = WordAlignment(("house", "the"), ("la", "maison"), frozenset({(0, 1)}))
    assert str(alignment.symmetrize(reverse, "intersection")) == "1-0"
