"""Words of a text, separated by white space, and the tokens or pre-tokenized words that they consist of."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from regard.data.tokens.pretokenization import MARK
from regard.data.tokens.tokenizers import Span, Tokenizer

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


def index_pretokenized(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the index in `text.split()` of the word that each pre-tokenized word (`Tokenizer.words`) is part of.

    White space has the index −1. So have words whose index is not known: all words of a text in which normalization
    adds or removes white space, and pre-tokenized words that contain white space.
    """
    indices = []
    for text, words in zip(texts, tokenizer.words(texts), strict=True):
        spelled = [word.replace(MARK, " ") for word in words]
        ends = list(accumulate(map(len, spelled)))
        spans = [(end - len(word.lstrip() or word), end) for word, end in zip(spelled, ends, strict=True)]
        normalized = "".join(spelled)
        found = index_words(normalized, spans)
        known = len(normalized.split()) == len(text.split())
        indices.append(
            [index if known and len(word.split()) == 1 else -1 for index, word in zip(found, spelled, strict=True)]
        )
    return indices
