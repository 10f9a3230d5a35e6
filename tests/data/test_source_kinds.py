"""The readers of the kinds of sources."""

from typing import Any

import pytest
from toy_captions import PictureReader

import regard
from regard.data import source_kinds
from regard.data.settings import CharTokenizer
from regard.data.source_kinds import build_reader, find_reader, register_reader
from regard.data.texts import TextReader
from regard.data.tokens.tokenizers import TokenizerPair
from regard.models.encoder_settings import EncoderSettings, RecurrentEncoderSettings


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A copy of the registered readers, which a test may change."""
    copied = dict(source_kinds._READERS)
    monkeypatch.setattr(source_kinds, "_READERS", copied)
    return copied


def parse_encoder(**options: Any) -> EncoderSettings:
    return EncoderSettings.parse({"kind": "toy_pictures", **options})


def test_an_encoder_of_text_has_a_reader_with_its_tokenizer() -> None:
    tokenizers = TokenizerPair.build(CharTokenizer(), ["abc"], ["abc"])
    assert find_reader(RecurrentEncoderSettings()) is None
    assert build_reader(RecurrentEncoderSettings(), tokenizers, 7) == TextReader(tokenizers.source, 7)


def test_a_reader_receives_the_options_of_the_encoder_that_it_has_parameters_for() -> None:
    assert find_reader(parse_encoder(invert=True)) == PictureReader(invert=True)
    assert find_reader(parse_encoder(channels=9)) == PictureReader()


def test_readers_with_other_options_are_not_compatible() -> None:
    reader = PictureReader()
    assert reader.is_compatible(PictureReader(invert=False))
    assert not reader.is_compatible(PictureReader(invert=True))
    assert reader.vocabulary_size is None
    assert reader.find_unknown(["a.npy", "b.npy"]) == [[], []]


def test_a_kind_without_a_reader_is_reported_with_the_remedy(readers: dict[str, Any]) -> None:
    del readers["picture"]
    message = r"'toy_pictures' .* of the kind 'picture', but no reader is registered.*regard\.register_reader"
    with pytest.raises(regard.ConfigError, match=message):
        find_reader(parse_encoder())


def test_invalid_registrations_are_rejected() -> None:
    with pytest.raises(regard.ConfigError, match="The reader of text cannot be replaced"):
        register_reader("text", PictureReader)
    wrong: Any = 3
    with pytest.raises(regard.ArgumentTypeError, match="expects the name of a kind of source"):
        register_reader(wrong, PictureReader)
    with pytest.raises(regard.ArgumentTypeError, match="expects the name of a kind of source"):
        register_reader("number", wrong)
