"""Layouts: headers, delimiters and keys are detected, reported and can be set; unreadable files name the remedy."""

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from regard.config import resolve
from regard.data.corpora import Pairs, Stream, load_corpus, read_pairs
from regard.data.pair_files import resolve_files
from regard.data.settings import Files, FilesData
from regard.errors import ConfigError, DataError

PAIRS = [(f"sentence number {n}, please", f"Satz Nummer {n}") for n in range(30)]
EXPECTED = Pairs.of(PAIRS)


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, "utf-8")
    return str(folder / name)


def table(header: str, delimiter: str = "\t", more: str = "") -> str:
    quote = '"' if delimiter == "," else ""
    rows = (f"{more}{quote}{source}{quote}{delimiter}{target}\n" for source, target in PAIRS)
    return (f"{header}\n" if header else "") + "".join(rows)


@pytest.mark.parametrize(
    ("name", "text", "notice"),
    [
        ("x.tsv", table("en\tde"), "x.tsv: line 1 is treated as a header: en, de. Use --no-header if it is a pair."),
        ("x.csv", table("English,German", ","), "x.csv: line 1 is treated as a header: English, German."),
        ("x.csv", table("en;de", ";"), "x.csv: columns are separated by ';'."),
        ("x.csv", table("", ";"), "x.csv: columns are separated by ';'."),
        ("x.csv", table("", "|"), "x.csv: columns are separated by '|'."),
        ("x.csv", table("id,en,de", ",", "7,"), "x.csv has 3 columns; 'en' and 'de' are used."),
    ],
)
def test_headers_and_delimiters_are_detected_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, text: str, notice: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, name, text)
    with caplog.at_level(logging.WARNING):
        assert read_pairs(Files(path=name)) == EXPECTED
    assert notice in caplog.text


INFLECTED = "gehen\tging\tV;PST;1;SG\nHaus\tHäuser\tN;PL;NOM\nsehen\tsah\tV;PST;1;SG\nMaus\tMäuse\tN;PL;NOM\n"


def test_tags_in_the_third_column_belong_to_the_source(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        pairs = read_pairs(Files(path=write(tmp_path, "x.tsv", INFLECTED)))
    assert (pairs.sources[0], pairs.targets[0]) == ("gehen\tV;PST;1;SG", "ging")
    notice = "the source is the first column with the tags in the third, such as V;PST;1;SG; the target is the second"
    assert f"{notice} column." in caplog.text
    data = resolve_files(FilesData(train=Files(path=str(tmp_path / "x.tsv"))))
    assert isinstance(data.train, Files)
    assert data.train.columns == ("1+3", "2")
    assert read_pairs(Files(path=str(tmp_path / "x.tsv"), columns=(1, 2))).sources[0] == "gehen"


@pytest.mark.parametrize(
    "third",
    [
        pytest.param("CC-BY 2.0 (France) Attribution: tatoeba.org #1", id="text"),
        pytest.param("easy", id="one value"),
        pytest.param("{0};{0}x", id="distinct values"),
    ],
)
def test_other_third_columns_are_not_tags(tmp_path: Path, third: str) -> None:
    lines = [f"a{number}\tb{number}\t{third.format(number)}\n" for number in range(30)]
    assert read_pairs(Files(path=write(tmp_path, "x.tsv", "".join(lines)))).sources[0] == "a0"


def test_a_comma_is_preferred_if_it_splits_all_lines(tmp_path: Path) -> None:
    assert read_pairs(Files(path=write(tmp_path, "x.csv", "a;b,c;d\n" * 3))) == Pairs(["a;b"] * 3, ["c;d"] * 3)


def test_the_delimiter_and_the_header_can_be_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, "x.txt", "en;de\n(a, b);c\n")
    with caplog.at_level(logging.WARNING):
        assert read_pairs(Files(path=path, delimiter=";", header=True)) == Pairs(["(a, b)"], ["c"])
        assert len(read_pairs(Files(path=path, delimiter=";", header=False))) == 2
    assert not caplog.text


def test_a_line_that_may_be_a_header_is_read_as_a_pair_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(read_pairs(Files(path=write(tmp_path, "x.tsv", "it\tes\nwho\twer\n")))) == 2
    assert "line 1 (it, es) may be a header; it is read as a pair. Use --header if it is one." in caplog.text


@pytest.mark.parametrize("columns", [("de", "en"), ("DE", " en")])
def test_columns_of_tsv_can_be_selected_by_name(tmp_path: Path, columns: tuple[str, str]) -> None:
    path = write(tmp_path, "x.tsv", "id\ten\tde\n1\tyes\tja\n")
    assert read_pairs(Files(path=path, columns=columns)) == Pairs(["ja"], ["yes"])


def test_a_missing_column_name_is_reported_with_the_existing_names(tmp_path: Path) -> None:
    path = write(tmp_path, "x.tsv", "english\tgerman\nyes\tja\n")
    with pytest.raises(DataError, match=r"no column germn\. Did you mean 'german'\? Line 1 has: english, german\."):
        read_pairs(Files(path=path, columns=("english", "germn")))
    with pytest.raises(ConfigError, match="en, de are names, but header is false"):
        resolve(Files, {"path": path, "columns": ["en", "de"], "header": False}, {})


def jsonl(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.mark.parametrize(
    ("record", "keys"),
    [
        ({"id": "0", "translation": {"en": "yes", "de": "ja"}}, ("translation.en", "translation.de")),
        ({"id": 7, "en": "yes", "de": "ja"}, ("en", "de")),
        ({"meta": {"from": "web"}, "source": "yes", "target": "ja", "note": ""}, ("source", "target")),
        ({"data": {"pair": {"en": "yes", "de": "ja"}}, "score": 1.0}, ("data.pair.en", "data.pair.de")),
    ],
)
def test_an_obvious_pair_of_keys_is_found_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, record: dict[str, Any], keys: tuple[str, str]
) -> None:
    for name in ("x.jsonl", "x"):
        path = write(tmp_path, name, jsonl(record, record))
        with caplog.at_level(logging.WARNING):
            assert read_pairs(Files(path=path)) == Pairs(["yes"] * 2, ["ja"] * 2)
    reported = f"'{keys[0]}' is used as the source and '{keys[1]}' as the target" in caplog.text
    assert reported == (keys != ("source", "target"))


def test_nested_keys_are_columns(tmp_path: Path) -> None:
    record = {"translation": {"en": "yes", "de": "ja"}, "a.b": "dotted", "tags": {"pos": "UH"}}
    path = write(tmp_path, "x.jsonl", jsonl(record))
    columns = ("translation.de+tags.pos", "translation.en")
    assert read_pairs(Files(path=path, columns=columns)) == Pairs(["ja\tUH"], ["yes"])
    assert read_pairs(Files(path=path, columns=("a.b", "translation.en"))) == Pairs(["dotted"], ["yes"])


def test_missing_keys_are_reported_with_the_existing_keys(tmp_path: Path) -> None:
    path = write(tmp_path, "x.jsonl", jsonl({"a": "1", "b": "2", "c": "3"}))
    with pytest.raises(
        DataError, match=r"x\.jsonl:1: no text under .*; the keys with text are a, b, c\. .*--columns a b\."
    ):
        read_pairs(Files(path=path))
    with pytest.raises(
        DataError, match=r"JSON records have keys, not column numbers \(1, 2\)\. .*--columns translation\.en"
    ):
        read_pairs(Files(path=path, columns=(1, 2)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tsv", "a\tb\n".encode("utf-16"), r"UTF-16 text.*`iconv -f UTF-16 -t UTF-8 x\.tsv > x\.utf8\.tsv`"),
        ("x.tsv", "abc\tb\n".encode("utf-16-le"), r"iconv -f UTF-16LE -t UTF-8"),
        ("x.tsv", "abc\tb\n".encode("utf-16-be"), r"iconv -f UTF-16BE -t UTF-8"),
        ("x.tsv", "a\tb\n".encode("utf-32"), r"iconv -f UTF-32 -t UTF-8"),
        ("x.tsv", "ab\té\n".encode("latin-1"), r"x\.tsv:1: byte 3 .* `iconv -f ISO-8859-1 -t UTF-8 x\.tsv > x\.utf8"),
        ("x y.tsv", "a\t€\n".encode("cp1252"), r"iconv -f WINDOWS-1252 -t UTF-8 'x y\.tsv' > 'x y\.utf8\.tsv'"),
        ("x.tsv.gz", gzip.compress("a\té\n".encode("latin-1"), mtime=0), r"zcat x\.tsv\.gz \| iconv .* > x\.utf8\.tsv"),
    ],
)  # fmt: skip
def test_other_encodings_are_reported_with_a_conversion_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_pairs(Files(path=name))


@pytest.mark.parametrize("name", ["x.tsv", "x.csv", "x.jsonl", "x.dict"])
def test_a_blank_line_is_a_pair_with_empty_sides(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    pair = {"x.tsv": "a\tb", "x.csv": "a,b", "x.jsonl": '{"source": "a", "target": "b"}', "x.dict": "a b"}[name]
    path = write(tmp_path, name, f"   \n{pair}\n\n")
    assert read_pairs(Files(path=path)) == Pairs(["", "a", ""], ["", "b", ""])
    with caplog.at_level(logging.WARNING):
        assert read_pairs(Files(path=path), drop_empty=True) == Pairs(["a"], ["b"])
    assert "skipped 2 lines with an empty side" in caplog.text


def test_a_run_stores_column_names_and_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "x.csv", table("en;de", ";"))
    write(tmp_path, "dev.csv", "de,en\nja,yes\n")
    write(tmp_path, "test.tsv", "yes\tja\n")
    data = resolve_files(resolve(FilesData, {"train": "x.csv", "dev": "dev.csv", "test": "test.tsv"}, {}))
    assert data.dev is not None
    assert data.test is not None
    assert (data.train.path, data.train.columns, data.train.header) == (str(tmp_path / "x.csv"), ("en", "de"), True)
    assert (data.dev.path, data.dev.columns) == (str(tmp_path / "dev.csv"), ("en", "de"))
    assert (data.test.path, data.test.columns, data.test.header) == (str(tmp_path / "test.tsv"), None, "auto")
    assert resolve_files(data) == data
    assert list(load_corpus(data).dev) == [("yes", "ja")]


def test_paths_in_a_folder_stay_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    write(tmp_path, "corpus/de.tsv", "ja\tyes\n")
    data = resolve_files(resolve(FilesData, {"folder": "corpus", "train": "{language}.tsv", "language": "de"}, {}))
    assert (data.folder, data.train.path) == (str(tmp_path / "corpus"), "{language}.tsv")


@pytest.mark.parametrize(
    ("lines", "changes", "expected"),
    [
        (999, {}, False),
        (1_000, {}, True),
        (1_000, {"test_split": False}, False),
        (1_000, {"dev": "dev.tsv"}, False),
        (1_000, {"test": "dev.tsv"}, False),
    ],
)
def test_a_test_set_is_held_out_if_there_are_enough_pairs_and_no_other_splits(
    tmp_path: Path, lines: int, changes: dict[str, Any], expected: bool
) -> None:
    write(tmp_path, "x.tsv", "".join(f"s{n}\tt{n}\n" for n in range(lines)))
    write(tmp_path, "dev.tsv", "a\tb\n")
    corpus = load_corpus(resolve(FilesData, {"folder": str(tmp_path), "train": "x.tsv", **changes}, {}))
    assert isinstance(corpus.test, Stream) is expected
    if expected:
        assert isinstance(corpus.test, Stream)
        assert 30 < len(list(corpus.test)) < 75


def test_about_a_thousand_pairs_of_a_large_corpus_are_held_out_for_testing(tmp_path: Path) -> None:
    path = write(tmp_path, "x.tsv", "".join(f"s{n}\tt{n}\n" for n in range(40_000)))
    assert 900 < len(list(load_corpus(FilesData(train=Files(path=path))).test or [])) < 1_100


def test_source_and_target_may_be_separated_by_bars(tmp_path: Path) -> None:
    """The format of fast_align, which gold alignments also use."""
    path = write(tmp_path, "deen.src-tgt", "ja ||| yes\n\nes gibt | ein Zeichen ||| there is | a sign\n")
    assert read_pairs(Files(path=path)) == Pairs(["ja", "", "es gibt | ein Zeichen"], ["yes", "", "there is | a sign"])
    path = write(tmp_path, "mixed.txt", "ja ||| yes\tno\n")
    assert read_pairs(Files(path=path)) == Pairs(["ja ||| yes"], ["no"])
    path = write(tmp_path, "bad.txt", "a ||| b\n" * 600 + "c\n")
    with pytest.raises(DataError, match=r"bad\.txt:601: 1 column instead of 2; columns are separated by \|\|\|"):
        read_pairs(Files(path=path))


def test_columns_with_the_same_name_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = "".join(f"aa {n},bb {n},cc {n}\n" for n in range(30))
    path = write(tmp_path, "x.csv", f"source,target,source\n{rows}")
    for settings in ({"header": True}, {"columns": ("source", "target")}):
        with pytest.raises(DataError, match="the columns 1, 3 have the same name, 'source'"):
            read_pairs(Files(path=str(path), **settings))
    assert next(iter(read_pairs(Files(path=str(path), columns=(1, 2), header=True)))) == ("aa 0", "bb 0")
    read_pairs(Files(path=str(path)))
    assert "may be a header" in caplog.text
