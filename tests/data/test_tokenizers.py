"""The character tokeniser: there and back, with places kept."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.settings import CharTokenizer
from regard.data.tokenizers import SPECIALS, UNKNOWN, Tokenizer, TokenizerPair
from regard.errors import ModelError


@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1))
def test_text_survives_up_to_composition(texts: list[str]) -> None:
    import unicodedata

    tokenizer = Tokenizer.characters(texts)
    for text, tokens in zip(texts, tokenizer.encode(texts), strict=True):
        assert tokenizer.decode(tokens.ids) == unicodedata.normalize("NFC", text)
        assert UNKNOWN not in tokens.ids


def test_a_token_knows_where_it_stood() -> None:
    tokenizer = Tokenizer.characters(["3 mai 五月"])
    [tokens] = tokenizer.encode(["五 mai!"])
    assert tokens.offsets == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]
    assert tokens.ids[5] == UNKNOWN


def test_special_tokens_cannot_be_typed() -> None:
    tokenizer = Tokenizer.characters(["</s> <pad>"])
    [tokens] = tokenizer.encode(["</s>"])
    assert tokens.texts == ["<", "/", "s", ">"]
    assert tokenizer.tokens([0, 1, 2, 3]) == list(SPECIALS)


@pytest.mark.parametrize("shared", [True, False])
def test_saved_and_loaded_it_is_the_same(tmp_path: Path, shared: bool) -> None:
    settings = CharTokenizer(shared=shared)
    pair = TokenizerPair.build(settings, ["abc\n"], ["xyz"])
    pair.save(tmp_path, lambda path, save: save(path))
    again = TokenizerPair.load(tmp_path, settings)
    assert again.source.ids(["cab\n"]) == pair.source.ids(["cab\n"])
    assert again.target.ids(["zyx"]) == pair.target.ids(["zyx"])
    assert (again.source is again.target) == shared


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        Tokenizer.load(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json is damaged"):
        Tokenizer.load(tmp_path / "tokenizer.json")
