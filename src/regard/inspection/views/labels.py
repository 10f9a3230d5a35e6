"""Labels of tokens: visible, and in the right order on a line with right-to-left text."""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple


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
