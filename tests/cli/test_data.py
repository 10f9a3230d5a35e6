"""`regard data`: inputs, exit codes, and reports as text and as JSON."""

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
    for side, language in enumerate(("de", "en")):
        text = "".join(pair[side] + "\n" for pair in PAIRS)
        (tmp_path / f"all.{language}.gz").write_bytes(gzip.compress(text.encode()))
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
def test_check_accepts_every_form_of_input(cli: Run, data: Path, arguments: list[str], counts: dict[str, int]) -> None:
    (data / "mine.yaml").write_text("data: {kind: files, train: train.tsv, dev: dev.tsv}\n")
    done = cli("data", "check", *arguments, "--json", cwd=data)
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert (report["pairs"], report["problems"]) == (counts, [])
    assert list(report["pairs"]) == list(counts)  # training data comes first
    assert cli("data", "check", *arguments, cwd=data).stdout.endswith("No problems found.\n")


def test_held_out_files_are_recognized_by_a_word_in_their_name(cli: Run, tmp_path: Path) -> None:
    names = ["a-dev.tsv", "b_test2013.tsv", "devanagari.tsv", "latest.tsv"]
    for name in names:
        (tmp_path / name).write_text(tsv(PAIRS))
    report = json.loads(cli("data", "check", *names, "--json").stdout)
    assert list(report["pairs"]) == ["devanagari.tsv", "latest.tsv", "a-dev.tsv", "b_test2013.tsv"]


def test_stats_of_a_run_describe_its_training_data(cli: Run, small_run: RunFolder) -> None:
    done = cli("data", "stats", small_run.path, "--json")
    assert [split["pairs"] for split in json.loads(done.stdout)["splits"]] == [400, 40, 40]


def test_problems_are_printed_with_location_reason_and_remedy_and_exit_1(cli: Run, data: Path) -> None:
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


def test_notes_do_not_fail_the_check_and_kinds_can_be_ignored(cli: Run, data: Path) -> None:
    (data / "train.tsv").write_text(tsv([*PAIRS[:40], ("a &amp; b", "a and b"), ("leer", "")]))
    assert cli("data", "check", "train.tsv").returncode == 1
    done = cli("data", "check", "train.tsv", "--ignore", "empty")
    assert done.returncode == 0
    assert "1 note, no errors or warnings" in done.stdout
    done = cli("data", "check", "train.tsv", "--ignore", "emty")
    assert done.returncode == 2
    assert "Did you mean 'empty'?" in done.stderr


def test_fix_writes_a_cleaned_copy_and_reports_it(cli: Run, data: Path) -> None:
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


def test_tags_are_detected_in_the_training_data(cli: Run, data: Path) -> None:
    forms = [f"{'abcdefgh'[n % 8] * 3}{n}\t{'abcdefgh'[n % 8] * 3}{n}ed\tV;PST\n" for n in range(40)]
    few = "go\tgoing\tV;PTCP\n"
    (data / "forms.tsv").write_text("".join(forms))
    (data / "forms-dev.tsv").write_text(few)
    done = cli("data", "check", "forms.tsv", "forms-dev.tsv", "--columns", "1+3", "2", "--fix", "clean")
    assert done.returncode == 0, done.stdout
    assert "The third column contains tags" in done.stderr
    assert (data / "clean" / "forms-dev.tsv").read_text() == few


def test_forms_that_differ_only_in_their_tags_are_not_duplicates(cli: Run, tmp_path: Path) -> None:
    """The note on the third column is printed once, for all files."""
    forms = [(f"word{n}", f"word{n}", tags) for n in range(30) for tags in ("N;NOM;SG", "N;ACC;SG")]
    for name in ("train.tsv", "dev.tsv"):
        lines = ("\t".join(form) + "\n" for form in (forms[:40] if name == "train.tsv" else forms[40:]))
        (tmp_path / name).write_text("".join(lines))
    done = cli("data", "check", "train.tsv", "dev.tsv", "--json")
    assert [problem["kind"] for problem in json.loads(done.stdout)["problems"]] == []
    assert done.stderr.count("the source is the first column with the tags in the third, such as N;NOM;SG") == 1


def test_several_languages_are_checked_but_not_written_to_one_file(cli: Run, data: Path) -> None:
    for name in ("de", "fr"):
        (data / f"{name}.tsv").write_text(tsv(PAIRS[:40]))
    both = {"kind": "files", "train": "{language}.tsv", "language": ["de", "fr"]}
    (data / "both.yaml").write_text(json.dumps({"data": both, "tokenizer": {"kind": "char", "tags": True}}))
    assert cli("data", "check", "both.yaml").returncode == 0
    done = cli("data", "check", "both.yaml", "--fix", "clean")
    assert done.returncode == 2
    assert "Check the files of each language separately" in done.stderr
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
@pytest.mark.parametrize("verb", ["check", "stats"])
def test_unreadable_input_is_reported(
    cli: Run, data: Path, verb: str, arguments: list[str], code: int, message: str
) -> None:
    done = cli("data", verb, *arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_statistics_are_printed_as_text_and_as_json(cli: Run, data: Path) -> None:
    (data / "train.tsv").write_text(tsv([*PAIRS[:40], PAIRS[0], PAIRS[45]]) + "kein Paar\n")
    done = cli("data", "stats", "train.tsv", "dev.tsv")
    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["pairs", "42", "10"] in lines
    assert ["lines", "without", "a", "pair", "1", "0"] in lines
    assert ["distinct", "sources", "41", "10"] in lines
    assert ["source", "characters", "15", "15", "15", "15", "15"] in lines
    assert ["scripts", "Latin", "100.0%"] in lines
    assert (
        "pairs that also occur in another split: 1 of train.tsv, they match 1 of the 10 pairs of dev.tsv" in done.stdout
    )
    report = json.loads(cli("data", "stats", "train.tsv", "dev.tsv", "--json").stdout)
    assert report["splits"][0]["target"]["chars"]["max"] == len("sentence number 100")
    assert {(shared["kind"], shared["count"]) for shared in report["shared"]} == {("duplicate", 1), ("leak", 1)}


def test_a_file_without_pairs_is_counted(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("no pair\nat all\n")
    done = cli("data", "stats", "x.txt")
    assert done.returncode == 0
    assert "lines without a pair  2" in done.stdout
    assert cli("data", "check", "x.txt").returncode == 1


@pytest.mark.parametrize("verb", ["check", "stats"])
def test_help_ends_in_examples(cli: Run, verb: str) -> None:
    done = cli("data", verb, "-h")
    assert done.returncode == 0
    assert f"regard data {verb}" in done.stdout.partition("Examples:")[2]
