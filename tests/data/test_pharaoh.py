"""Pharaoh format: reading and writing links, sure and possible, counted from 0 or 1."""

import gzip
from pathlib import Path

import pytest

from regard.data.pharaoh import GoldLinks, format_links, parse_links, read_alignments
from regard.errors import DataError


def test_links_are_sure_or_possible() -> None:
    gold = parse_links("0-0 2?1 3p2 10-11")
    assert gold.sure == {(0, 0), (10, 11)}
    assert gold.possible == {(0, 0), (2, 1), (3, 2), (10, 11)}
    assert parse_links("1-1 3p2", one_based=True) == GoldLinks(frozenset({(0, 0)}), frozenset({(0, 0), (2, 1)}))


def test_a_line_without_links_is_a_pair_without_links() -> None:
    assert parse_links("  ") == GoldLinks.of([])


def test_links_are_written_in_order_and_can_be_read_again() -> None:
    links = {(10, 0), (2, 1), (2, 0)}
    assert format_links(links) == "2-0 2-1 10-0"
    assert parse_links(format_links(links, one_based=True), one_based=True).sure == links


@pytest.mark.parametrize("text", ["0-", "a-b", "1-2-3", "-1-2", "1:2", "0-0,1-1"])
def test_a_word_that_is_not_a_link_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is not a link"):
        parse_links(f"0-0 {text}")


def test_a_file_may_be_gzipped_and_keeps_its_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "gold.gz"
    path.write_bytes(gzip.compress(b"1-1 2p2\n\n3-1\n"))
    assert [gold.possible for gold in read_alignments(path, one_based=True)] == [{(0, 0), (1, 1)}, set(), {(2, 0)}]


def test_an_error_names_file_line_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.links").write_text("1-1\n0-0\nein Haus\n")
    with pytest.raises(DataError, match=r"train\.links:3: 'ein' is not a link; .*Correct the line"):
        list(read_alignments("train.links"))
    with pytest.raises(DataError, match=r"train\.links:2: '0-0' contains 0, .*without one_based"):
        list(read_alignments("train.links", one_based=True))
    with pytest.raises(DataError, match=r"There is no file other\.links"):
        list(read_alignments("other.links"))


def test_links_to_words_that_do_not_exist_can_be_removed() -> None:
    gold = parse_links("0-0 1-2 2p1")
    assert gold.within(2, 3) == parse_links("0-0 1-2")
    assert gold.within(3, 2) == parse_links("0-0 2p1")
