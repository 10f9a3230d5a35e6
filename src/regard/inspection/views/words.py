"""Words: group the tokens of a text into the words that they are parts of."""

from collections.abc import Sequence
from itertools import pairwise

from regard.data.tokens.pretokenization import MARK

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
