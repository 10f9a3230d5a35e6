"""Source tokens and unknown tokens of a prediction."""

import pytest

from regard.data.settings import BPETokenizer, CharTokenizer, WordTokenizer
from regard.data.source_readers import TextReader
from regard.data.tokens.tokenizers import TokenizerPair
from regard.decoding.search import Hypothesis
from regard.inspection.prediction import Prediction


@pytest.mark.parametrize(
    ("source", "unknown"),
    [("laufen\tV;PST", []), ("läufen\tV;ZZ", ["ä", "ZZ"]), ("ßaß\tPL", ["ß"]), ("\tQ", ["Q"]), ("", [])],
)
def test_letters_and_tags_without_a_token_are_unknown(source: str, unknown: list[str]) -> None:
    pair = TokenizerPair.build(CharTokenizer(shared=False, tags=True), ["laufen\tV;PST;PL"], ["lief"])
    [item] = TextReader(pair.source, 100).read([source])
    prediction = Prediction.from_nbest(item, [Hypothesis([], 0.0, False)], pair.target)
    assert prediction.unknown == unknown


@pytest.mark.parametrize(
    ("tokenizer", "source", "expected"),
    [
        (BPETokenizer(shared=False, vocabulary=60), "the Old man☃ ☃", "▁the ▁ O ld ▁man ☃ ▁ ☃"),
        (WordTokenizer(shared=False), "the ▁ new book", "▁the ▁ ▁new ▁book"),
    ],
)
def test_source_and_output_tokens_mark_word_starts(
    tokenizer: BPETokenizer | WordTokenizer, source: str, expected: str
) -> None:
    texts = ["the old man reads a book", "a woman reads the old books", "old man"] * 3
    pair = TokenizerPair.build(tokenizer, texts, texts)
    [item] = TextReader(pair.source, 100).read([source])
    [target] = pair.target.ids(["the book"])
    prediction = Prediction.from_nbest(item, [Hypothesis(target, 0.0, False)], pair.target)
    assert prediction.text == "the book"
    assert prediction.source_tokens == expected.split()
    assert "".join(prediction.tokens) == "▁the▁book"


def test_a_mark_in_the_source_text_is_unchanged() -> None:
    pair = TokenizerPair.build(CharTokenizer(shared=False), ["a▁b"], ["x"])
    [item] = TextReader(pair.source, 100).read(["a▁ b"])
    prediction = Prediction.from_nbest(item, [Hypothesis([], 0.0, False)], pair.target)
    assert prediction.source_tokens == ["a", "▁", " ", "b"]
