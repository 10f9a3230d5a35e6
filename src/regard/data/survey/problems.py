"""Find problems of pairs in their surveys.

What is unusual is derived from the data: a length ratio from the distribution of ratios, a script from the one in which
nearly all lines are written.
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

from regard.data.pair_files import Row
from regard.data.survey import problem_kinds
from regard.data.survey.problem_kinds import KINDS, ProblemKind, Severity
from regard.data.survey.scripts import Characters, Trait, compute_traits
from regard.data.survey.survey import MARKUP, Mark, SideStatistics, Survey, fix_mojibake, script_bits
from regard.formatting import quantity

Rows = NDArray[np.intp]

_SCRIPT_SHARE = 0.95
"""The minimum share of the lines of a side that are written in its main script."""

_MIN_LINES = 20
"""The minimum number of lines from which distributions are estimated."""

_MAX_DEVIATIONS, _MAX_FACTOR = 5.0, 2.0
"""A length is unusual if it differs from the expected one by more standard deviations than this, and by more than this
factor.
"""

_CHUNK = 500_000
"""The number of pairs from which distributions are estimated, and that are processed at a time to save memory."""

_NONE = np.zeros(0, np.intp)

_SEPARATORS = {"  ": "two spaces", ";": "a semicolon", "|": "a bar", ",": "a comma"}
"""Column separators of formats other than TSV."""

_SPACES = re.compile(r"\s\s|\s$")

_EAST_ASIAN = {"Han", "Hiragana", "Katakana", "Bopomofo"}
"""Scripts that are mixed in the same text."""


@dataclass(frozen=True)
class Limits:
    """The maximum length of a side in characters and in words; longer ones are reported."""

    chars: int = 1_000
    words: int = 200


@dataclass(frozen=True, eq=False)
class Finding:
    """A kind of problem in a split, with the indices of the affected pairs and details for the report."""

    kind: ProblemKind
    survey: Survey
    rows_M: Rows
    details: str = ""

    @property
    def count(self) -> int:
        return self.survey.bad_lines if self.kind is problem_kinds.NO_PAIR else len(self.rows_M)

    @property
    def severity(self) -> Severity:
        return "note" if self.count <= self.kind.tolerated * len(self.survey) else self.kind.severity


def read_examples(findings: Sequence[Finding], max_examples: int) -> dict[Finding, list[Row]]:
    """Read the first pairs of each finding again. Each file is read once, no further than needed."""
    examples = {}
    for survey in {id(finding.survey): finding.survey for finding in findings}.values():
        relevant = [finding for finding in findings if finding.survey is survey]
        pairs = survey.read_pairs(index for finding in relevant for index in finding.rows_M[:max_examples].tolist())
        for finding in relevant:
            examples[finding] = [pairs[index] for index in finding.rows_M[:max_examples].tolist()]
            if finding.kind is problem_kinds.NO_PAIR:
                examples[finding] = survey.bad_rows[:max_examples]
    return examples


def locate_problem(kind: ProblemKind, text: str) -> int:
    """Return the first position of a problem in a text, or 0 if it has none."""
    if kind in {problem_kinds.CONTROL, problem_kinds.REPLACED}:
        trait = Trait.CONTROL if kind is problem_kinds.CONTROL else Trait.REPLACED
        return next((index for index, char in enumerate(text) if compute_traits(ord(char)) & trait), 0)
    if kind in {problem_kinds.MARKUP, problem_kinds.SPACES}:
        match = (MARKUP if kind is problem_kinds.MARKUP else _SPACES).search(text)
        return match.start() if match else 0
    if kind in {problem_kinds.MOJIBAKE, problem_kinds.UNNORMALIZED}:
        fixed = fix_mojibake(text) if kind is problem_kinds.MOJIBAKE else unicodedata.normalize("NFC", text)
        return next((index for index, (old, new) in enumerate(zip(text, fixed, strict=False)) if old != new), 0)
    return 0


def find_problems(surveys: Sequence[Survey], characters: Characters, limits: Limits) -> list[Finding]:
    """Find all problems, sorted by kind and then by split. The first survey must be that of the training data."""
    findings = [finding for survey in surveys for finding in _find_in_pairs(survey, limits)]
    findings += _find_repetitions(surveys[0])
    findings += _find_unusual_ratios(surveys)
    findings += _find_unexpected_scripts(surveys, characters)
    findings += [
        finding for index, survey in enumerate(surveys) for finding in _find_overlaps(survey, surveys[index + 1 :])
    ]
    order = {kind: index for index, kind in enumerate(KINDS)}
    # Held-out splits may share sources with each other, because no model is trained on them.
    relevant = [
        finding for finding in findings if finding.kind is not problem_kinds.OVERLAP or finding.survey is surveys[0]
    ]
    return sorted((finding for finding in relevant if finding.count), key=lambda finding: order[finding.kind])


def _find_in_pairs(survey: Survey, limits: Limits) -> Iterator[Finding]:
    """Find problems that can be detected in each pair on its own."""
    yield Finding(problem_kinds.NO_PAIR, survey, _NONE, _hint(survey))
    for kind in KINDS:
        if kind.mark is not None:
            yield Finding(kind, survey, np.flatnonzero(survey.marks_N & np.uint8(kind.mark)))
    source, target = survey.source, survey.target
    long_N = np.maximum(source.chars_N, target.chars_N) > limits.chars
    long_N |= np.maximum(source.words_N, target.words_N) > limits.words
    details = f"more than {limits.chars:,} characters or {limits.words:,} words"
    yield Finding(problem_kinds.LONG, survey, np.flatnonzero(long_N), details)


def _hint(survey: Survey) -> str:
    """Return the remedy for lines without a pair: to convert another separator, else that of the first line."""
    rows = survey.bad_rows
    for separator, name in _SEPARATORS.items():
        if rows and all(row.source.count(separator) == 1 for row in rows):
            return f"{name} where a tab is expected: `{_conversion(rows[0], separator)}` converts the file to TSV"
    return next((row.remedy for row in rows), "").removesuffix(".")


def _conversion(row: Row, separator: str) -> str:
    """Return the command that replaces a separator with a tab in the file of a row."""
    path = Path(row.location.rpartition(":")[0])
    converted = path.with_name(f"{path.name.partition('.')[0]}.{'tabs.' if path.suffix == '.tsv' else ''}tsv")
    substitute = f"sed 's/{separator}/\\t/'"
    if path.suffix == ".gz":
        return f"zcat {shlex.quote(str(path))} | {substitute} > {shlex.quote(str(converted))}"
    return f"{substitute} {shlex.quote(str(path))} > {shlex.quote(str(converted))}"


def describe_unreadable(survey: Survey) -> str:
    """Return why a file contains no pair: the problem of its first line, and the remedy."""
    if not survey.bad_rows:
        return "the file has no data lines."
    first, hint = survey.bad_rows[0], _hint(survey)
    remedy = hint[:1].upper() + hint[1:] if hint else "Correct the lines, or choose the columns to read (--columns A B)"
    others = f"; in total, {quantity(survey.bad_lines, 'line')} contain no pair" if survey.bad_lines > 1 else ""
    return f"{first.location}: {first.problem}{others}. {remedy}."


def _find_unusual_ratios(surveys: Sequence[Survey]) -> Iterator[Finding]:
    """Find targets whose length is far from the length that is expected for their source.

    With s and t the lengths, and c the median of t/s, the deviation (t − c·s)/√(t + c·s) has about the same spread for
    short texts and long ones (Gale and Church, 1993). The spread is estimated on the largest split, from quantiles,
    which are robust to outliers.
    """
    largest = max(surveys, key=len)
    sample = slice(None, None, max(1, len(largest) // _CHUNK))
    nonempty_N = (largest.marks_N[sample] & np.uint8(Mark.EMPTY)) == 0
    if nonempty_N.sum() < _MIN_LINES:
        return
    ratio_N = largest.target.chars_N[sample][nonempty_N] / largest.source.chars_N[sample][nonempty_N]
    median_ratio = float(np.median(ratio_N))
    low, high = np.quantile(ratio_N, [0.025, 0.975])
    deviation_N = _deviation(largest, median_ratio, sample)[nonempty_N]
    median, lower, upper = np.quantile(deviation_N, [0.5, 0.025, 0.975])
    # For a normal distribution, both estimates equal the standard deviation. Other distributions may have a sharper
    # peak, or longer tails.
    spread = max(1.4826 * np.median(np.abs(deviation_N - median)), (upper - lower) / 3.92, 0.1)
    details = (
        f"the median ratio of target to source characters is {median_ratio:.2f}, and 95 % of the pairs are between "
        f"{low:.2f} and {high:.2f}; the flagged pairs have a ratio above {_MAX_FACTOR * median_ratio:.2f} or below "
        f"{median_ratio / _MAX_FACTOR:.2f}, and deviate by more than {_MAX_DEVIATIONS:g} standard deviations"
    )
    for survey in surveys:
        unusual_N = (survey.marks_N & np.uint8(Mark.EMPTY)) == 0
        for chunk in _chunks(len(survey)):
            ratio_N = survey.target.chars_N[chunk] / np.maximum(survey.source.chars_N[chunk], 1)
            unusual_N[chunk] &= np.abs(_deviation(survey, median_ratio, chunk) - median) > _MAX_DEVIATIONS * spread
            unusual_N[chunk] &= (ratio_N > _MAX_FACTOR * median_ratio) | (ratio_N < median_ratio / _MAX_FACTOR)
        yield Finding(problem_kinds.RATIO, survey, np.flatnonzero(unusual_N), details)


def _deviation(survey: Survey, median_ratio: float, chunk: slice) -> NDArray[np.float64]:
    expected_N, actual_N = median_ratio * survey.source.chars_N[chunk], survey.target.chars_N[chunk]
    return np.asarray((actual_N - expected_N) / np.sqrt(actual_N + expected_N + 1))


def _find_repetitions(survey: Survey) -> Iterator[Finding]:
    """Find duplicate pairs, and sources with several targets."""
    duplicate_N = np.zeros(len(survey), bool)
    order, starts = _group(survey.pairs_N)
    duplicate_N[order] = True
    duplicate_N[order[starts]] = False
    yield Finding(problem_kinds.DUPLICATE, survey, np.flatnonzero(duplicate_N))
    del order, starts
    distinct = np.flatnonzero(~duplicate_N).astype(np.uint32)
    order, starts = _group(survey.source.hashes_N[distinct])
    counts = np.diff(starts, append=len(order))
    ambiguous = np.flatnonzero(counts > 1)
    details = f"{len(ambiguous):,} of {len(counts):,} sources have several targets, up to {counts.max(initial=0)}"
    # The sources with the most targets come first, as the best examples; ties are in the order of the file.
    ambiguous = ambiguous[np.lexsort((order[starts[ambiguous]], -counts[ambiguous]))]
    sizes = counts[ambiguous]
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows = order[np.repeat(starts[ambiguous], sizes) + within]
    yield Finding(problem_kinds.AMBIGUOUS, survey, distinct[rows].astype(np.intp), details)


def _group(values_N: NDArray[Any]) -> tuple[Rows, Rows]:
    """Return an order that groups equal values, stable within groups, and the start of each group."""
    order = np.argsort(values_N, kind="stable")
    ordered_N = values_N[order]
    return order, np.flatnonzero(np.concatenate(([True], ordered_N[1:] != ordered_N[:-1]))[: len(order)])


def _find_overlaps(survey: Survey, others: Sequence[Survey]) -> Iterator[Finding]:
    """Find pairs that also occur in later splits, and pairs whose source does."""
    for other in others:
        pair_N = _isin(survey.pairs_N, other.pairs_N)
        source_N = _isin(survey.source.hashes_N, other.source.hashes_N) & ~pair_N
        for kind, rows_N, matched_N in (
            (problem_kinds.LEAK, pair_N, _isin(other.pairs_N, survey.pairs_N[pair_N])),
            (problem_kinds.OVERLAP, source_N, _isin(other.source.hashes_N, survey.source.hashes_N[source_N])),
        ):
            share = matched_N.mean() if len(other) else 0.0
            details = (
                f"they match {matched_N.sum():,} of the {quantity(len(other), 'pair')} of {other.name} ({share:.1%})"
            )
            yield Finding(kind, survey, np.flatnonzero(rows_N), details)


def _isin(values_N: NDArray[Any], others_M: NDArray[Any]) -> NDArray[np.bool_]:
    """As `np.isin`, in chunks that need little memory."""
    result_N = np.zeros(len(values_N), bool)
    if len(others_M):
        ordered_M = np.sort(others_M)
        for chunk in _chunks(len(values_N)):
            index = np.minimum(np.searchsorted(ordered_M, values_N[chunk]), len(ordered_M) - 1)
            result_N[chunk] = ordered_M[index] == values_N[chunk]
    return result_N


def _chunks(count: int) -> Iterator[slice]:
    return (slice(start, start + _CHUNK) for start in range(0, count, _CHUNK))


def _find_unexpected_scripts(surveys: Sequence[Survey], characters: Characters) -> Iterator[Finding]:
    expected = [
        main_script([survey.source for survey in surveys], characters),
        main_script([survey.target for survey in surveys], characters),
    ]
    for survey in surveys:
        unexpected = [
            _lacks_script(side, script, characters)
            for side, script in zip((survey.source, survey.target), expected, strict=True)
        ]
        swapped_N = np.zeros(len(survey), bool)
        if expected[0] and expected[1] and _family(expected[0]) != _family(expected[1]):
            swapped_N = unexpected[0] & unexpected[1]
            swapped_N &= _has_script(survey.source, expected[1], characters)
            swapped_N &= _has_script(survey.target, expected[0], characters)
        details = f"sources are in {expected[0] or 'several scripts'}, targets in {expected[1] or 'several scripts'}"
        yield Finding(problem_kinds.SWAPPED, survey, np.flatnonzero(swapped_N), details)
        yield Finding(
            problem_kinds.SCRIPT, survey, np.flatnonzero((unexpected[0] | unexpected[1]) & ~swapped_N), details
        )


def main_script(sides: Sequence[SideStatistics], characters: Characters) -> str | None:
    """Return the script in which nearly all lines are written; None if there is none."""
    counts = np.sum([np.bincount(side.script_N, minlength=len(characters.scripts)) for side in sides], axis=0)
    counts[0] = 0
    families = [_family(script) for script in characters.scripts]
    best = int(counts.argmax())
    in_family = sum(count for count, family in zip(counts, families, strict=True) if family == families[best])
    return characters.scripts[best] if in_family >= max(_MIN_LINES, _SCRIPT_SHARE * counts.sum()) else None


def _family(script: str) -> frozenset[str]:
    """Return the scripts that are mixed with a script, including itself."""
    return frozenset(_EAST_ASIAN) if script in _EAST_ASIAN else frozenset({script})


def _lacks_script(side: SideStatistics, script: str | None, characters: Characters) -> NDArray[np.bool_]:
    """Return which texts have enough letters, but none in the family of a script."""
    if script is None:
        return np.zeros(len(side.script_N), bool)
    return (side.script_N > 0) & ~_has_script(side, script, characters)


def _has_script(side: SideStatistics, script: str, characters: Characters) -> NDArray[np.bool_]:
    """Return which texts have a letter in the family of a script."""
    numbers = [number for number, name in enumerate(characters.scripts) if name in _family(script)]
    mask = np.bitwise_or.reduce(script_bits(len(characters.scripts))[numbers])
    return np.asarray((side.scripts_N & mask) > 0)
