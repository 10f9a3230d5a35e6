"""An answer that can be looked at: what it tells besides the text."""

import pytest

from regard.data.settings import CharTokenizer
from regard.data.tokens.tokenizers import TokenizerPair
from regard.decoding.translator import Translation
from regard.inspection.prediction import Prediction


@pytest.mark.parametrize(
    ("source", "unknown"),
    [("laufen\tV;PST", []), ("läufen\tV;ZZ", ["ä", "ZZ"]), ("ßaß\tPL", ["ß"]), ("\tQ", ["Q"]), ("", [])],
)
def test_letters_and_tags_that_the_model_has_no_token_for(source: str, unknown: list[str]) -> None:
    pair = TokenizerPair.build(CharTokenizer(shared=False, tags=True), ["laufen\tV;PST;PL"], ["lief"])
    [tokens] = pair.source.encode([source])
    found = Prediction.of(source, Translation("", 0.0, False, tokens, [], {}), pair.target)
    assert found.unknown == unknown
