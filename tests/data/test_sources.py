"""Edits of a text: words and tokens are replaced, deleted and masked, in order. Checks of sources."""

from typing import Any

import pytest

from regard.data.images.reader import ImageReader
from regard.data.settings import CharSide
from regard.data.source_readers import TextItem, TextReader
from regard.data.sources import DeleteSource, EditedText, MaskSource, ReplaceSource, check_sources
from regard.data.tokens.tokenizers import UNKNOWN, Tokenizer
from regard.errors import ArgumentTypeError


def test_masked_parts_move_with_their_text() -> None:
    text = EditedText("ab cd ef").mask((3, 5)).mask((6, 8))
    assert text.replace((0, 2), "x") == EditedText("x cd ef", ((2, 4), (5, 7)))
    assert text.replace((3, 5), "xyz") == EditedText("ab xyz ef", ((7, 9),))  # a replaced word is not masked
    assert text.delete_word((6, 8)) == EditedText("ab cd", ((3, 5),))


@pytest.mark.parametrize(
    ("text", "deleted"),
    [
        ("one", [""]),
        ("one two  three", ["two  three", "one  three", "one two"]),
        (" one two ", [" two ", " one "]),
        ("go\tV;PST", ["\tV;PST", "go\tPST", "go\tV"]),
        ("go on\tV", ["on\tV", "go\tV", "go on"]),
    ],
)
def test_a_word_is_deleted_with_what_separates_it(text: str, deleted: list[str]) -> None:
    reader = TextReader(Tokenizer.of(CharSide(tags="\t" in text), ["one two three go on\tV;PST"] * 40), 100)
    [item] = reader.read([text])
    edited = [reader.edit(item, DeleteSource(position=position), None) for position in range(len(deleted))]
    assert [each.text for each in edited] == deleted
    assert [each.tokenized.ids for each in edited] == [each.tokenized.ids for each in reader.read(deleted)]


def test_every_token_of_a_masked_word_is_unknown() -> None:
    reader = TextReader(Tokenizer.of(CharSide(), ["abcdef "]), 100)

    def edit(*edits: Any) -> TextItem:
        [item] = reader.read(["ab cd ef"])
        for each in edits:
            item = reader.edit(item, each, None)
        return item

    assert [index for index, token in enumerate(edit(MaskSource(position=1)).tokenized.ids) if token == UNKNOWN] == [
        3,
        4,
    ]
    both = edit(MaskSource(position=2), DeleteSource(position=0), ReplaceSource(position=0, text="abc"))
    assert both.text == "abc ef"
    assert [index for index, token in enumerate(both.tokenized.ids) if token == UNKNOWN] == [4, 5]
    assert both.tokens == ["a", "b", "c", " ", "e", "f"]


def test_messages_about_images_use_the_right_article() -> None:
    with pytest.raises(ArgumentTypeError, match=r"^source must be an image \(.*\) or a list of images, not int"):
        check_sources(3, ImageReader())
    with pytest.raises(ArgumentTypeError, match=r"^source\[1\] must be an image \(.*\), not int"):
        check_sources(["a.png", 3], ImageReader())
