"""`regard compare` in a process: tables on stdout, a report in a file, exit codes of errors."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.runs.folder import RunFolder

Run = Callable[..., subprocess.CompletedProcess[str]]

REFERENCES = [f"this is reference number {number} of the test" for number in range(30)]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write references, sources, and the outputs of three systems, of which the third is perfect."""

    def write(name: str, lines: list[str]) -> None:
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))

    write("ref.txt", REFERENCES)
    write("src.txt", [f"source {number}" for number in range(30)])
    write("a.txt", [line.replace("reference", "difference") for line in REFERENCES])
    write("b.txt", [line if n % 2 else line.replace("test", "text") for n, line in enumerate(REFERENCES)])
    write("c.txt", REFERENCES)
    write("short.txt", REFERENCES[:7])
    return tmp_path


def test_outputs_are_compared_with_a_baseline(cli: Run, files: Path) -> None:
    done = cli("compare", "--outputs", "a.txt", "b.txt", "c.txt", "--references", "ref.txt", "--metric", "bleu", "ter")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    header, a, _, c, *_ = done.stdout.splitlines()
    assert header.startswith("system  bleu ↑")
    assert a.startswith("a ")
    assert "baseline" in a
    assert "100.00" in c
    assert c.endswith("*")
    assert done.stdout.count("ter ↓") == 1
    assert "corrected for 2 comparisons per metric (Holm)" in done.stdout


def test_the_baseline_the_test_and_the_seed_are_in_the_output(cli: Run, files: Path) -> None:
    done = cli(
        "compare", "--outputs", "a.txt", "b.txt", "--references", "ref.txt", "--sources", "src.txt", "--baseline",
        "b.txt", "--test", "randomization", "--resamples", "500", "--seed", "3", "--metric", "chrf", "--json",
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert result["baseline"] == "b"
    test = {"name": "randomization", "resamples": 1000, "trials": 500, "seed": 3, "correction": "holm"}
    assert result["test"] == test
    assert result["systems"][0]["values"]["chrf"]["difference"] < 0
    assert result["systems"][0]["by_length"]["by"] == "source length in characters"


def test_formats_and_the_report(cli: Run, files: Path) -> None:
    options = ("compare", "--outputs", "a.txt", "b.txt", "--references", "ref.txt")
    assert cli(*options, "--format", "markdown").stdout.startswith("**bleu on 30 sentences**")
    done = cli(*options, "--format", "latex", "--html", "report.html")
    assert r"\toprule" in done.stdout
    assert done.stderr == "wrote report.html\n"
    assert (files / "report.html").read_text().startswith("<!doctype html>")


def test_runs_and_outputs_on_a_file(cli: Run, files: Path, small_run: RunFolder) -> None:
    pairs = [("3 mai 2009", "2009-05-03"), ("May 3, 2009", "2009-05-03")]
    (files / "test.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    (files / "theirs.txt").write_text("2009-05-03\n2009-03-05\n")
    (files / "gold.links").write_text("1-1\n1?1 2-1\n")
    gold = ("--alignments", "gold.links", "--one-based")
    options = ("--pairs", "test.tsv", "--json", "--beam", "2", *gold)
    done = cli("compare", small_run.path, "--outputs", "theirs.txt", *options)
    assert done.returncode == 0, done.stderr
    assert f"{small_run.path}, step {small_run.best().step}: accuracy " in done.stderr
    ours, theirs = json.loads(done.stdout)["systems"]
    assert (ours["name"], theirs["name"]) == ("small", "theirs")
    assert ours["search"]["beam"] == 2
    assert ours["parameters"] > 1000
    assert ours["sentences_per_second"] > 0
    assert 0 <= ours["aer"] <= 1
    assert theirs["aer"] is None
    assert theirs["values"]["accuracy"]["value"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--outputs", "a.txt", "short.txt", "--references", "ref.txt"), 3, "short has 7 lines, but there are 30"),
        (("--outputs", "a.txt", "b.txt", "--references", "ref.txt", "short.txt"), 2, "short.txt has 7"),
        (("--outputs", "a.txt", "missing.txt", "--references", "ref.txt"), 3, "missing.txt"),
        (("--outputs", "a.txt", "--references", "ref.txt"), 2, "There is one system to compare"),
        (("--outputs", "a.txt", "b.txt"), 2, "Outputs need references"),
        (("--outputs", "a.txt", "b.txt", "--pairs", "x.tsv", "--references", "ref.txt"), 2, "Give --references, or"),
        (("--outputs", "a.txt", "b.txt", "--sources", "src.txt"), 2, "--sources needs --references"),
        (("--outputs", "a.txt", "b.txt", "--references", "ref.txt", "--metric", "blue"), 2, "bleu"),
        (("--outputs", "a.txt", "b.txt", "--references", "ref.txt", "--html", "r.pdf"), 2, "extension .html"),
        (("--outputs", "a.txt", "b.txt", "--references", "ref.txt", "--html", "no/r.html"), 2, "there is no folder"),
        (
            ("--outputs", "a.txt", "b.txt", "--references", "ref.txt", "--one-based"),
            2,
            "--one-based needs --alignments",
        ),
        (("nowhere", "a.txt"), 4, "There is no model at nowhere"),
    ],
)
def test_errors_name_the_problem_and_have_an_exit_code(
    cli: Run, files: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = cli("compare", *arguments)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert not done.stdout


def test_a_file_may_have_the_name_of_a_run(cli: Run, files: Path, small_run: RunFolder) -> None:
    (files / "small.txt").write_text("2009-05-03\n")
    (files / "test.tsv").write_text("3 mai 2009\t2009-05-03\n")
    done = cli("compare", small_run.path, "--outputs", "small.txt", "--pairs", "test.tsv", "--metric", "cer", "--json")
    assert [system["name"] for system in json.loads(done.stdout)["systems"]] == ["small", "small.txt"]
