"""Source, presets and docs use the standard terms of the field.

`TERMS` lists expressions that have an established term, and the term to use instead.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".md", ".yaml"}

TERMS = {
    "told": "prints, reports, returns",
    "stands?|stood": "is, is written to, is stored in",
    r"(?<!there\s)(?:is|are) no(?! (?:longer|more|fewer|less))": "is not a",
    "work(?:ed|ing) out": "computed, derived analytically",
    "so (?:many|often)": "N, up to N, N times",
    "(?:go|goes|gone|went) on": "resume, continue",
    "begun": "started, start",
    "(?:is|are|was) refused": "is rejected",
    "(?:give|gives|gave) out": "runs out of memory",
    "each but once": "each once",
    "the mean of|in the mean": "the average of, on average",
    "answers": "predictions, outputs",
    "what it look(?:s|ed) at": "its attention weights",
    "few shapes": "bucketed shapes",
    "play(?:s|ed)? again": "replay (CUDA graph)",
    "roomy": "preallocated",
    "plainly": "reference mode",
    "in disguise": "equivalent to",
    "halved": "bf16 autocast, mixed precision; split",
    "staff": "teachers",
    "taught": "distilled, student",
    "passed over": "ignored, ignore_index",
    "harmless": "may change on resume",
    "wish(?:es|ed)": "constraints, overrides, requested",
    "(?:an?|the|this|these|each|every|any|which|of|several|other) measures?": "metric",
    "said": "generated, predicted, tokens so far",
    "spoken": "generated",
    "likeliest": "most likely",
    "company": "concurrent jobs",
    "bolder|freer": "more conservative, more diverse",
    "bursts?": "diverges",
    "forms of the (?:lstm|gru)": "variants",
    "afresh|anew": "again, from scratch",
    "the house": "the package",
    "fewest": "min_x, minimum",
    "mend(?:s|ed)?": "fix, fixed",
    "shall": "must, should",
    r"(?:token|normal|optim|initial|regular|capital|organ)is(?:e[drs]?|ing|ations?)": "American spelling: -ize",
    r"(?:col|behavi|neighb|fav)our\w*": "American spelling: -or",
}


class Finding(NamedTuple):
    line: int
    words: str
    instead: str


def compile_term(term: str) -> re.Pattern[str]:
    """Match a term in prose and in identifiers, also if it continues on the next line of a comment."""
    words = re.sub(r"(?<!\(\?!) ", r"[\\s_#]+", term)
    return re.compile(rf"(?<![A-Za-z])(?:{words})(?![A-Za-z])", re.IGNORECASE)


PATTERNS = {compile_term(term): instead for term, instead in TERMS.items()}


def find_terms(text: str) -> list[Finding]:
    return sorted(
        Finding(text.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), instead)
        for pattern, instead in PATTERNS.items()
        for match in pattern.finditer(text)
    )


def text_files(root: Path) -> Iterator[Path]:
    yield from (root / "README.md", root / "CHANGELOG.md")
    for folder in (root / "src", root / "docs"):
        yield from sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)


FILES = {str(path.relative_to(ROOT)): path for path in text_files(ROOT)}


def test_text_uses_the_terms_of_the_field() -> None:
    assert not "\n".join(
        f"{name}:{line}: “{words}” → {instead}"
        for name, path in FILES.items()
        for line, words, instead in find_terms(path.read_text("utf-8"))
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The loss is told.", (1, "told", "prints, reports, returns")),
        ("One\nvalue is no score.", (2, "is no", "is not a")),
        ("    # a gradient worked\n    # out by hand", (1, "worked # out", "computed, derived analytically")),
        ("def passed_over(tokens):", (1, "passed_over", "ignored, ignore_index")),
        ("So many steps", (1, "So many", "N, up to N, N times")),
        ("the colour of a cell", (1, "colour", "American spelling: -or")),
    ],
)
def test_an_expression_with_a_standard_term_is_found(text: str, expected: Finding) -> None:
    assert find_terms(text) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "It is no longer needed.",
        "There is no test set.",
        "Measure the time.",
        "an understandable message",
        "Resume a run.",
    ],
)
def test_standard_english_is_not_rejected(text: str) -> None:
    assert find_terms(text) == []
