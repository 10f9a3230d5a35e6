"""Word alignments in Pharaoh format: a line for each pair, with a link `i-j` for each aligned pair of words.

Words are separated by white space and counted from 0: `i` in the source, `j` in the target. In a gold alignment, `i-j`
is a sure link, and `i?j` or `ipj` is a possible link.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from regard.data.lines import display_name, read_lines
from regard.errors import DataError

Link = tuple[int, int]
"""The index of a source word, and that of a target word."""

Links = frozenset[Link]

_LINK = re.compile(r"(\d+)([-?p])(\d+)")


class GoldLinks(NamedTuple):
    """The links of a pair in a gold alignment. Every sure link is also possible."""

    sure: Links
    possible: Links

    @classmethod
    def of(cls, links: Iterable[Link]) -> "GoldLinks":
        """Return a gold alignment in which every link is sure."""
        sure = frozenset(links)
        return cls(sure, sure)

    def within(self, source_words: int, target_words: int) -> "GoldLinks":
        """Return the links between words that exist."""
        return GoldLinks(
            *(frozenset((i, j) for i, j in links if i < source_words and j < target_words) for links in self)
        )


def parse_links(text: str, *, one_based: bool = False) -> GoldLinks:
    """Parse a line in Pharaoh format. Raise ValueError with a description of the first word that is not a link."""
    sure: set[Link] = set()
    possible: set[Link] = set()
    first = int(one_based)
    for word in text.split():
        match = _LINK.fullmatch(word)
        if match is None:
            raise ValueError(f"'{word}' is not a link; a link is i-j (sure), or i?j or ipj (possible)")
        link = int(match[1]) - first, int(match[3]) - first
        if min(link) < 0:
            raise ValueError(f"'{word}' contains 0, but the words of the file are counted from 1")
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return GoldLinks(frozenset(sure), frozenset(possible))


def format_links(links: Iterable[Link], *, one_based: bool = False) -> str:
    """Format links as a line in Pharaoh format, sorted by source word."""
    first = int(one_based)
    return " ".join(f"{i + first}-{j + first}" for i, j in sorted(links))


def read_alignments(path: str | Path, *, one_based: bool = False) -> Iterator[GoldLinks]:
    """Read the links of each line of a file in Pharaoh format, plain or gzipped.

    Raises:
        DataError: There is no such file, or a line is not in Pharaoh format.
    """
    for line in read_lines(path):
        location = f"{display_name(path)}:{line.number}"
        if line.problem:
            raise DataError(f"{location}: {line.problem}. {line.remedy or 'Correct the line.'}")
        try:
            yield parse_links(line.text, one_based=one_based)
        except ValueError as error:
            remedy = "Read the file without one_based (--one-based)." if one_based else "Correct the line."
            raise DataError(f"{location}: {error}. {remedy}") from None
