"""An answer that can be looked at: what it tells besides the text."""

import pytest

from regard.data.settings import BPETokenizer, CharTokenizer, WordTokenizer
from regard.data.tokens.tokenizers import TokenizerPair
from regard.decoding.predictor import DecodedText
from regard.inspection.prediction import Prediction


@pytest.mark.parametrize(
    ("source", "unknown"),
    [("laufen\tV;PST", []), ("läufen\tV;ZZ", ["ä", "ZZ"]), ("ßaß\tPL", ["ß"]), ("\tQ", ["Q"]), ("", [])],
)
def test_letters_and_tags_that_the_model_has_no_token_for(source: str, unknown: list[str]) -> None:
    pair = TokenizerPair.build(CharTokenizer(shared=False, tags=True), ["laufen\tV;PST;PL"], ["lief"])
    [tokens] = pair.source.encode([source])
    found = Prediction.of(source, DecodedText("", 0.0, False, tokens, [], {}), pair.target)
    assert found.unknown == unknown


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        (BPETokenizer(shared=False, vocabulary=60), "the Old man☃ ☃", "▁the ▁ O ld ▁man ☃ ▁ ☃"),
        (WordTokenizer(shared=False), "the ▁ new book", "▁the ▁ ▁new ▁book"),
    ],
)
def test_source_tokens_mark_word_starts_as_the_tokens_of_the_output_do(
    kind: BPETokenizer | WordTokenizer, source: str, expected: str
) -> None:
    texts = ["the old man reads a book", "a woman reads the old books", "old man"] * 3
    pair = TokenizerPair.build(kind, texts, texts)
    [tokens] = pair.source.encode([source])
    [target] = pair.target.ids(["the book"])
    found = Prediction.of(source, DecodedText("the book", 0.0, False, tokens, target, {}), pair.target)
    assert found.source_tokens == expected.split()
    assert "".join(found.tokens) == "▁the▁book"


def test_a_mark_that_was_typed_is_shown_as_it_is() -> None:
    pair = TokenizerPair.build(CharTokenizer(shared=False), ["a▁b"], ["x"])
    [tokens] = pair.source.encode(["a▁ b"])
    found = Prediction.of("a▁ b", DecodedText("", 0.0, False, tokens, [], {}), pair.target)
    assert found.source_tokens == ["a", "▁", " ", "b"]
