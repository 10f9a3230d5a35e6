"""Headers: whether the first line of a table names its columns, or is a pair like the lines below it.

The decision is conservative, because losing a pair is worse than reading a header as a pair. Names of languages and
fields count as evidence, and so does a first line that differs from the lines below in script, length or type.
"""

import re
import statistics
from collections.abc import Sequence
from enum import Enum

from fontTools.unicodedata import script


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FIELDS = _words("""
    answer column description english example feature features form frequency gold grapheme graphemes hypothesis
    id index inflected inflection input ipa key label labels language lang lemma lemmas line meaning msd name
    native number original orthography output phone phoneme phonemes phones phonetic pos pronunciation
    pronunciations question reference ref roman romanisation romanization score segment sentence sentences
    sequence source spelling split src string tag tags target term text tgt title token tokens transcription
    translated translation transliteration trg txt value word words
""")
"""Common names of fields in tables of pairs."""

_LANGUAGES = _words("""
    afrikaans albanian amharic arabic armenian assamese azerbaijani basque belarusian bengali bosnian breton
    bulgarian burmese catalan cebuano chinese croatian czech danish dutch english esperanto estonian finnish
    french galician georgian german greek gujarati haitian hausa hebrew hindi hungarian icelandic igbo
    indonesian irish italian japanese javanese kannada kazakh khmer korean kurdish kyrgyz lao latin latvian
    lithuanian luxembourgish macedonian malagasy malay malayalam maltese mandarin maori marathi mongolian nepali
    norwegian odia oriya pashto persian farsi polish portuguese punjabi quechua romanian russian sanskrit scots
    serbian sindhi sinhala slovak slovene slovenian somali spanish swahili swedish tagalog tajik tamil tatar
    telugu thai tibetan turkish turkmen ukrainian urdu uyghur uzbek vietnamese welsh xhosa yiddish yoruba zulu
    deutsch français español italiano português nederlands polski svenska dansk norsk suomi
""")

_CODES = _words("""
    af am ar as az be bg bn br bs ca cs cy da de el en eo es et eu fa fi fr ga gl gu ha he hi hr ht hu hy id ig
    is it ja jv ka kk km kn ko ku ky la lb lo lt lv mg mi mk ml mn mr ms mt my ne nl no or pa pl ps pt ro ru rw
    sa sd si sk sl so sq sr su sv sw ta te tg th tk tl tr tt ug uk ur uz vi xh yi yo zh zu ara ben bul cat ces
    dan deu ell eng est fas fin fra fre ger glg guj heb hin hrv hun hye ind isl ita jpn kan kat kaz khm kor lat
    lav lit mal mar mkd mya nld nor pan pol por ron rum rus san slk slv spa sqi srp swa swe tam tel tgl tha tur
    ukr urd vie yor zho zul
""")
"""Codes of languages (ISO 639), many of which are also short words of other languages."""

_COUNTERS = frozenset({"", "id", "idx", "index", "no", "nr", "number", "#", "uid", "guid", "line"})
"""Names of columns that number the lines, and so contain no side of a pair; pandas writes an empty name."""

_WORD = re.compile(r"[^\W\d_]+")
_IDENTIFIER = re.compile(r"[^\W\d][\w .:/()-]{0,39}")
_NUMBER = re.compile(r"[+-]?\d[\d.,]*")

_MIN_LINES = 20
"""The minimum number of lines for comparing a column with its first line."""


class Verdict(Enum):
    """What the first line of a table is."""

    HEADER = "header"
    UNCERTAIN = "uncertain"
    """It may be a header, and is read as a pair."""
    PAIR = "pair"


def is_counter(name: str) -> bool:
    """Whether a column of this name numbers the lines."""
    return name.strip().casefold() in _COUNTERS or name.startswith("Unnamed:")


def judge_first_row(rows: Sequence[Sequence[str]]) -> Verdict:
    """Decide whether the first of some rows is a header, by comparing it with the others."""
    if not rows or len(rows[0]) < 2:
        return Verdict.PAIR
    if len({cell.strip().casefold() for cell in rows[0]}) < len(rows[0]):
        # Names that occur twice may be a mistake; in two columns, they are more likely a pair of equal words.
        is_doubtful = len(rows[0]) > 2 and all(map(_is_name, rows[0])) and not all(map(_is_name, rows[-1]))
        return Verdict.UNCERTAIN if is_doubtful else Verdict.PAIR
    first = [cell.strip() for cell in rows[0]]
    below = [row for row in rows[1:] if len(row) == len(first)]
    columns = [[row[index].strip() for row in below] for index in range(len(first))]
    named = [_is_name(cell) for cell in first]
    if all(named):
        # In a table of languages every line looks like a header.
        header_like = sum(all(map(_is_name, row)) for row in below)
        if header_like > 0.2 * len(below):
            return Verdict.PAIR
        if not all(_is_ambiguous(cell) for cell in first) or _is_shorter(first, columns):
            return Verdict.HEADER
        return Verdict.HEADER if _differs(first, columns) else Verdict.UNCERTAIN
    if not all(_IDENTIFIER.fullmatch(cell) or is_counter(cell) for cell in first) or len(below) < _MIN_LINES:
        return Verdict.PAIR
    if any(cell in column for cell, column in zip(first, columns, strict=True)):
        return Verdict.PAIR
    if _differs(first, columns):
        return Verdict.HEADER
    certain = any(is_name and not _is_ambiguous(cell) for is_name, cell in zip(named, first, strict=True))
    return Verdict.HEADER if certain and _is_one_word_above_sentences(first, columns) else Verdict.PAIR


def _is_name(cell: str) -> bool:
    """`English`, `source sentence`, `lemma_de`, `pt-BR`, `text2`; the empty name of a counter."""
    cell = cell.strip()
    if is_counter(cell):
        return True
    if len(cell) > 40 or re.search(r"[.!?,;]$", cell):
        return False
    words = [word.casefold() for word in _WORD.findall(cell)]
    known = _FIELDS | _LANGUAGES | _CODES
    regional = len(words) == 2 and words[0] in _CODES and re.fullmatch(r"[A-Za-z]{2,3}[-_][A-Z]{2}", cell) is not None
    return bool(words) and (regional or all(word in known for word in words))


def _is_ambiguous(name: str) -> bool:
    """Whether a name may be a word of the data: `it` and `es` are codes, but also an English–German pair."""
    return name.casefold() in _CODES - {"en", "eng"}


def _is_shorter(first: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Whether each name is much shorter than the median of its column."""
    return all(
        bool(column) and statistics.median(map(len, column)) >= 3 * len(cell)
        for cell, column in zip(first, columns, strict=True)
    )


def _differs(first: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Whether a column contains only numbers, or only another script, and its name does not."""
    return any(
        len(column) >= _MIN_LINES and (_is_below_a_word(cell, column) or _is_in_another_script(cell, column))
        for cell, column in zip(first, columns, strict=True)
    )


def _is_below_a_word(cell: str, column: Sequence[str]) -> bool:
    return all(map(_NUMBER.fullmatch, column)) and not _NUMBER.fullmatch(cell)


def _is_in_another_script(cell: str, column: Sequence[str]) -> bool:
    """Whether the name is in Latin script and the column is not. Names are nearly always written in Latin script."""
    latin = [scripts == {"Latn"} for scripts in map(_scripts, (cell, *column))]
    return latin[0] and not any(latin[1:]) and sum(map(bool, map(_scripts, column))) > 0.9 * len(column)


def _scripts(text: str) -> set[str]:
    """Return the scripts of the letters of a text, as ISO 15924 codes."""
    return {script(letter) for letter in text if letter.isalpha()}


def _is_one_word_above_sentences(first: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    return all(len(cell.split()) <= 2 for cell in first) and any(
        statistics.median(len(text.split()) for text in column) >= 3 for column in columns
    )
