"""Readers: every format, gzipped or not, and every problem of a file."""

import gzip
import io
import json
import logging
import os
import random
from pathlib import Path
from typing import Any

import pytest

from regard.config import resolve
from regard.data import lines, pair_files
from regard.data.corpora import Pairs, load_corpus, read_pairs
from regard.data.lines import MAX_BYTES, read_lines
from regard.data.pair_files import read_rows
from regard.data.settings import Files, FilesData
from regard.errors import ConfigError, DataError
from regard.runs.settings import RunSettings

EXPECTED = Pairs(["Guten Tag", "ja, bitte", "ä\u2028ö"], ["good day", "yes, please", "a\x0bo"])
ROWS = list(zip(EXPECTED.sources, EXPECTED.targets, strict=True))

FORMATS = {
    "data.tsv": "".join(f"{source}\t{target}\n" for source, target in ROWS),
    "data.csv": "source,target\n" + "".join(f'"{source}","{target}"\n' for source, target in ROWS),
    "data.jsonl": "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in ROWS),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", list(FORMATS))
def test_reads_each_format(tmp_path: Path, name: str, zipped: bool) -> None:
    data = FORMATS[name].encode()
    path = tmp_path / (name + ".gz" if zipped else name)
    path.write_bytes(gzip.compress(data) if zipped else data)
    assert read_pairs(Files(path=str(path))) == EXPECTED


def test_reads_parallel_files_and_a_last_line_without_a_newline(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("\n".join(EXPECTED.sources), "utf-8")
    (tmp_path / "b").write_bytes(gzip.compress("\n".join(EXPECTED.targets).encode()))
    assert read_pairs(Files(source=str(tmp_path / "a"), target=str(tmp_path / "b"))) == EXPECTED


def test_columns_by_number_and_by_name(tmp_path: Path) -> None:
    (tmp_path / "three.tsv").write_text("lemma\tV;PST\tform\n")
    assert read_pairs(Files(path=str(tmp_path / "three.tsv"), columns=(1, 3))) == Pairs(["lemma"], ["form"])
    (tmp_path / "named.csv").write_text("id,de,en\n1,ja,yes\n")
    assert read_pairs(Files(path=str(tmp_path / "named.csv"), columns=("de", "en"))) == Pairs(["ja"], ["yes"])
    (tmp_path / "bare.csv").write_text("ja,yes\nnein,no\n")
    assert len(read_pairs(Files(path=str(tmp_path / "bare.csv")))) == 2


def test_byte_order_mark_and_windows_line_endings_are_removed_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "w.tsv").write_bytes(b"\xef\xbb\xbfja\tyes\r\nnein\tno\r\n")
    with caplog.at_level(logging.WARNING):
        assert read_pairs(Files(path=str(tmp_path / "w.tsv"))) == Pairs(["ja", "nein"], ["yes", "no"])
    assert "byte order mark" in caplog.text
    assert "2 lines" in caplog.text


def test_only_newlines_end_lines(tmp_path: Path) -> None:
    text = "a\u2028b\u0085c\x0bd\x0ce\x1cf\n\nlast"
    (tmp_path / "odd").write_text(text, "utf-8")
    assert [line.text for line in read_lines(tmp_path / "odd")] == text.split("\n")


@pytest.mark.parametrize("block", [1, 2, 5])
def test_rows_do_not_depend_on_the_blocks_that_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    texts = ["a\tb\tc", "d\te", "", "no pair", "f\t", "\tg\th", "i\t\0", "j\tk", " \t ", "l\tm", "n\to"]
    (tmp_path / "x.tsv").write_text("\n".join(texts))
    (tmp_path / "left").write_text("\n".join(texts))
    (tmp_path / "right").write_text("\n".join(reversed(texts)))
    table, parallel = (
        Files(path=str(tmp_path / "x.tsv")),
        Files(source=str(tmp_path / "left"), target=str(tmp_path / "right")),
    )
    expected = [list(read_rows(files)) for files in (table, parallel)]
    assert [row.location.rpartition(":")[2] for row in expected[0]] == [str(number) for number in range(1, 12)]
    monkeypatch.setattr(pair_files, "_BLOCK", block)
    assert [list(read_rows(files)) for files in (table, parallel)] == expected
    (tmp_path / "right").write_text("\n".join(texts[:4]))
    with pytest.raises(DataError, match=r"left has 11 lines and .*right has 4"):
        list(read_rows(parallel))


def split_lines(content: bytes, max_bytes: int) -> list[tuple[str, bool]]:
    """Split a file into lines one by one: the text of each, and whether it has a problem."""
    lines = []
    for raw in content.removesuffix(b"\n").split(b"\n"):
        line = raw.removesuffix(b"\r")
        too_long, text = len(raw) > max_bytes, line.decode("utf-8", "replace")
        problem = too_long or b"\0" in line or "\ufffd" in text
        lines.append(("" if too_long or b"\0" in line else text, problem))
    return lines


@pytest.mark.parametrize("block", [1, 3, 16, 1000])
def test_lines_do_not_depend_on_the_blocks_that_are_read(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(lines, "MAX_BYTES", 12)
    monkeypatch.setattr(lines, "_BLOCK", block)
    generator = random.Random(block)
    pieces = [b"a", b"bc", "ü".encode(), b"\n", b"\n", b"\r\n", b"\0", b"\xff", b"a long piece"]
    for _ in range(300):
        content = b"first\n" + b"".join(generator.choices(pieces, weights=[9, 9, 5, 5, 5, 1, 1, 1, 1], k=20))
        parsed = list(lines.parse_lines(io.BytesIO(content), "file"))
        assert [line.number for line in parsed] == list(range(1, len(parsed) + 1))
        assert [(line.text, line.problem is not None) for line in parsed] == split_lines(content, 12)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tsv", b"", "is empty"),
        ("x.tsv", b"a\tb\nc d\n", r"x.tsv:2: 1 column instead of 2; columns are separated by a tab"),
        ("x.tsv", b"a\tb\nc\t\xff\n", r"x.tsv:2: byte 2 is not UTF-8 \(0xff\)"),
        ("x.tsv", b"a\tb\nc\0\td\n", r"x.tsv:2: a NUL byte at byte 1"),
        ("x.tsv", b"a" * (MAX_BYTES + 1) + b"\tb\n", r"x.tsv:1: the line is longer than"),
        ("x.tsv.gz", gzip.compress(b"a\tb\n" * 999, mtime=0)[:-20], "damaged gzip"),
        ("x.tsv", b"\t\n", "no usable pairs"),
        ("x.jsonl", b'{"source": "a", "target": "b"}\n{"source": 1}\n', r"x.jsonl:2: no text under"),
        ("x.jsonl", b"{broken\n", r"x.jsonl:1: not valid JSON"),
        ("x.jsonl", b'{"source": ' + b"[" * 100_000 + b"\n", r"x.jsonl:1: not valid JSON: it is nested too deeply"),
        ("x.jsonl", b'{"source": ' + b"9" * 5_000 + b"}\n", r"x.jsonl:1: not valid JSON: a number has too many digits"),
        ("x.jsonl", b'{"source": "\\ud800", "target": "b"}\n', r"x.jsonl:1: an escape such as .ud800"),
        ("x.jsonl", b"[1, 2]\n", r"x.jsonl:1: not an object"),
        ("x.csv", b'source,target\n"a,b\n', "not valid CSV"),
    ],
)
def test_a_bad_file_is_reported_with_line_and_remedy(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_pairs(Files(path=str(tmp_path / name)), drop_empty=True)


def test_missing_files_and_folders_are_distinguished(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        read_pairs(Files(path=str(tmp_path / "none.tsv")))
    with pytest.raises(DataError, match="is a folder"):
        read_pairs(Files(path=str(tmp_path)))


@pytest.mark.parametrize("split", ["train", "dev", "test"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "There is no file"),
        (b"", "is empty"),
        (b"a\tb\nc\0\td\n", "bad:2: a NUL byte"),
        (b"a\t" + b"b" * 1_000_000 + b"\n", "bad:1: the line is longer"),
        (b"a\tb\nc\t\xff\n", "bad:2: byte 2 is not UTF-8"),
        (gzip.compress(b"a\tb\n" * 999, mtime=0)[:-20], "damaged gzip"),
        (gzip.compress(b"", mtime=0), "no usable pairs"),
    ],
    ids=["missing", "empty", "nul", "long", "utf-8", "truncated gzip", "empty gzip"],
)
def test_problems_are_reported_in_each_split(tmp_path: Path, split: str, content: bytes | None, message: str) -> None:
    (tmp_path / "good").write_text("a\tb\nc\td\n")
    if content is not None:
        (tmp_path / "bad").write_bytes(content)
    files = {
        name: Files(path=str(tmp_path / ("bad" if name == split else "good"))) for name in ("train", "dev", "test")
    }
    with pytest.raises(DataError, match=message):
        list(load_corpus(FilesData(**files)).train)


@pytest.mark.posix
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_folders_unequal_counts_and_pipes_are_rejected_in_each_split(tmp_path: Path, split: str) -> None:
    good = Files(path=str(tmp_path / "good"))
    (tmp_path / "good").write_text("a\tb\nc\td\n")
    (tmp_path / "three").write_text("x\n" * 3)
    (tmp_path / "four").write_text("x\n" * 4)
    os.mkfifo(tmp_path / "pipe")
    for files, message in (
        (Files(path=str(tmp_path)), "is a folder"),
        (Files(source=str(tmp_path / "three"), target=str(tmp_path / "four")), "three has 3 lines and .*four has 4"),
        *([(Files(path=str(tmp_path / "pipe")), "read several times")] if split != "test" else []),
    ):
        with pytest.raises(DataError, match=message):
            list(load_corpus(FilesData(**{"train": good, "dev": good, split: files})).train)


@pytest.mark.parametrize("counts", [(3, 5), (5, 3)])
def test_unequal_line_counts_are_reported(tmp_path: Path, counts: tuple[int, int]) -> None:
    for name, count in zip("ab", counts, strict=True):
        (tmp_path / name).write_text("x\n" * count)
    with pytest.raises(DataError, match=rf"has {counts[0]} lines and .* has {counts[1]}\."):
        read_pairs(Files(source=str(tmp_path / "a"), target=str(tmp_path / "b")))


def test_bad_lines_can_be_skipped_and_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "x.tsv").write_bytes(b"a\tb\nbroken\nc\t\xff\nd\te\n\tempty\n")
    with caplog.at_level(logging.WARNING):
        pairs = read_pairs(Files(path=str(tmp_path / "x.tsv")), skip_bad_lines=True, drop_empty=True)
    assert pairs == Pairs(["a", "d"], ["b", "e"])
    assert "skipped 2 lines without a pair, the first at" in caplog.text
    assert "skipped 1 line with an empty side" in caplog.text


def test_without_dev_files_some_sources_are_held_out(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("".join(f"s{n % 500}\tt{n}\n" for n in range(1000)))
    corpus = load_corpus(FilesData(train=Files(path=str(path))))
    train, dev, test = Pairs.of(corpus.train), Pairs.of(corpus.dev), Pairs.of(corpus.test or [])
    assert len(train) + len(dev) + len(test) == 1000
    assert 10 < len(dev) < 120
    assert 10 < len(test) < 120
    assert len({*train.sources, *dev.sources, *test.sources}) == sum(
        len(set(part.sources)) for part in (train, dev, test)
    )


def test_dev_pairs_with_a_training_source_can_be_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "train.tsv").write_text("read\tR IY D\nlead\tL EH D\n")
    (tmp_path / "dev.tsv").write_text("read\tR EH D\ncat\tK AE T\nlead\tL IY D\ncat\tK AH T\n")
    files = {"folder": str(tmp_path), "train": "train.tsv", "dev": "dev.tsv"}
    assert len(list(load_corpus(FilesData.model_validate(files)).dev)) == 4
    unseen = load_corpus(FilesData.model_validate({**files, "dev_unseen": True}))
    with caplog.at_level(logging.WARNING):
        assert list(unseen.dev) == [("cat", "K AE T"), ("cat", "K AH T")]
    assert "dev.tsv: removed 2 of 4 pairs from validation" in caplog.text
    (tmp_path / "dev.tsv").write_text("read\tR EH D\n")
    with pytest.raises(DataError, match="every source is also in the training data"):
        list(load_corpus(FilesData.model_validate({**files, "dev_unseen": True})).dev)


@pytest.mark.slow
def test_about_two_thousand_pairs_of_a_large_corpus_are_held_out(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("".join(f"s{n}\tt{n}\n" for n in range(100_000)))
    corpus = load_corpus(FilesData(train=Files(path=str(path))))
    assert 1_700 < len(list(corpus.dev)) < 2_300


def test_a_sample_contains_every_nth_training_pair(tmp_path: Path) -> None:
    lines = [f"{number}\t{number}\n" for number in range(1_000)]
    (tmp_path / "train.tsv").write_text("".join(lines))
    corpus = load_corpus(FilesData(train=Files(path=str(tmp_path / "train.tsv"))))
    assert corpus.sample(1_000) is corpus
    sample, pairs = corpus.sample(300), list(corpus.train)
    assert list(sample.train) == pairs[::4]
    assert sample.share == 1 / 4
    assert sample.train_rows is not None
    rows = list(sample.train_rows())  # parallel to the file, as its word alignments are
    assert len(rows) == len(lines)
    assert [row for row in rows if row is not None] == pairs[::4]
    assert sample.fingerprint() != corpus.fingerprint()


def test_a_stream_reads_its_file_on_each_iteration(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("a\tb\nc\td\n")
    corpus = load_corpus(FilesData(train=Files(path=str(path)), dev=Files(path=str(path))))
    assert list(corpus.train) == list(corpus.train) == [("a", "b"), ("c", "d")]
    before = corpus.fingerprint()
    path.write_text("a\tb\nc\te\n")
    assert corpus.fingerprint() != before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.tsv", "laufen\tlief\tV;PST\n"),
        ("x.csv", "laufen,lief,V;PST\n"),
    ],
)
def test_several_columns_are_joined(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    files = Files(path=str(tmp_path / name), columns=("1+3", 2))
    assert read_pairs(files) == Pairs(["laufen\tV;PST"], ["lief"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", "lemma,form,tags\nlaufen,lief,V;PST\n"),
        ("x.jsonl", '{"lemma": "laufen", "form": "lief", "tags": "V;PST"}\n'),
    ],
)
def test_several_named_columns_are_joined(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    files = Files(path=str(tmp_path / name), columns=("lemma+tags", "form"))
    assert read_pairs(files) == Pairs(["laufen\tV;PST"], ["lief"])


def test_reads_dictionaries(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("HELLO  HH AH L OW\nA B\n")
    files = Files(path=str(tmp_path / "words.txt"), format="dictionary")
    assert read_pairs(files) == Pairs(["HELLO", "A"], ["HH AH L OW", "B"])
    (tmp_path / "bad.dict").write_text("HELLO\n")
    with pytest.raises(DataError, match=r"bad\.dict:1: 1 column instead of 2; columns are separated by a space"):
        read_pairs(Files(path=str(tmp_path / "bad.dict")))


def test_numbered_columns_with_a_header(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("source,target\na,b\n")
    assert read_pairs(Files(path=str(tmp_path / "x.csv"), columns=(2, 1))) == Pairs(["b"], ["a"])
    assert read_pairs(Files(path=str(tmp_path / "x.csv"))) == Pairs(["a"], ["b"])


def test_a_bad_byte_in_a_multi_line_cell_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b'a,b\n"x\xff\ny",z\n')
    with pytest.raises(DataError, match=r"x\.csv:3: byte 2 is not UTF-8"):
        read_pairs(Files(path=str(tmp_path / "x.csv")))


def test_enough_pairs_of_a_small_corpus_are_held_out(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("".join(f"s{n}\tt{n}\n" for n in range(300)))
    assert 30 < len(list(load_corpus(FilesData(train=Files(path=str(path)))).dev)) < 80


def test_a_missing_corpus_folder_is_reported_with_its_setting() -> None:
    settings = FilesData(folder="nowhere", language="bul", train=Files(path="{language}.tsv"))
    with pytest.raises(DataError, match=r"no file nowhere/bul\.tsv\. .* data\.folder="):
        load_corpus(settings)


@pytest.mark.parametrize("columns", [(0, 1), ("1+0", 2), ("0", "1")])
def test_columns_are_counted_from_1(columns: tuple[str | int, str | int]) -> None:
    with pytest.raises(ValueError, match="column"):
        Files(path="x.tsv", columns=columns)


def test_training_files_are_not_read_when_a_corpus_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dev.tsv").write_text("a\tb\n")
    Path("test.tsv").write_text("c\td\n")
    data = resolve(FilesData, {"train": "gone.tsv", "dev": "dev.tsv", "test": "test.tsv"}, {})
    assert load_corpus(data).test == Pairs(["c"], ["d"])


def _write_languages(folder: Path) -> None:
    for name, word in (("de", "ja"), ("fr", "oui")):
        for split in ("train", "dev"):
            (folder / f"{name}-{split}.tsv").write_text(f"{word}\t{name} {split}\n", encoding="utf-8")


def load_settings(folder: Path, **changes: Any) -> FilesData:
    settings = {
        "folder": str(folder),
        "language": ["de", "fr"],
        "train": "{language}-train.tsv",
        "dev": "{language}-dev.tsv",
    }
    return resolve(FilesData, {**settings, **changes}, {})


def test_several_languages_are_combined_with_the_language_as_a_tag(tmp_path: Path) -> None:
    _write_languages(tmp_path)
    corpus = load_corpus(load_settings(tmp_path))
    assert list(corpus.train) == [("ja\tde", "de train"), ("oui\tfr", "fr train")]
    assert list(corpus.dev) == [("ja\tde", "de dev"), ("oui\tfr", "fr dev")]
    assert [Path(path).name for path in corpus.files] == ["de-train.tsv", "fr-train.tsv", "de-dev.tsv", "fr-dev.tsv"]


def test_the_language_is_added_to_existing_tags(tmp_path: Path) -> None:
    for name in ("de", "fr"):
        (tmp_path / f"{name}.tsv").write_text("gehen\tging\tV;PST\n", encoding="utf-8")
    corpus = load_corpus(load_settings(tmp_path, train={"path": "{language}.tsv", "columns": ["1+3", 2]}, dev=None))
    assert {source for part in (corpus.train, corpus.dev) for source, _ in part} == {
        "gehen\tV;PST;de", "gehen\tV;PST;fr"
    }  # fmt: skip


def test_a_missing_file_of_one_language_is_reported(tmp_path: Path) -> None:
    _write_languages(tmp_path)
    (tmp_path / "fr-train.tsv").unlink()
    with pytest.raises(DataError, match=r"fr-train\.tsv"):
        load_corpus(load_settings(tmp_path))


def test_several_languages_require_tags(tmp_path: Path) -> None:
    data = load_settings(tmp_path).model_dump(mode="json")
    with pytest.raises(ConfigError, match=r"Set tokenizer\.tags=true"):
        resolve(RunSettings, {"data": data}, {})
    with pytest.raises(ConfigError, match=r"Set tokenizer\.source\.tags=true"):
        resolve(RunSettings, {"data": data, "tokenizer": {"source": "char", "target": "word"}}, {})
    resolve(RunSettings, {"data": data, "tokenizer": {"kind": "char", "tags": True}}, {})


def test_an_empty_source_stays_empty_with_a_language_tag(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _write_languages(tmp_path)
    with (tmp_path / "de-train.tsv").open("a", encoding="utf-8") as file:
        file.write("\tleer\n")
    assert len(list(load_corpus(load_settings(tmp_path)).train)) == 2
    assert "skipped 1 line with an empty side" in caplog.text


@pytest.mark.parametrize("language", [[], ["old norse"], ["a;b"], [""]])
def test_languages_must_be_valid_tags(tmp_path: Path, language: list[str]) -> None:
    with pytest.raises(ConfigError, match="which separate tags"):
        load_settings(tmp_path, language=language)


def test_a_file_name_without_the_language_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dev: all\.tsv would be read once for each language"):
        load_settings(tmp_path, dev="all.tsv")
