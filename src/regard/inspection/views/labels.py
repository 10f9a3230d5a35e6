"""Labels of tokens: visible, in the right order on a line with right-to-left text, and grouped into words."""

import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from regard.data.tokens.pretokenization import MARK


class Labels(NamedTuple):
    """The labels of the columns (keys) and rows (queries) of a map, and the names of both axes."""

    columns: Sequence[str]
    rows: Sequence[str]
    column_axis: str = "source"
    row_axis: str = "output"

    @property
    def drawn(self) -> "Labels":
        """The labels in figures: most fonts draw "▁", the mark of a word start, as a heavy bar, and "ˍ" as a line."""
        visible = self.visible
        columns, rows = ([token.replace("▁", "ˍ") for token in tokens] for tokens in (visible.columns, visible.rows))
        return self._replace(columns=columns, rows=rows)

    @property
    def characters(self) -> str:
        """All characters of the labels in figures."""
        drawn = self.drawn
        return "".join([*drawn.columns, *drawn.rows])

    @property
    def visible(self) -> "Labels":
        """The labels as they are shown: every token is visible."""
        return self._replace(columns=list(map(label, self.columns)), rows=list(map(label, self.rows)))


def label(token: str) -> str:
    """Return a visible label of a token: ␣ for white space, and a dotted circle before a combining character."""
    if token.isspace():
        return "␣"
    if token and unicodedata.category(token[0]) in {"Mn", "Me", "Mc"}:
        return "◌" + token
    if token and unicodedata.category(token[0]) in {"Cf", "Cc"}:
        return f"U+{ord(token[0]):04X}"
    return token


_REORDERED = {"R", "AL", "AN", "RLE", "RLO", "RLI", "LRE", "LRO", "LRI", "FSI"}
"""Bidirectional classes of characters that reorder the text around them."""


def isolate(text: str) -> str:
    """Isolate a text with right-to-left parts (U+2068, U+2069), so that the rest of the line stays in order."""
    if any(unicodedata.bidirectional(character) in _REORDERED for character in text):
        return f"\u2068{text}\u2069"
    return text


Span = tuple[int, int]
"""The index of the first token of a word, and the index after its last token."""


def find_words(tokens: Sequence[str]) -> list[Span]:
    """Return the tokens of each word, as spans that cover all tokens.

    In a vocabulary of subwords or words, a word starts at the mark "▁". Between characters, it starts at white space,
    so that a space belongs to the word after it. If there is neither, each token is a word: Chinese or Japanese
    characters, for example.

    >>> find_words(["▁foot", "ball", "▁field"])
    [(0, 2), (2, 3)]
    """
    starts = [index for index, token in enumerate(tokens) if _starts_word(tokens, index, token)]
    edges = {0, *starts} if starts else set(range(len(tokens)))
    return list(pairwise(sorted({*edges, len(tokens)}))) if tokens else []


def _starts_word(tokens: Sequence[str], index: int, token: str) -> bool:
    if token.startswith(MARK):
        return True
    # The first of several spaces starts the word. Spaces at the end belong to the last word.
    is_first = index == 0 or not tokens[index - 1].isspace()
    return token.isspace() and is_first and any(not other.isspace() for other in tokens[index:])


def join_word(tokens: Sequence[str]) -> str:
    """Return the text of a word, without the mark or the space before it."""
    text = "".join(tokens)
    return text.removeprefix(MARK).strip() or text
