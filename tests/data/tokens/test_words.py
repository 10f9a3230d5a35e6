"""The word of each token, for all kinds of tokenizers."""

import pytest

from regard.data.settings import BPESide, CharSide, Side, WordSide
from regard.data.tokens.tokenizers import Tokenizer
from regard.data.tokens.words import index_words

TEXTS = ["the sea , the 2nd sea-side", "all the seas are sea", "theatre 2 sea"]


@pytest.mark.parametrize(
    "side",
    [
        CharSide(),
        WordSide(),
        WordSide(min_count=2),
        BPESide(vocabulary=40),
        BPESide(vocabulary=290, split="spaces", byte_fallback=True),
        BPESide(vocabulary=40, normalization="nfd", lowercase=True),
    ],
)
@pytest.mark.parametrize("text", [*TEXTS, "  the   sea\u00a0unseen ", "The Sé\u0301a 漢字 the", "sea", ""])
def test_tokens_belong_to_the_words_that_they_are_part_of(side: Side, text: str) -> None:
    tokenizer = Tokenizer.of(side, TEXTS)
    [tokens] = tokenizer.encode([text])
    indices = index_words(text, tokens.offsets)
    words = text.split()
    assert set(indices) - {-1} == set(range(len(words)))
    assert sorted(index for index in indices if index >= 0) == [index for index in indices if index >= 0]
    for index, (start, end) in zip(indices, tokens.offsets, strict=True):
        spelled = text[start:end].strip()
        assert (index == -1 and not spelled) or spelled in words[index]


def test_a_token_that_contains_several_words_belongs_to_the_first() -> None:
    assert index_words("to be or", [(0, 5), (6, 8)]) == [0, 2]
    assert index_words("to be", [(0, 0), (0, 2), (2, 3), (3, 5)]) == [0, 0, -1, 1]
