"""Tokens are grouped into words, in any vocabulary."""

import pytest

from regard.inspection.views.labels import Span, find_words, join_word


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["▁a", "▁dog", "."], [(0, 1), (1, 3)]),
        (["▁foot", "ball"], [(0, 2)]),
        (["un", "▁a"], [(0, 1), (1, 2)]),
        (list("3 mai"), [(0, 1), (1, 5)]),
        (list(" 3  a "), [(0, 2), (2, 6)]),
        (["2", "b", "x"], [(0, 1), (1, 2), (2, 3)]),
        (list("日本"), [(0, 1), (1, 2)]),
        ([" ", " "], [(0, 1), (1, 2)]),
        ([], []),
    ],
)
def test_words_start_at_marks_or_spaces_and_cover_all_tokens(tokens: list[str], words: list[Span]) -> None:
    assert find_words(tokens) == words


@pytest.mark.parametrize(
    ("tokens", "text"), [(["▁foot", "ball"], "football"), ([" ", "a", "b"], "ab"), ([" "], " "), (["▁"], "▁")]
)
def test_a_word_has_no_mark_or_space_before_it(tokens: list[str], text: str) -> None:
    assert join_word(tokens) == text
