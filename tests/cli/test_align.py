"""`regard align` and `regard predict --align`."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.data.pharaoh import parse_links
from regard.runs.folder import RunFolder

Run = Callable[..., subprocess.CompletedProcess[str]]

PAIRS = "3 mai 2009\t2009 05 03\n\t\n\nSunday, May 3, 2009\t2009 05\n"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text(PAIRS)
    return path


def test_each_pair_has_a_line_and_empty_lines_stay_empty(cli: Run, small_run: RunFolder, pairs: Path) -> None:
    done = cli("align", small_run.path, "--pairs", pairs)
    lines = done.stdout.removesuffix("\n").split("\n")
    assert done.returncode == 0
    assert [bool(line) for line in lines] == [True, False, False, True]
    assert [{j for _, j in parse_links(line).sure} for line in lines] == [{0, 1, 2}, set(), set(), {0, 1}]
    assert cli("align", small_run.path, "--pairs", "-", stdin=PAIRS).stdout == done.stdout
    assert cli("align", small_run.path, "--pairs", pairs, "--batch-size", 1).stdout == done.stdout


def test_alignments_are_written_to_a_file_or_as_json(cli: Run, small_run: RunFolder, pairs: Path) -> None:
    output = pairs.with_name("links")
    done = cli("align", small_run.path, "--pairs", pairs, "-o", output)
    assert not done.stdout
    printed = cli("align", small_run.path, "--pairs", pairs, "--json").stdout.splitlines()
    records = [json.loads(line) for line in printed]
    assert records[0]["source"] == ["3", "mai", "2009"]
    assert records[0]["target"] == ["2009", "05", "03"]
    links = [parse_links(line).sure for line in output.read_text().splitlines()]
    assert [{(i, j) for i, j in record["links"]} for record in records] == links


def test_alignments_are_scored_against_a_gold_file(cli: Run, small_run: RunFolder, pairs: Path) -> None:
    output = pairs.with_name("links")
    cli("align", small_run.path, "--pairs", pairs, "-o", output)
    done = cli("align", small_run.path, "--pairs", pairs, "--gold", output)
    assert done.stdout == "AER 0.0%, precision 100.0%, recall 100.0% (5 links, 5 sure gold links)\n"
    gold = pairs.with_name("gold")
    gold.write_text("1-1 2p2 3p3\n\n\n9-1 4-1\n")
    done = cli("align", small_run.path, "--pairs", pairs, "--gold", gold, "--one-based", "--json")
    record = json.loads(done.stdout)
    assert record["pairs"] == 4
    assert record["sure"] == 2
    assert "ignored 1 link to words that do not exist, the first in line 4." in done.stderr


def test_two_directions_are_symmetrized(cli: Run, small_run: RunFolder, second_run: RunFolder, pairs: Path) -> None:
    def align(*options: str | Path) -> list[frozenset[tuple[int, int]]]:
        done = cli("align", small_run.path, "--pairs", pairs, *options)
        return [parse_links(line).sure for line in done.stdout.removesuffix("\n").split("\n")]

    both = ("--reverse", second_run.path)
    symmetrized = zip(
        align(*both, "--symmetrize", "intersection"), align(*both), align(*both, "--symmetrize", "union"), strict=True
    )
    assert all(smallest <= middle <= largest for smallest, middle, largest in symmetrized)
    union = align(*both, "--symmetrize", "union")
    assert all(links <= more for links, more in zip(align(), union, strict=True))
    assert align() != union


def test_heads_are_ranked(cli: Run, small_run: RunFolder, second_run: RunFolder, pairs: Path) -> None:
    done = cli("align", small_run.path, "--pairs", pairs, "--rank")
    assert done.stdout.splitlines()[0].split() == ["layer", "head", "entropy", "attention"]
    done = cli("align", small_run.path, "--pairs", pairs, "--rank", "--reverse", second_run.path, "--json")
    [entry] = json.loads(done.stdout)["ranking"]
    assert 0 <= entry["agreement"] <= 1
    assert entry["attention"] == "decoder.attention"


def test_tokens_are_aligned_where_a_side_is_a_single_word(
    cli: Run, small_run: RunFolder, second_run: RunFolder, tmp_path: Path
) -> None:
    pairs, gold = tmp_path / "words.tsv", tmp_path / "gold"
    pairs.write_text("3 mai 2009\t2009-05-03\n4 mai 2009\t2009-05-04\n")
    done = cli("align", small_run.path, "--pairs", pairs, "-o", gold)
    note = "note: one side of most pairs is a single word, so tokens are aligned. To align words, use --words."
    assert note in done.stderr
    assert [{j for _, j in parse_links(line).sure} for line in gold.read_text().splitlines()] == [{*range(10)}] * 2
    record = json.loads(cli("align", small_run.path, "--pairs", pairs, "--json").stdout.splitlines()[0])
    assert (record["unit"], record["source"]) == ("tokens", list("3 mai 2009"))
    words = cli("align", small_run.path, "--pairs", pairs, "--words")
    assert [{j for _, j in parse_links(line).sure} for line in words.stdout.splitlines()] == [{0}, {0}]
    assert not words.stderr
    scored = cli("align", small_run.path, "--pairs", pairs, "--tokens", "--gold", gold)
    assert scored.stdout == "AER 0.0%, precision 100.0%, recall 100.0% (20 links, 20 sure gold links)\n"
    assert not scored.stderr
    predicted = cli("predict", small_run.path, "--align", "--tokens", "--json", "3 mai 2009")
    record = json.loads(predicted.stdout)
    assert {j for _, j in record["links"]} == set(range(len(record["tokens"])))
    assert "--tokens needs --align" in cli("predict", small_run.path, "--tokens", "x").stderr


def test_wrong_options_are_reported(cli: Run, small_run: RunFolder, pairs: Path) -> None:
    def fail(*options: str | Path) -> str:
        done = cli("align", small_run.path, *options)
        assert done.returncode in {2, 3}
        return done.stderr

    pairs_option = ("--pairs", pairs)
    gold = pairs.with_name("gold")
    gold.write_text("0-0\n")
    assert "Give the pairs to align with --pairs" in fail()
    assert "layer: 7 is out of range. The model has 1 layer" in fail(*pairs_option, "--layer", "7")
    assert "head: 2 is out of range. decoder.attention has 1 head." in fail(*pairs_option, "--head", "2")
    assert "'encoder' is not an attention to the source" in fail(*pairs_option, "--attention", "encoder")
    assert "gold has 1 line, but there are 4 pairs" in fail(*pairs_option, "--gold", gold)
    assert "--one-based needs --gold" in fail(*pairs_option, "--one-based")
    assert "input should be less than or equal to 1" in fail(*pairs_option, "--threshold", "2")


def test_predictions_are_printed_with_their_alignments(cli: Run, small_run: RunFolder) -> None:
    done = cli("predict", small_run.path, "--align", stdin="3 mai 2009\n\nMay 3, 2009\n")
    lines = [line.split("\t") for line in done.stdout.removesuffix("\n").split("\n")]
    assert [len(fields) for fields in lines] == [2, 2, 2]
    for text, links in lines:
        assert {j for _, j in parse_links(links).sure} == set(range(len(text.split())))
    done = cli("predict", small_run.path, "--align", "--nbest", "2", "--json", "3 mai 2009")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(len(record["links"]) == len(record["text"].split()) for record in records)
