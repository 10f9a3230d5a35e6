"""Text as a source: reading, collating and labels."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from toy_captions import PictureReader

import regard
from regard.data import source_readers
from regard.data.settings import CharSide, CharTokenizer
from regard.data.source_readers import TextReader, build_reader, find_reader, register_reader
from regard.data.sources import LazySources
from regard.data.tokens.tokenizers import PAD, Tokenizer, TokenizerPair
from regard.models.settings import EncoderSettings, RecurrentEncoderSettings

TOKENIZER = Tokenizer.of(CharSide(), ["abc def"])


def test_a_text_is_labeled_with_its_tokens_and_their_spans() -> None:
    [item] = TextReader(TOKENIZER, 100).read(["ab éc"])
    assert (item.label, item.length) == ("ab éc", 5)
    assert item.tokens == ["a", "b", " ", "é", "c"]
    assert item.offsets == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert item.unknown == ["é"]


def test_white_space_alone_has_no_tokens() -> None:
    reader = TextReader(TOKENIZER, 100)
    assert [item.length for item in reader.read(["", " \t ", "a"])] == [0, 0, 1]
    assert reader.encode(["", " \t ", "a"]).lengths.tolist() == [0, 0, 1]


def test_prediction_and_training_read_the_same_tokens() -> None:
    reader, texts = TextReader(TOKENIZER, 4), ["abc", "fed cba", "", "é"]
    collated, batch = reader.collate(reader.read(texts)), reader.encode(texts).batch(range(4))
    for one, other in zip(collated.tensors, batch.tensors, strict=True):
        assert one.tolist() == other.tolist()
    assert collated.tokens_BT.shape == (4, 4)
    assert collated.tokens_BT[2].tolist() == [PAD] * 4


def test_long_texts_are_truncated_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    reader = TextReader(TOKENIZER, 3)
    with caplog.at_level(logging.WARNING):
        items = reader.read(["abcdef", "abc", "fedcba"])
    assert [item.tokens for item in items] == [list("abc"), list("abc"), list("fed")]
    assert caplog.messages == ["Truncated 2 sources to 3 tokens (tokenizer.max_length)."]


def test_readers_are_compatible_if_their_tokenizers_are_equal() -> None:
    reader = TextReader(TOKENIZER, 100)
    assert reader.is_compatible(TextReader(Tokenizer.of(CharSide(), ["def abc"]), 10))
    assert not reader.is_compatible(TextReader(Tokenizer.of(CharSide(), ["xyz"]), 100))


def test_texts_and_spans_of_tokens_are_not_computed_unless_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    [item] = TextReader(TOKENIZER, 2).read(["cab"])
    monkeypatch.setattr(Tokenizer, "encode", None)
    assert (item.ids, item.length, item.unknown) == (TOKENIZER.ids(["ca"])[0], 2, [])
    monkeypatch.undo()
    assert item.tokens == ["c", "a"]


def test_parts_without_a_token_are_found() -> None:
    pair = TokenizerPair.build(CharTokenizer(shared=False, tags=True), ["laufen\tV;PST"], ["lief"])
    assert TextReader(pair.source, 100).find_unknown(["läufen\tV;ZZ", "laufen", "äöä"]) == [
        ["ä", "ZZ"],
        [],
        ["ä", "ö"],
    ]


def test_lazy_sources_are_read_when_a_batch_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Sequence[str]] = []
    ids = Tokenizer.ids

    def record_texts(self: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        reads.append(texts)
        return ids(self, texts)

    monkeypatch.setattr(Tokenizer, "ids", record_texts)
    sources = LazySources(TextReader(TOKENIZER, 9), ["a", "bc", "def"], 9)
    assert len(sources) == 3
    assert sources.lengths.tolist() == sources.epoch_lengths(1).tolist() == [9, 9, 9]
    assert reads == []
    assert sources.batch([2, 0]).length_hint_B.tolist() == [3, 1]
    assert reads == [["def", "a"]]


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A copy of the registered readers, which a test may change."""
    copied = dict(source_readers._READERS)
    monkeypatch.setattr(source_readers, "_READERS", copied)
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
