"""Headers: column names are distinguished from pairs by known names, scripts, lengths and numbers."""

import pytest

from regard.data.headers import Verdict, judge_first_row

SENTENCES = [(f"this is sentence number {n}", f"das ist Satz Nummer {n}") for n in range(30)]
WORDS = [(f"{'aeiou'[n % 5]}b{n}x", f"{'aeiou'[n % 5]}t{n}z") for n in range(30)]
HINDI = [("दिल्ली" + "कखगघङ"[n % 5] * (n // 5 + 1), "dilli" + "kxgzn"[n % 5] * (n // 5 + 1)) for n in range(30)]
PHONES = [(f"wo{'abcde'[n % 5] * (n + 1)}", "W OW " + "AH " * (n + 1)) for n in range(30)]


@pytest.mark.parametrize(
    ("first", "rows"),
    [
        (("source", "target"), WORDS),
        (("en", "de"), WORDS),
        (("de", "fr"), SENTENCES),
        (("English", "German"), WORDS),
        (("word", "pronunciation"), PHONES),
        (("word", "arpabet"), PHONES),
        (("lemma", "form"), WORDS),
        (("src_text", "tgt_text"), WORDS),
        (("sentence1", "sentence2"), SENTENCES),
        (("pt-BR", "es-ES"), WORDS),
        (("devanagari", "romanized"), HINDI),
        (("English", "Spanisch"), SENTENCES),
    ],
)
def test_column_names_are_a_header(first: tuple[str, str], rows: list[tuple[str, str]]) -> None:
    assert judge_first_row([first, *rows]) is Verdict.HEADER


@pytest.mark.parametrize("first", [("id", "en", "de"), ("", "text", "label"), ("nummer", "wort", "form")])
def test_a_name_above_numbers_is_a_header(first: tuple[str, ...]) -> None:
    assert judge_first_row([first, *((str(n), *pair) for n, pair in enumerate(WORDS))]) is Verdict.HEADER


@pytest.mark.parametrize(
    ("first", "rows"),
    [
        (("Hello", "Hallo"), SENTENCES),
        (("Go.", "Geh."), SENTENCES),
        (("word", "Wort"), WORDS),
        (("name", "Name"), WORDS),
        (("word", "W ER D"), PHONES),
        (("a", "AH"), PHONES),
        (("lemma", "lemma"), WORDS),
        (("मुंबई", "mumbai"), HINDI),
        (("2009", "MMIX"), WORDS),
        (("en", "English"), [("de", "German"), ("fr", "French"), ("ru", "Russian")]),
        (("English", "French"), [("German", "Dutch"), ("French", "English")]),
        (("laufen", "lief", "V;PST"), [("gehen", "ging", "V;PST")] * 30),
        (("one column",), []),
        (("english.", "german."), SENTENCES),
    ],
)
def test_a_pair_is_not_a_header(first: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    assert judge_first_row([first, *rows]) is Verdict.PAIR


def test_two_words_that_are_also_language_codes_are_uncertain() -> None:
    assert judge_first_row([("it", "es"), ("who", "wer"), ("what", "was")]) is Verdict.UNCERTAIN
    assert judge_first_row([("it", "es"), *HINDI]) is Verdict.HEADER


def test_a_file_without_lines_has_no_header() -> None:
    assert judge_first_row([]) is Verdict.PAIR
