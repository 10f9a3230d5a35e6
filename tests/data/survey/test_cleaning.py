"""Cleaned copies: certain corrections are made, other problems are removed, and held-out data is kept."""

from collections import Counter
from pathlib import Path

import pytest

from regard.data.corpora import read_pairs
from regard.data.settings import Files
from regard.data.survey.cleaning import clean, summarize
from regard.data.survey.problems import Finding, Limits, find_problems
from regard.data.survey.scripts import Characters
from regard.data.survey.survey import Split, Survey, survey_split
from regard.errors import DataError

CLEAN = [(f"мы и они {n} раз", f"we and they {n} times") for n in range(100, 300)]
BAD = [
    ("we all are here", "мы все здесь"),
    ("мы  в кафе ", "we are in the cafÃ©"),
    ("и\u200bки", "i ki"),
    ("один", ""),
    ("это по-английски", "это тоже по-русски"),
]
UNCHANGED = [("this  is English", "so is this")]
SHARED = [("и это тоже", "and this too")]


def find_in_files(folder: Path, **splits: str) -> tuple[list[Survey], list[Finding]]:
    characters = Characters()
    surveys = []
    for name, text in splits.items():
        (folder / f"{name}.tsv").write_text(text, "utf-8")
        surveys.append(survey_split(Split.of_files(name, Files(path=str(folder / f"{name}.tsv"))), characters))
    return surveys, find_problems(surveys, characters, Limits())


def tsv(pairs: list[tuple[str, str]]) -> str:
    return "".join(f"{source}\t{target}\n" for source, target in pairs)


def test_a_cleaned_copy_has_no_problem_left(tmp_path: Path) -> None:
    train, dev = tsv(CLEAN[:20] + BAD + SHARED + CLEAN[20:]) + "no pair\n", tsv(SHARED) + "one\t\n" + tsv(UNCHANGED)
    surveys, findings = find_in_files(tmp_path, train=train, dev=dev)
    counts = clean(surveys, findings, tmp_path / "out")
    cleaned = read_pairs(Files(path=str(tmp_path / "out" / "train.tsv")))
    fixed = [("мы все здесь", "we all are here"), ("мы в кафе", "we are in the café"), ("ики", "i ki")]
    assert list(zip(cleaned.sources, cleaned.targets, strict=True)) == CLEAN[:20] + fixed + CLEAN[20:]
    held_out = read_pairs(Files(path=str(tmp_path / "out" / "dev.tsv")))
    assert list(zip(held_out.sources, held_out.targets, strict=True)) == SHARED + UNCHANGED
    assert counts[tmp_path / "out" / "train.tsv"] == Counter(
        {
            "written": 203,
            "removed: no-pair": 1,
            "removed: empty": 1,
            "removed: script": 1,
            "removed: leak": 1,
            "fixed: swapped": 1,
            "fixed: mojibake": 1,
            "fixed: control": 1,
            "fixed: spaces": 1,
        }
    )
    assert "dev.tsv: 2 pairs written; removed: empty 1" in summarize(counts)[1]
    again = (tmp_path / "out" / "train.tsv").read_text("utf-8")
    (tmp_path / "again").mkdir()
    assert find_in_files(tmp_path / "again", train=again)[1] == []


def test_notes_do_not_change_the_pairs(tmp_path: Path) -> None:
    surveys, findings = find_in_files(
        tmp_path, train=tsv([("это", "this"), ("это", "that"), ("и &amp; и", "and & and")])
    )
    assert {finding.kind.name for finding in findings} == {"ambiguous", "markup"}
    clean(surveys, findings, tmp_path / "out")
    assert (tmp_path / "out" / "train.tsv").read_text() == (tmp_path / "train.tsv").read_text()


def test_files_are_not_overwritten(tmp_path: Path) -> None:
    surveys, findings = find_in_files(tmp_path, train=tsv(CLEAN))
    with pytest.raises(DataError, match="already exists"):
        clean(surveys, findings, tmp_path)
    assert (tmp_path / "train.tsv").read_text("utf-8") == tsv(CLEAN)


def test_tags_are_written_to_a_third_column(tmp_path: Path) -> None:
    text = "go\twent\tV;PST\ngo\tgoes\tV;PRS\nbe\t\tV;PST\nbe\tis\tV;PRS\n"
    (tmp_path / "forms.tsv").write_text(text)
    characters = Characters()
    survey = survey_split(
        Split.of_files("forms", Files(path=str(tmp_path / "forms.tsv"), columns=("1+3", "2"))), characters
    )
    clean([survey], find_problems([survey], characters, Limits()), tmp_path / "out")
    assert (tmp_path / "out" / "forms.tsv").read_text() == text.replace("be\t\tV;PST\n", "")


def test_tabs_from_other_formats_do_not_break_the_columns(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"source": "a\\tb", "target": "c"}\n')
    characters = Characters()
    survey = survey_split(Split.of_files("x.jsonl", Files(path=str(tmp_path / "x.jsonl"))), characters)
    clean([survey], [], tmp_path)
    assert (tmp_path / "x.tsv").read_text() == "a b\tc\n"
