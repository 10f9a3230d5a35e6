"""The table of alignments: links known by construction, accuracy by hand, valid settings, and a complete small run."""

import datetime
import random
from pathlib import Path

import pytest

import known_alignments
from alignment import BEST_HEAD, CHANCE, MODELS, STATISTICAL, TASKS, Run, prepare
from alignment_report import draw, format_europarl, format_table
from alignment_scores import Quality, Result, Standard, measure_accuracy, measure_chance
from known_alignments import RULES, align_date, build_standard, permute, transliterate
from regard.config import resolve
from regard.data import dates
from regard.data.dates import Format, WrittenDate
from regard.data.pharaoh import GoldLinks
from regard.runs.settings import RunSettings
from statistical_aligner import align_statistically


def describe_date(locale: str, format_: Format, day: int = 3, *, native: bool = False) -> list[str]:
    """Return the source characters that each target character of a date in May 2009 is linked to."""
    pair = align_date(WrittenDate(datetime.date(2009, 5, day), locale, format_, native))
    return ["".join(pair.source[i] for i, j in sorted(pair.links) if j == target) for target in range(len(pair.target))]


def test_digits_of_dates_are_linked_to_the_field_that_they_are_from() -> None:
    year = ["2", "0", "0", "9"]
    assert describe_date("fr", "long") == [*year, "", "mai", "mai", "", "3", "3"]
    assert describe_date("en", "full", day=14) == [*year, "", "May", "May", "", "1", "4"]
    assert describe_date("ja", "long") == [*year, "", "5", "5", "", "3", "3"]
    assert describe_date("ja", "medium") == [*year, "", "0", "5", "", "0", "3"]
    assert describe_date("hi", "long", day=14, native=True) == ["२", "०", "०", "९", "", "मई", "मई", "", "१", "४"]


@pytest.mark.slow
def test_every_digit_of_every_date_is_linked() -> None:
    for written in dates.sample_dates("test", 300, seed=0).values():
        pair = align_date(written)
        assert {j for _, j in pair.links} == {j for j, character in enumerate(pair.target) if character != "-"}
        assert all(i < len(pair.source) for i, _ in pair.links)


def test_letters_of_a_rule_are_linked_to_all_letters_of_its_output() -> None:
    pair = transliterate("shaxqu")
    assert pair.target == "шакскв"
    assert sorted(pair.links) == [(0, 0), (1, 0), (2, 1), (3, 2), (3, 3), (4, 4), (4, 5), (5, 4), (5, 5)]
    names = ("tchaikovsky", "schumacher", "joyce")
    for name in names:
        pair = transliterate(name)
        assert {i for i, _ in pair.links} == set(range(len(name)))
        assert {j for _, j in pair.links} == set(range(len(pair.target)))


def test_a_longer_rule_is_tried_before_its_prefixes() -> None:
    letters = list(RULES)
    assert not any(later.startswith(earlier) for n, earlier in enumerate(letters) for later in letters[n + 1 :])


def test_blocks_of_five_are_permuted() -> None:
    assert permute(7) == [3, 0, 4, 1, 2, 5, 6]
    assert all(sorted(permute(length)) == list(range(length)) for length in range(31))


@pytest.mark.parametrize("task", ["reverse", "permute"])
def test_reordered_letters_are_linked_to_themselves(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_alignments, "SIZES", {"train": 20, "dev": 5, "test": 5})
    for (source, target), gold in zip(*build_standard(task, "train", Path()), strict=True):
        assert len(gold.sure) == len(target.split())
        assert all(source.split()[i] == target.split()[j] for i, j in gold.sure)


def test_a_standard_is_written_and_read(tmp_path: Path) -> None:
    gold = [GoldLinks(frozenset({(0, 0)}), frozenset({(0, 0), (1, 0)})), GoldLinks.of([])]
    standard = Standard([("a b", "c"), ('"', "d")], gold)
    standard.write(tmp_path, "test")
    assert Standard.read(tmp_path, "test") == standard


def test_accuracy_counts_target_words_with_a_known_origin() -> None:
    """Word 0 is linked correctly, word 1 one word too late, and word 2 has no origin."""
    gold = [GoldLinks.of([(0, 0), (2, 0), (1, 1)])]
    links = [frozenset({(2, 0), (2, 1), (0, 2)})]
    assert measure_accuracy(links, gold) == 0.5
    assert measure_accuracy(links, gold, offset=1) == 0.5
    assert measure_accuracy(links, gold, offset=-1) == 0
    assert measure_accuracy([frozenset()], gold) == 0
    assert measure_chance(Standard([("x y z", "x y z")], gold)) == pytest.approx((2 / 3 + 1 / 3) / 2)


def test_the_statistical_aligner_learns_a_small_lexicon() -> None:
    generator = random.Random(0)
    pairs, expected = [], []
    for _ in range(200):
        words, order = generator.sample("abcdefgh", 3), generator.sample(range(3), 3)
        pairs.append((" ".join(words), " ".join(words[i].upper() for i in order)))
        expected.append(frozenset((i, j) for j, i in enumerate(order)))
    assert align_statistically(pairs) == expected


@pytest.mark.parametrize("task", TASKS)
def test_settings_of_all_runs_are_valid(task: str, tmp_path: Path) -> None:
    names = [name for name, row in MODELS.items() if row.learns(task)]
    assert len(names) >= 8
    runs = [Run.of(name, task, tmp_path, Path("data"), {"training.steps": 7}) for name in names]
    assert all(resolve(RunSettings, run.settings, run.overrides).training.steps == 7 for run in runs)


def test_a_small_run_fills_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_alignments, "SIZES", {"train": 40, "dev": 5, "test": 5})
    prepare("dates", tmp_path, Path())
    small = {"training.steps": 2, "training.warmup": 1, "model.size": 16, "decoding.max_length_ratio": 0.2}
    Run.of("transformer", "dates", tmp_path, Path(), small).train_and_score()
    names = (CHANCE, STATISTICAL, "transformer", BEST_HEAD)
    results = {name: Result.read(tmp_path / "dates", name) for name in names}
    assert all(result is not None and 0 <= (result.accuracy or 0) <= 1 for result in results.values())
    untrained = results["transformer"]
    assert untrained is not None
    assert set(untrained.nearby) == {"−1", "+1", "next step"}
    assert not untrained.learned


def test_the_table_and_the_figure_show_where_the_attention_is(tmp_path: Path) -> None:
    score = {"aer": 0.4, "precision": 0.5, "recall": 0.7}
    rows = {
        CHANCE: {"reverse": Result(0.1)},
        "right": {"reverse": Result(0.9, {"+1": 0.05}, Quality(0.99)), "multi30k": Result(0.8, scores={"test": score})},
        "late": {"reverse": Result(0.1, {"−1": 0.2, "+1": 0.85}, Quality(0.95))},
        "untrained": {
            "reverse": Result(0.3, {}, Quality(0.5)),
            "multi30k": Result(0.7, {}, Quality(bleu=30.0), {"test": score, "europarl": score}),
        },
    }
    lines = format_table(rows).splitlines()
    cells = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert cells["right"] == ["–", "–", "90.0", "–", "–", "80.0", "40.0", "–"]
    assert cells["late"] == ["–", "–", "10.0", "(+1", "85.0)", "–", "–", "–", "–", "–"]
    assert cells["untrained"] == ["–", "–", "30.0*", "–", "–", "70.0", "40.0", "40.0"]
    assert format_europarl(rows).splitlines()[1].split() == ["untrained", "30.0", "40.0%", "50.0%", "70.0%"]
    draw(rows, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
