"""Manual pages, written from the help."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.cli.verbs import VERBS
from tests_command import Result

Run = Callable[..., Result]


@pytest.fixture
def pages(cli: Run, tmp_path: Path) -> Path:
    folder = tmp_path / "manual" / "man1"
    done = cli("manual", "--out", folder)
    assert done.returncode == 0
    assert sorted(map(Path, done.stdout.splitlines())) == sorted(folder.iterdir())
    return folder


def test_each_command_has_a_page_with_its_options_and_examples(pages: Path) -> None:
    for verb in VERBS:
        text = (pages / f"regard-{verb}.1").read_text("utf-8")
        assert ".SH EXAMPLES\n.nf\n" in text
        assert r".B \-h, \-\-help" in text
    assert (pages / "regard-data-check.1").is_file()
    assert r".BR regard\-train (1)" in (pages / "regard.1").read_text("utf-8")


@pytest.mark.skipif(shutil.which("man") is None, reason="man is missing; install it with: apt install man-db")
def test_man_reads_the_pages_without_warnings(pages: Path) -> None:
    for page in sorted(pages.iterdir()):
        done = subprocess.run(["man", "--warnings=w", "-l", page], capture_output=True, text=True, check=True)
        assert done.stderr == "", page
        assert "SYNOPSIS" in done.stdout
    train = subprocess.run(["man", "-l", pages / "regard-train.1"], capture_output=True, text=True, check=True).stdout
    assert "regard train --pairs words.tsv" in train


def test_a_folder_that_cannot_be_written_is_reported(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = cli("manual", "--out", tmp_path / "file" / "man1")
    assert done.returncode == 2
    assert "The manual pages cannot be written to" in " ".join(done.stderr.split())
