"""regard data: every way to say what is meant, exit codes, and reports that programs and people can read."""

import gzip
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.runs.folder import RunFolder

Run = Callable[..., subprocess.CompletedProcess[str]]

PAIRS = [(f"Satz Nummer {n}", f"sentence number {n}") for n in range(100, 150)]


def tsv(pairs: list[tuple[str, str]]) -> str:
    return "".join(f"{source}\t{target}\n" for source, target in pairs)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "train.tsv").write_text(tsv(PAIRS[:40]))
    (tmp_path / "dev.tsv").write_text(tsv(PAIRS[40:]))
    for place, ending in enumerate(("de", "en")):
        text = "".join(pair[place] + "\n" for pair in PAIRS)
        (tmp_path / f"all.{ending}.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "counts"),
    [
        (["dev.tsv", "train.tsv"], {"train.tsv": 40, "dev.tsv": 10}),
        (["--train", "train.tsv", "--test", "dev.tsv"], {"train": 40, "test": 10}),
        (["--source", "all.de.gz", "--target", "all.en.gz"], {"all.de.gz and all.en.gz": 50}),
        (["--train", "all.de.gz,all.en.gz", "--columns", "1", "2"], {"train": 50}),
        (["mine.yaml"], {"train": 40, "dev": 10}),
        (["sequences"], {"train": 20_000, "dev": 500, "test": 1_000}),
    ],
)
def test_each_way_to_name_the_pairs(cli: Run, data: Path, arguments: list[str], counts: dict[str, int]) -> None:
    (data / "mine.yaml").write_text("data: {kind: files, train: train.tsv, dev: dev.tsv}\n")
    done = cli("data", "check", *arguments, "--json", cwd=data)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert (found["pairs"], found["problems"]) == (counts, [])
    assert list(found["pairs"]) == list(counts)  # what is learned from comes first
    assert cli("data", "check", *arguments, cwd=data).stdout.endswith("No problems found.\n")


def test_what_is_held_out_is_known_by_a_word_in_its_name(cli: Run, tmp_path: Path) -> None:
    names = ["a-dev.tsv", "b_test2013.tsv", "devanagari.tsv", "latest.tsv"]
    for name in names:
        (tmp_path / name).write_text(tsv(PAIRS))
    found = json.loads(cli("data", "check", *names, "--json").stdout)
    assert list(found["pairs"]) == ["devanagari.tsv", "latest.tsv", "a-dev.tsv", "b_test2013.tsv"]


def test_a_run_is_checked_by_its_own_data(cli: Run, small_run: RunFolder) -> None:
    done = cli("data", "stats", small_run.path, "--json")
    assert [split["pairs"] for split in json.loads(done.stdout)["splits"]] == [400, 40, 40]


def test_problems_are_told_with_place_reason_and_remedy_and_exit_1(cli: Run, data: Path) -> None:
    (data / "train.tsv").write_text(
        tsv([*PAIRS[:40], ("leer", ""), PAIRS[41], ("Steuer\x1b[31m", "control")]) + "kein Paar\n"
    )
    done = cli("data", "check", "train.tsv", "dev.tsv")
    assert done.returncode == 1
    blocks = dict(re.findall(r"^\w+: [^\n]*\[([\w-]+)\]\n(.*?)\n(?=\n)", done.stdout + "\n", re.M | re.S))
    assert list(blocks) == ["no-pair", "empty", "control", "leak"]
    assert "train.tsv:44  1 column instead of 2" in blocks["no-pair"]
    assert "train.tsv:41  “leer” → “”" in blocks["empty"]
    assert "\\x1b[31m" in blocks["control"]
    assert "\x1b" not in done.stdout
    assert "they match 1 of the 10 pairs of dev.tsv (10.0%)" in blocks["leak"]
    assert all("remedy: " in block for block in blocks.values())
    assert "2 errors, 2 warnings." in done.stdout


def test_notes_alone_are_no_failure_and_kinds_can_be_left_out(cli: Run, data: Path) -> None:
    (data / "train.tsv").write_text(tsv([*PAIRS[:40], ("a &amp; b", "a and b"), ("leer", "")]))
    assert cli("data", "check", "train.tsv").returncode == 1
    done = cli("data", "check", "train.tsv", "--ignore", "empty")
    assert done.returncode == 0
    assert "1 note, and nothing that must be mended" in done.stdout
    done = cli("data", "check", "train.tsv", "--ignore", "emty")
    assert done.returncode == 2
    assert "Did you mean 'empty'?" in done.stderr


def test_a_cleaned_copy_is_written_and_said(cli: Run, data: Path) -> None:
    (data / "train.tsv").write_text(tsv([*PAIRS[:40], ("leer", "")]))
    done = cli("data", "check", "train.tsv", "dev.tsv", "--fix", "clean", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["problems"][0]["examples"] == [
        {"location": "train.tsv:41", "source": "leer", "target": ""}
    ]
    assert "clean/train.tsv: 40 pairs written; removed: empty 1" in done.stderr
    assert (data / "clean" / "train.tsv").read_text() == tsv(PAIRS[:40])
    assert cli("data", "check", "clean/train.tsv", "clean/dev.tsv").returncode == 0
    assert cli("data", "check", "train.tsv", "--fix", ".").returncode == 3


def test_what_is_learned_from_tells_whether_there_are_tags(cli: Run, data: Path) -> None:
    forms = [f"{'abcdefgh'[n % 8] * 3}{n}\t{'abcdefgh'[n % 8] * 3}{n}ed\tV;PST\n" for n in range(40)]
    few = "go\tgoing\tV;PTCP\n"
    (data / "forms.tsv").write_text("".join(forms))
    (data / "forms-dev.tsv").write_text(few)
    done = cli("data", "check", "forms.tsv", "forms-dev.tsv", "--columns", "1+3", "2", "--fix", "clean")
    assert done.returncode == 0, done.stdout
    assert "Tags stand in the third column" in done.stderr
    assert (data / "clean" / "forms-dev.tsv").read_text() == few


def test_languages_that_are_learned_together_are_looked_at_but_not_written_to_one_file(cli: Run, data: Path) -> None:
    for name in ("de", "fr"):
        (data / f"{name}.tsv").write_text(tsv(PAIRS[:40]))
    both = {"kind": "files", "train": "{language}.tsv", "language": ["de", "fr"]}
    (data / "both.yaml").write_text(json.dumps({"data": both, "tokenizer": {"kind": "char", "tags": True}}))
    assert cli("data", "check", "both.yaml").returncode == 0
    done = cli("data", "check", "both.yaml", "--fix", "clean")
    assert done.returncode == 2
    assert "give the files of each by itself" in done.stderr
    assert not (data / "clean").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.tsv"], 3, "There is no file none.tsv"),
        (["--source", "train.tsv", "--target", "dev.tsv"], 3, "has 40 lines and dev.tsv has 10"),
        (["--source", "train.tsv"], 2, "--source with --target"),
        ([], 2, "Give FILES"),
        (["train.tsv", "--train", "train.tsv"], 2, "Give FILES"),
        (["none.yaml"], 2, "There is no file none.yaml"),
        (["train.tsv", "--columns", "de,en", "--json"], 2, "for example --columns de en"),
        (["train.tsv", "--columns", "de"], 2, "--columns"),
        (["train.tsv", "--columns", "de", "en"], 3, "there is no column de, en. Line 1 has: Satz Nummer 100"),
    ],
)
def test_what_cannot_be_read_is_told(cli: Run, data: Path, arguments: list[str], code: int, message: str) -> None:
    for verb in ("check", "stats"):
        done = cli("data", verb, *arguments)
        assert done.returncode == code
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_statistics_for_people_and_for_programs(cli: Run, data: Path) -> None:
    (data / "train.tsv").write_text(tsv([*PAIRS[:40], PAIRS[0], PAIRS[45]]) + "kein Paar\n")
    done = cli("data", "stats", "train.tsv", "dev.tsv")
    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["pairs", "42", "10"] in lines
    assert ["lines", "that", "are", "no", "pair", "1", "0"] in lines
    assert ["distinct", "sources", "41", "10"] in lines
    assert ["source", "characters", "15", "15", "15", "15", "15"] in lines
    assert ["scripts", "Latin", "100.0%"] in lines
    assert (
        "pairs that also occur in another split: 1 of train.tsv, they match 1 of the 10 pairs of dev.tsv" in done.stdout
    )
    found = json.loads(cli("data", "stats", "train.tsv", "dev.tsv", "--json").stdout)
    assert found["splits"][0]["target"]["chars"]["max"] == len("sentence number 100")
    assert {(shared["kind"], shared["count"]) for shared in found["shared"]} == {("duplicate", 1), ("leak", 1)}


def test_a_file_without_a_single_pair_is_counted_too(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("no pair\nat all\n")
    done = cli("data", "stats", "x.txt")
    assert done.returncode == 0
    assert "lines that are no pair  2" in done.stdout
    assert cli("data", "check", "x.txt").returncode == 1


@pytest.mark.parametrize("verb", ["check", "stats"])
def test_help_ends_in_examples(cli: Run, verb: str) -> None:
    done = cli("data", verb, "-h")
    assert done.returncode == 0
    assert f"regard data {verb}" in done.stdout.partition("Examples:")[2]
