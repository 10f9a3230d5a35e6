"""Surveys: problems are found, correct text is not reported, and statistics match reference implementations."""

import json
import os
import random
import unicodedata
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.corpora import Pairs
from regard.data.settings import Files
from regard.data.survey import problem_kinds, problems
from regard.data.survey.problems import Finding, Limits, find_problems
from regard.data.survey.scripts import Characters, Trait
from regard.data.survey.statistics import bars, compute_statistics, correlate_order
from regard.data.survey.survey import Mark, Split, Survey, detect_tags, fix_mojibake, survey_split

texts = st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=12), min_size=1)


def split_of(*pairs: tuple[str, str], name: str = "train") -> Split:
    return Split.of_pairs(name, Pairs([source for source, _ in pairs], [target for _, target in pairs]))


def find_in(*splits: Split, limits: Limits | None = None) -> dict[str, list[int]]:
    """Return the rows of each kind of problem in the first split."""
    characters = Characters()
    surveys = [survey_split(split, characters) for split in splits]
    findings = find_problems(surveys, characters, limits or Limits())
    return {finding.kind.name: finding.rows_M.tolist() for finding in findings if finding.survey is surveys[0]}


def clean_pairs(count: int = 200) -> list[tuple[str, str]]:
    """Return distinct pairs of Russian and English of similar length."""
    generator = random.Random(1)

    def sentence(letters: str, size: int) -> str:
        return " ".join("".join(generator.choices(letters, k=generator.randint(2, 8))) for _ in range(size))

    return [(sentence("абвгдежзик", n % 9 + 3), sentence("abcdefghij", n % 9 + 3)) for n in range(count)]


@pytest.mark.slow
@settings(deadline=None)
@given(texts)
def test_profiles_match_a_reference_implementation(sample: list[str]) -> None:
    profile = Characters().profile(sample)
    assert profile.chars_N.tolist() == [len(text) for text in sample]
    assert profile.words_N.tolist() == [len(text.split()) for text in sample]
    assert Counter(profile.counts) == Counter(ord(char) for text in sample for char in text)
    for text, traits in zip(sample, profile.traits_N, strict=True):
        assert bool(traits & Trait.SPACES) == (
            text != text.strip() or any(one.isspace() and other.isspace() for one, other in pairwise(text))
        )
        if not traits & Trait.COMPOSED:
            assert unicodedata.is_normalized("NFC", text)


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Straße", "Latin"), ("Ｔｏｋｙｏ", "Latin"), ("мир и a", "Cyrillic"), ("ελλάς", "Greek"), ("東京都庁", "Han"),
        ("日々人々", "Han"), ("トーキョー", "Katakana"), ("ひらがな", "Hiragana"), ("서울시", "Hangul"),
        ("שלום", "Hebrew"), ("नमस्ते", "Devanagari"), ("სამი", "Georgian"), ("ไทยๆ", "Thai"),
        ("12 % — 3", "none"), ("ok", "none"),
    ],
)  # fmt: skip
def test_the_script_of_a_text_is_the_script_of_most_letters(text: str, script: str) -> None:
    characters = Characters()
    survey = survey_split(split_of((text, "")), characters)
    assert characters.scripts[survey.source.script_N[0]] == script


def test_clean_pairs_have_no_problems() -> None:
    assert find_in(split_of(*clean_pairs())) == {}


@pytest.mark.parametrize(
    ("pair", "kind"),
    [
        (("", "nobody there"), problem_kinds.EMPTY),
        (("и никого", " \u3000\t"), problem_kinds.EMPTY),
        (("мы и они все", "we and\x08 they"), problem_kinds.CONTROL),
        (("мы и\u200b они", "we and they"), problem_kinds.CONTROL),
        (("мы и они все", "we and they \ufffd"), problem_kinds.REPLACED),
        (("мы и они все", "we and theÃ© they"), problem_kinds.MOJIBAKE),
        (("мы и они все", "itâ€™s we and they"), problem_kinds.MOJIBAKE),
        (("мы и они все", "we and cafe\u0301s"), problem_kinds.UNNORMALIZED),
        (("мы и они все", "we &amp; they <b>all"), problem_kinds.MARKUP),
        (("мы и они все", "we and  they"), problem_kinds.SPACES),
        (("мы и они все ", "we and they"), problem_kinds.SPACES),
        (("we are all here", "we and they"), problem_kinds.SCRIPT),
        (("мы и они все", "мы и они тоже"), problem_kinds.SCRIPT),
        (("мы и они и вы", "мы и они и вы"), problem_kinds.COPY),
        (("we and they all", "мы и они все"), problem_kinds.SWAPPED),
        (("мы и они все и вы и еще кто-то" * 3, "nothing"), problem_kinds.RATIO),
        (("нет и нет", "there is a lot more here than can be said in so few words"), problem_kinds.RATIO),
        (("мы и они все " * 20, "we and they all " * 17), problem_kinds.LONG),
    ],
)  # fmt: skip
def test_each_kind_of_problem_is_found(pair: tuple[str, str], kind: problem_kinds.ProblemKind) -> None:
    pairs = clean_pairs()
    problems_by_kind = find_in(split_of(*pairs[:77], pair, *pairs[77:]), limits=Limits(250, 100))
    assert problems_by_kind[kind.name] == [77]
    if kind is not problem_kinds.COPY and kind is not problem_kinds.LONG and not pair[1].isspace():
        assert list(problems_by_kind) == [kind.name]


@pytest.mark.parametrize(
    "text",
    [
        "Écris sur «\xa0l'Amitié\xa0».", "CAFÉ»", "Spaß…", "NÃO à toa", "Ärger – und Öl",
        "naïve élève", "R&D x < y > z", "50 °C",
    ],
)  # fmt: skip
def test_unusual_but_correct_text_is_not_reported(text: str) -> None:
    survey = survey_split(split_of((text, text)), Characters())
    assert survey.marks_N[0] & ~np.uint8(Mark.COPY) == 0


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("Ça coûte 5 €, n’est-ce pas ?", "cp1252"),
        ("Ça coûte 5 €, n’est-ce pas ?", "latin-1"),
        ("naïve – “quoted", "cp1252"),
        ("привет", "cp1252"),
        ("привет", "latin-1"),
        ("日本語です", "latin-1"),
    ],
)
def test_mojibake_is_fixed(text: str, codec: str) -> None:
    mojibake = text.encode().decode(codec)
    assert mojibake != text
    assert fix_mojibake(mojibake) == text
    assert fix_mojibake(text) == text


def test_markup_is_an_entity_or_a_tag_but_not_an_ampersand() -> None:
    marks = survey_split(
        split_of(("a & b", "x"), ("5 < 6 > 4", "x"), ("&#39;", "x"), ("a</p>", "x")), Characters()
    ).marks_N
    assert [bool(mark & Mark.MARKUP) for mark in marks] == [False, False, True, True]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz")), min_size=1), st.data())
def test_repetitions_and_overlaps_match_a_reference_implementation(
    pairs: list[tuple[str, str]], data: st.DataObject
) -> None:
    others = data.draw(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz")), min_size=1))
    problems_by_kind = find_in(split_of(*pairs), split_of(*others, name="dev"))
    assert problems_by_kind.get("duplicate", []) == [n for n, pair in enumerate(pairs) if pair in pairs[:n]]
    targets = Counter(source for source, _ in set(pairs))
    ambiguous = [n for n, pair in enumerate(pairs) if targets[pair[0]] > 1 and pair not in pairs[:n]]
    assert sorted(problems_by_kind.get("ambiguous", [])) == ambiguous
    assert problems_by_kind.get("leak", []) == [n for n, pair in enumerate(pairs) if pair in others]
    sources = {source for source, _ in others}
    by_source = [n for n, pair in enumerate(pairs) if pair[0] in sources and pair not in others]
    assert problems_by_kind.get("overlap", []) == by_source


def test_overlaps_are_counted_in_the_held_out_split() -> None:
    characters = Characters()
    train, dev = (
        split_of(("a", "x"), ("a", "x"), ("b", "y"), ("c", "z")),
        split_of(("a", "x"), ("b", "other"), ("d", "w"), name="dev"),
    )
    findings = find_problems([survey_split(train, characters), survey_split(dev, characters)], characters, Limits())
    details = {finding.kind.name: finding.details for finding in findings}
    assert details["leak"] == "they match 1 of the 3 pairs of dev (33.3%)"
    assert details["overlap"] == "they match 1 of the 3 pairs of dev (33.3%)"


def test_a_few_copies_and_duplicates_are_notes_and_many_are_warnings() -> None:
    def severity(kind: problem_kinds.ProblemKind, count: int) -> str:
        survey = Survey(split_of(), marks_N=np.zeros(1000, np.uint8))
        return Finding(kind, survey, np.arange(count)).severity

    assert [severity(problem_kinds.COPY, count) for count in (1, 2)] == ["note", "warning"]
    assert [severity(problem_kinds.DUPLICATE, count) for count in (10, 11)] == ["note", "warning"]
    assert severity(problem_kinds.EMPTY, 1) == "error"


def test_scripts_are_checked_only_if_there_is_a_main_script() -> None:
    mixed = [("мир и мы", "peace and we"), ("peace and we", "мир и мы")] * 30
    assert "script" not in find_in(split_of(*mixed))
    assert "swapped" not in find_in(split_of(*mixed))
    japanese = [("ひらがなと漢字", f"word {n}") for n in range(40)]
    assert "script" not in find_in(split_of(*japanese, ("カタカナ", "katakana word"), ("漢字漢字", "kanji word")))


def test_examples_are_read_again_in_order(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows = [{"source": f"s {n}", "target": "" if n in (3, 7, 8, 9) else f"t {n}"} for n in range(12)]
    path.write_text("broken\n" + "".join(json.dumps(row) + "\n" for row in rows))
    characters = Characters()
    survey = survey_split(Split.of_files("x", Files(path=str(path))), characters)
    examples = problems.read_examples(find_problems([survey], characters, Limits()), 2)
    locations = {finding.kind.name: [row.location for row in rows] for finding, rows in examples.items()}
    assert locations == {"no-pair": [f"{path}:1"], "empty": [f"{path}:5", f"{path}:9"]}


@pytest.mark.parametrize(("separator", "name"), [("  ", "two spaces"), (";", "a semicolon"), (",", "a comma")])
def test_a_separator_other_than_a_tab_is_reported(tmp_path: Path, separator: str, name: str) -> None:
    (tmp_path / "x.txt").write_text(f"HELLO{separator}HH AH L OW\nWORLD{separator}W ER L D\n")
    characters = Characters()
    survey = survey_split(Split.of_files("x", Files(path=str(tmp_path / "x.txt"))), characters)
    details = find_problems([survey], characters, Limits())[0].details
    command = f"sed 's/{separator}/\\t/' {tmp_path}/x.txt > {tmp_path}/x.tsv"
    assert details == f"{name} where a tab is expected: `{command}` converts the file to TSV"


def test_a_survey_needs_less_than_fifty_bytes_per_pair() -> None:
    survey = survey_split(split_of(*((f"{n} " * 500, f"{n} " * 400) for n in range(1000))), Characters())
    owners = (survey, survey.source, survey.target)
    columns = [value for owner in owners for value in vars(owner).values() if isinstance(value, np.ndarray)]
    assert all(len(column) == 1000 for column in columns)
    assert sum(column.nbytes for column in columns) < 50 * 1000


def test_hand_computed_statistics() -> None:
    pairs = [("a bb", "ж"), ("a bb", "жж é"), ("ccc a bb", "жжж"), ("a", "")]
    survey, statistics = compute_statistics(split_of(*pairs), Characters())
    assert len(survey) == statistics["pairs"] == 4
    assert (statistics["distinct_pairs"], statistics["source"]["distinct"], statistics["target"]["distinct"]) == (
        4,
        3,
        4,
    )
    assert statistics["source"]["chars"] == {"mean": 4.25, "median": 4, "p95": 7.4, "p99": 7.88, "max": 8}
    assert (statistics["source"]["total_words"], statistics["source"]["distinct_words"]) == (8, 3)
    assert statistics["target"]["scripts"] == {"Cyrillic": 6 / 7, "Latin": 1 / 7}
    assert statistics["target"]["outside_main_script"] == {"é": 1}
    assert statistics["source"]["alphabet"] == 4
    assert statistics["source"]["tokens"]["char"] == 17 + 4
    assert statistics["source"]["histogram"] == {"unit": "characters", "bin": 1, "counts": [0, 1, 0, 0, 2, 0, 0, 1]}
    assert bars(statistics["source"]["histogram"]["counts"]) == " ▄  █  ▄"


def test_tags_are_not_counted_as_letters() -> None:
    tagged = [(f"{word}\tV;{tense}", word.upper()) for word in ("лезть", "бить") for tense in ("PST", "PRS", "INF")]
    survey, statistics = compute_statistics(split_of(*tagged), Characters())
    assert statistics["source"]["scripts"] == {"Cyrillic": 1.0}
    assert statistics["source"]["chars"]["max"] == 5
    assert statistics["source"]["distinct_words"] == 2
    assert statistics["source"]["distinct"] == 6  # sources that differ only in their tags are distinct
    assert statistics["tags"] == {"distinct": 4, "mean": 2.0}
    assert statistics["source"]["tokens"]["char"] == 3 * (5 + 4) + 6 + 12
    assert survey.tags == {"V": 6, "PST": 2, "PRS": 2, "INF": 2}


def test_tabs_in_a_few_sources_are_not_tags() -> None:
    assert not detect_tags(split_of(*clean_pairs(), *[("\tда .", "yes .")] * 4))


def test_problems_in_tags_are_found() -> None:
    tagged = [(f"{source}\tV;PST", target) for source, target in clean_pairs()]
    assert find_in(split_of(*tagged, ("это\tV;P\u200bST", "it"))) == {"control": [len(tagged)]}


@pytest.mark.slow
def test_too_many_distinct_values_are_not_tags() -> None:
    pairs = [
        (f"{source}\t{number if number > 9000 else 1}", target)
        for number, (source, target) in enumerate(clean_pairs(9500))
    ]
    assert "tags" not in compute_statistics(split_of(*pairs), Characters())[1]


def test_text_after_a_tab_is_not_tags() -> None:
    two_fields = [(f"{source}\t{source[::-1]}", target) for source, target in clean_pairs()]
    _, statistics = compute_statistics(split_of(*two_fields), Characters())
    assert "tags" not in statistics
    assert statistics["source"]["total_chars"] == sum(len(source) for source, _ in two_fields)


def test_subwords_are_fewer_than_characters_and_more_than_words() -> None:
    _, statistics = compute_statistics(split_of(*clean_pairs(2000)), Characters())
    for side in ("source", "target"):
        ends = statistics["pairs"]
        assert (
            statistics[side]["total_words"] + ends
            <= statistics[side]["tokens"]["subword"]
            < statistics[side]["tokens"]["char"]
        )


@pytest.mark.parametrize("unit", ["a", "ab c ", "Ã\x80", "<a", "a\u0301\u0323"])
def test_the_time_is_linear_in_the_length_of_a_line(unit: str) -> None:
    """Without noise, four times the length takes four times as long or less; for a quadratic time, it is sixteen."""

    def seconds(length: int) -> float:
        split = split_of((unit * (length // len(unit)), "b"), *[("c d", "e f")] * 50)
        before = os.times()
        characters = Characters()
        survey, _ = compute_statistics(split, characters)
        find_problems([survey], characters, Limits())
        return sum(os.times()[:4]) - sum(before[:4])

    assert seconds(400_000) < 8 * max(0.05, seconds(100_000))


def test_a_word_as_long_as_a_file_is_surveyed_in_seconds(caplog: pytest.LogCaptureFixture) -> None:
    word = "".join(random.Random(0).choices("abcdefghij", k=400_000))
    before = os.times()
    _, statistics = compute_statistics(split_of((word, word)), Characters())
    assert sum(os.times()[:4]) - sum(before[:4]) < 10
    assert statistics["source"]["total_chars"] == len(word)
    assert "the longest text has 400,000 characters" in caplog.text


def test_the_order_of_long_pairs_is_not_measured() -> None:
    """The number of combinations of symbols is quadratic in the length: it would not fit into memory."""
    long = "ab" * 100_000
    assert correlate_order([(long, long)]) == 0.0
    short = [("abcd", "ABCD"), ("bcad", "BCAD"), ("dacb", "DACB")] * 5
    assert correlate_order([*short, (long, long)]) == correlate_order(short)


def test_the_sample_covers_all_pairs_evenly() -> None:
    from regard.data.survey.statistics import _SAMPLE, _Sample

    sample, numbers = _Sample(), [str(n) for n in range(10 * _SAMPLE + 7)]
    for start in range(0, len(numbers), 999):
        sample.add(numbers[start : start + 999], numbers[start : start + 999])
    indices = [int(source) for source, _ in sample.pairs]
    assert indices == list(range(0, len(numbers), sample.step))
    assert _SAMPLE <= len(indices) <= 2 * _SAMPLE
