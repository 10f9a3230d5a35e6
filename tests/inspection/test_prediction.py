"""Source tokens and unknown tokens of a prediction."""

import pytest

from regard.data.settings import BPETokenizer, CharTokenizer, WordTokenizer
from regard.data.tokens.tokenizers import TokenizerPair
from regard.decoding.predictor import DecodedText
from regard.inspection.prediction import Prediction


@pytest.mark.parametrize(
    ("source", "unknown"),
    [("laufen\tV;PST", []), ("läufen\tV;ZZ", ["ä", "ZZ"]), ("ßaß\tPL", ["ß"]), ("\tQ", ["Q"]), ("", [])],
)
def test_letters_and_tags_without_a_token_are_unknown(source: str, unknown: list[str]) -> None:
    pair = TokenizerPair.build(CharTokenizer(shared=False, tags=True), ["laufen\tV;PST;PL"], ["lief"])
    [tokens] = pair.source.encode([source])
    prediction = Prediction.from_decoded(source, DecodedText("", 0.0, False, tokens, [], {}), pair.target)
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
    [tokens] = pair.source.encode([source])
    [target] = pair.target.ids(["the book"])
    decoded = DecodedText("the book", 0.0, False, tokens, target, {})
    prediction = Prediction.from_decoded(source, decoded, pair.target)
    assert prediction.source_tokens == expected.split()
    assert "".join(prediction.tokens) == "▁the▁book"


def test_a_mark_in_the_source_text_is_unchanged() -> None:
    pair = TokenizerPair.build(CharTokenizer(shared=False), ["a▁b"], ["x"])
    [tokens] = pair.source.encode(["a▁ b"])
    prediction = Prediction.from_decoded("a▁ b", DecodedText("", 0.0, False, tokens, [], {}), pair.target)
    assert prediction.source_tokens == ["a", "▁", " ", "b"]
