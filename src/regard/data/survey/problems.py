"""What is wrong with pairs, judged from their survey: each kind with its weight, its places and its remedy.

What is unusual is told by the data itself: a length by how long targets usually are for such sources, a script by
the one in which nearly all lines are written.
"""

import re
import shlex
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.readers import Row
from regard.data.survey import problem_kinds
from regard.data.survey.problem_kinds import KINDS, Kind, Severity
from regard.data.survey.scripts import Characters, Trait, traits_of
from regard.data.survey.survey import MARKUP, Mark, SideStatistics, Survey, bits, read_again
from regard.formatting import quantity

Rows = NDArray[np.intp]

_SCRIPT_SHARE = 0.95
"""A side is written in a script if such a share of its lines is."""

_FEWEST = 20
"""Fewer lines tell nothing of what is usual."""

_FAR, _FACTOR = 5.0, 2.0
"""A length is unusual if it lies so many deviations from what is expected, and is so many times it."""

_SAMPLE = 500_000
"""Pairs from which is told what is usual, and so many at a time are looked at: memory is kept for the hashes."""

_NONE = np.zeros(0, np.intp)

_SEPARATORS = {"  ": "two spaces", " ||| ": "three bars", ";": "a semicolon", "|": "a bar", ",": "a comma"}
"""What stands between columns in other files than TSV."""

_SPACES = re.compile(r"\s\s|\s$")

_EAST_ASIAN = {"Han", "Hiragana", "Katakana", "Bopomofo"}
"""Scripts that are written together."""


@dataclass(frozen=True)
class Limits:
    """Beyond these a line is long."""

    chars: int = 1_000
    words: int = 200


@dataclass(frozen=True, eq=False)
class Finding:
    """A kind of problem in a split: the numbers of the pairs that have it, and what must be known to understand it."""

    kind: Kind
    survey: Survey
    rows_M: Rows
    details: str = ""

    @property
    def count(self) -> int:
        return self.survey.bad_lines if self.kind is problem_kinds.NO_PAIR else len(self.rows_M)

    @property
    def severity(self) -> Severity:
        return "note" if self.count <= self.kind.tolerated * len(self.survey) else self.kind.severity


def read_examples(findings: Sequence[Finding], most: int) -> dict[Finding, list[Row]]:
    """The first pairs of each finding, read again; each file is read once, and no further than needed."""
    shown = {}
    for survey in {id(finding.survey): finding.survey for finding in findings}.values():
        ours = [finding for finding in findings if finding.survey is survey]
        texts = survey.texts(number for finding in ours for number in finding.rows_M[:most].tolist())
        for finding in ours:
            shown[finding] = [texts[number] for number in finding.rows_M[:most].tolist()]
            if finding.kind is problem_kinds.NO_PAIR:
                shown[finding] = survey.bad_rows[:most]
    return shown


def locate_problem(kind: Kind, text: str) -> int:
    """Where in a text the problem is seen first; 0 where that cannot be said."""
    if kind in {problem_kinds.CONTROL, problem_kinds.REPLACED}:
        trait = Trait.CONTROL if kind is problem_kinds.CONTROL else Trait.REPLACED
        return next((place for place, sign in enumerate(text) if traits_of(ord(sign)) & trait), 0)
    if kind in {problem_kinds.MARKUP, problem_kinds.SPACES}:
        found = (MARKUP if kind is problem_kinds.MARKUP else _SPACES).search(text)
        return found.start() if found else 0
    if kind in {problem_kinds.MOJIBAKE, problem_kinds.UNNORMALIZED}:
        mended = read_again(text) if kind is problem_kinds.MOJIBAKE else unicodedata.normalize("NFC", text)
        return next((place for place, (one, other) in enumerate(zip(text, mended, strict=False)) if one != other), 0)
    return 0


_MARKED = {
    problem_kinds.EMPTY: Mark.EMPTY,
    problem_kinds.MOJIBAKE: Mark.MOJIBAKE,
    problem_kinds.REPLACED: Mark.REPLACED,
    problem_kinds.CONTROL: Mark.CONTROL,
    problem_kinds.COPY: Mark.COPY,
    problem_kinds.UNNORMALIZED: Mark.UNNORMALIZED,
    problem_kinds.MARKUP: Mark.MARKUP,
    problem_kinds.SPACES: Mark.SPACES,
}


def find_problems(surveys: Sequence[Survey], characters: Characters, limits: Limits) -> list[Finding]:
    """All findings, by kind and then by split. Splits come in order: what is learned from before what is held out."""
    found = [finding for survey in surveys for finding in _within(survey, limits)]
    found += _repeated(surveys[0])
    found += _ratios(surveys)
    found += _scripts(surveys, characters)
    found += [finding for place, survey in enumerate(surveys) for finding in _across(survey, surveys[place + 1 :])]
    order = {kind: place for place, kind in enumerate(KINDS)}
    # That what is held out shares a source matters little, as nothing is learned from it.
    found = [finding for finding in found if finding.kind is not problem_kinds.OVERLAP or finding.survey is surveys[0]]
    return sorted((finding for finding in found if finding.count), key=lambda finding: order[finding.kind])


def _within(survey: Survey, limits: Limits) -> Iterator[Finding]:
    yield Finding(problem_kinds.NO_PAIR, survey, _NONE, _hint(survey))
    for kind, mark in _MARKED.items():
        yield Finding(kind, survey, np.flatnonzero(survey.marks_N & np.uint8(mark)))
    source, target = survey.source, survey.target
    long_N = np.maximum(source.chars_N, target.chars_N) > limits.chars
    long_N |= np.maximum(source.words_N, target.words_N) > limits.words
    told = f"more than {limits.chars:,} characters or {limits.words:,} words"
    yield Finding(problem_kinds.LONG, survey, np.flatnonzero(long_N), told)


def _hint(survey: Survey) -> str:
    """How to replace the separator that each line without a pair contains once; else the remedy of the first line."""
    rows = survey.bad_rows
    for sign, name in _SEPARATORS.items():
        if rows and all(row.source.count(sign) == 1 for row in rows):
            return f"{name} where a tab is expected: `{_conversion(rows[0], sign)}` converts the file to TSV"
    return next((row.remedy for row in rows), "").removesuffix(".")


def _conversion(row: Row, sign: str) -> str:
    """The command that replaces a separator with a tab in the file of a row."""
    path = Path(row.place.rpartition(":")[0])
    converted = path.with_name(f"{path.name.partition('.')[0]}.{'tabs.' if path.suffix == '.tsv' else ''}tsv")
    substitute = f"sed 's/{sign}/\\t/'"
    if path.suffix == ".gz":
        return f"zcat {shlex.quote(str(path))} | {substitute} > {shlex.quote(str(converted))}"
    return f"{substitute} {shlex.quote(str(path))} > {shlex.quote(str(converted))}"


def describe_unreadable(survey: Survey) -> str:
    """Why a file has no pair: what is wrong with its first line, and what to do about it."""
    if not survey.bad_rows:
        return "the file has no data lines."
    first, hint = survey.bad_rows[0], _hint(survey)
    told = hint[:1].upper() + hint[1:] if hint else "Correct the lines, or choose the columns to read (--columns A B)"
    others = f"; in all, {quantity(survey.bad_lines, 'line')} contain no pair" if survey.bad_lines > 1 else ""
    return f"{first.place}: {first.problem}{others}. {told}."


def _ratios(surveys: Sequence[Survey]) -> Iterator[Finding]:
    """Targets whose length lies far from what their sources make expect.

    With s and t the lengths, and c the median of t/s, the deviation (t − c·s)/√(t + c·s) has about the same spread for
    short texts and long ones (Gale and Church, 1993). Its spread is measured by quantiles, which outliers do not move,
    on the largest split.
    """
    largest = max(surveys, key=len)
    sample = slice(None, None, max(1, len(largest) // _SAMPLE))
    sound_N = (largest.marks_N[sample] & np.uint8(Mark.EMPTY)) == 0
    if sound_N.sum() < _FEWEST:
        return
    ratio_N = largest.target.chars_N[sample][sound_N] / largest.source.chars_N[sample][sound_N]
    usual = float(np.median(ratio_N))
    low, high = np.quantile(ratio_N, [0.025, 0.975])
    off_N = _deviation(largest, usual, sample)[sound_N]
    middle, lower, upper = np.quantile(off_N, [0.5, 0.025, 0.975])
    # Of a normal distribution both are its standard deviation; others may have a sharper middle, or long tails.
    spread = max(1.4826 * np.median(np.abs(off_N - middle)), (upper - lower) / 3.92, 0.1)
    told = (
        f"a target usually has {usual:.2f} times the characters of its source, and in 95 % of the pairs {low:.2f} to "
        f"{high:.2f}; these have more than {_FACTOR * usual:.2f} or less than {usual / _FACTOR:.2f}, and are more than "
        f"{_FAR:g} standard deviations off for their length"
    )
    for survey in surveys:
        odd_N = (survey.marks_N & np.uint8(Mark.EMPTY)) == 0
        for part in _parts(len(survey)):
            ratio_N = survey.target.chars_N[part] / np.maximum(survey.source.chars_N[part], 1)
            odd_N[part] &= np.abs(_deviation(survey, usual, part) - middle) > _FAR * spread
            odd_N[part] &= (ratio_N > _FACTOR * usual) | (ratio_N < usual / _FACTOR)
        yield Finding(problem_kinds.RATIO, survey, np.flatnonzero(odd_N), told)


def _deviation(survey: Survey, usual: float, part: slice) -> NDArray[np.float64]:
    expected_N, found_N = usual * survey.source.chars_N[part], survey.target.chars_N[part]
    return np.asarray((found_N - expected_N) / np.sqrt(found_N + expected_N + 1))


def _repeated(survey: Survey) -> Iterator[Finding]:
    """Pairs that stand there before, and sources with several targets."""
    again_N = np.zeros(len(survey), bool)
    order, starts = _groups(survey.pairs_N)
    again_N[order] = True
    again_N[order[starts]] = False
    yield Finding(problem_kinds.DUPLICATE, survey, np.flatnonzero(again_N))
    del order, starts
    once = np.flatnonzero(~again_N).astype(np.uint32)
    order, starts = _groups(survey.source.hashes_N[once])
    counts = np.diff(starts, append=len(order))
    several = np.flatnonzero(counts > 1)
    told = f"{len(several):,} of {len(counts):,} sources have several targets, up to {counts.max(initial=0)}"
    # The most ambiguous come first: they show best what it is about. Of equals, those that stand first.
    several = several[np.lexsort((order[starts[several]], -counts[several]))]
    sizes = counts[several]
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows = order[np.repeat(starts[several], sizes) + within]
    yield Finding(problem_kinds.AMBIGUOUS, survey, once[rows].astype(np.intp), told)


def _groups(values_N: NDArray[Any]) -> tuple[Rows, Rows]:
    """An order in which equal values stand together, each group in the order of the file, and where groups start."""
    order = np.argsort(values_N, kind="stable")
    ordered_N = values_N[order]
    return order, np.flatnonzero(np.concatenate(([True], ordered_N[1:] != ordered_N[:-1]))[: len(order)])


def _across(survey: Survey, others: Sequence[Survey]) -> Iterator[Finding]:
    """Pairs that stand in a later split too: whole, or by their source alone."""
    for other in others:
        whole_N = _among(survey.pairs_N, other.pairs_N)
        source_N = _among(survey.source.hashes_N, other.source.hashes_N) & ~whole_N
        for kind, rows_N, met_N in (
            (problem_kinds.LEAK, whole_N, _among(other.pairs_N, survey.pairs_N[whole_N])),
            (problem_kinds.OVERLAP, source_N, _among(other.source.hashes_N, survey.source.hashes_N[source_N])),
        ):
            share = met_N.mean() if len(other) else 0.0
            told = f"they match {met_N.sum():,} of the {quantity(len(other), 'pair')} of {other.name} ({share:.1%})"
            yield Finding(kind, survey, np.flatnonzero(rows_N), told)


def _among(values_N: NDArray[Any], others_M: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values are found among others, in little memory."""
    found_N = np.zeros(len(values_N), bool)
    if len(others_M):
        ordered_M = np.sort(others_M)
        for part in _parts(len(values_N)):
            place = np.minimum(np.searchsorted(ordered_M, values_N[part]), len(ordered_M) - 1)
            found_N[part] = ordered_M[place] == values_N[part]
    return found_N


def _parts(count: int) -> Iterator[slice]:
    return (slice(start, start + _SAMPLE) for start in range(0, count, _SAMPLE))


def _scripts(surveys: Sequence[Survey], characters: Characters) -> Iterator[Finding]:
    expected = [
        main_script([survey.source for survey in surveys], characters),
        main_script([survey.target for survey in surveys], characters),
    ]
    for survey in surveys:
        strange = [
            _strange(side, script, characters)
            for side, script in zip((survey.source, survey.target), expected, strict=True)
        ]
        swapped_N = np.zeros(len(survey), bool)
        if expected[0] and expected[1] and _family(expected[0]) != _family(expected[1]):
            swapped_N = strange[0] & strange[1]
            swapped_N &= _has(survey.source, expected[1], characters) & _has(survey.target, expected[0], characters)
        told = f"sources are in {expected[0] or 'several scripts'}, targets in {expected[1] or 'several scripts'}"
        yield Finding(problem_kinds.SWAPPED, survey, np.flatnonzero(swapped_N), told)
        yield Finding(problem_kinds.SCRIPT, survey, np.flatnonzero((strange[0] | strange[1]) & ~swapped_N), told)


def main_script(sides: Sequence[SideStatistics], characters: Characters) -> str | None:
    """The script in which nearly all lines of a side are written, if there is one."""
    counts = np.sum([np.bincount(side.script_N, minlength=len(characters.scripts)) for side in sides], axis=0)
    counts[0] = 0
    families = [_family(script) for script in characters.scripts]
    best = int(counts.argmax())
    written = sum(count for count, family in zip(counts, families, strict=True) if family == families[best])
    return characters.scripts[best] if written >= max(_FEWEST, _SCRIPT_SHARE * counts.sum()) else None


def _family(script: str) -> frozenset[str]:
    return frozenset(_EAST_ASIAN) if script in _EAST_ASIAN else frozenset({script})


def _strange(side: SideStatistics, expected: str | None, characters: Characters) -> NDArray[np.bool_]:
    """Texts with enough letters, none of them of the script that is expected."""
    if expected is None:
        return np.zeros(len(side.script_N), bool)
    return (side.script_N > 0) & ~_has(side, expected, characters)


def _has(side: SideStatistics, script: str, characters: Characters) -> NDArray[np.bool_]:
    """Texts with a letter of a script, or of one that it is written with."""
    numbers = [number for number, name in enumerate(characters.scripts) if name in _family(script)]
    wanted = np.bitwise_or.reduce(bits(len(characters.scripts))[numbers])
    return np.asarray((side.scripts_N & wanted) > 0)
