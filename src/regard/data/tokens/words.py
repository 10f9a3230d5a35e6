"""Words of a text, separated by white space, and the tokens that they consist of."""

import re
from bisect import bisect_right
from collections.abc import Sequence

from regard.data.tokens.tokenizers import Span

_WORD = re.compile(r"\S+")


def index_words(text: str, offsets: Sequence[Span]) -> list[int]:
    """Return the index in `text.split()` of the word of each token, given the spans of tokens; −1 for white space.

    A token that contains several words belongs to the first.
    """
    spans = [match.span() for match in _WORD.finditer(text)]
    ends = [end for _, end in spans]
    indices = []
    for start, end in offsets:
        word = bisect_right(ends, start)
        # The span of a mark that was inserted before a word is empty.
        belongs = word < len(spans) and max(end, start + 1) > spans[word][0]
        indices.append(word if belongs else -1)
    return indices
