"""The kinds of problems that pairs can have, each with a severity, a description and a remedy."""

from dataclasses import dataclass
from typing import Literal

from regard.data.survey.survey import Mark

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class ProblemKind:
    """A kind of problem. `name` identifies it on the command line (`--ignore NAME`)."""

    name: str
    severity: Severity
    description: str
    remedy: str
    tolerated: float = 0.0
    """Up to this share of the pairs, the severity is `note`."""
    mark: Mark | None = None
    """The mark of surveyed pairs with this problem, if it can be detected in a pair on its own."""
    is_fixable: bool = False
    """Whether it has one certain correction (see `cleaning.py`)."""


NO_PAIR = ProblemKind(
    "no-pair",
    "error",
    "lines that do not contain a pair",
    "Correct them, choose the columns to read (--columns), or train with data.bad_lines=skip.",
)
EMPTY = ProblemKind(
    "empty",
    "error",
    "pairs with an empty side",
    "Remove the lines from both sides. Training skips them.",
    mark=Mark.EMPTY,
)
SWAPPED = ProblemKind(
    "swapped",
    "error",
    "pairs with source and target swapped",
    "Swap source and target on these lines.",
    is_fixable=True,
)
MOJIBAKE = ProblemKind(
    "mojibake",
    "warning",
    "pairs with UTF-8 text that was decoded as Latin-1 (Ã© instead of é)",
    "Create the file again from the original, with the correct encoding.",
    mark=Mark.MOJIBAKE,
    is_fixable=True,
)
REPLACED = ProblemKind(
    "replaced",
    "warning",
    "pairs with U+FFFD, which replaces a character that could not be decoded",
    "Create the file again from the original, with the correct encoding, or remove the lines.",
    mark=Mark.REPLACED,
)
CONTROL = ProblemKind(
    "control",
    "warning",
    "pairs with control or invisible characters",
    "Remove the characters.",
    mark=Mark.CONTROL,
    is_fixable=True,
)
SCRIPT = ProblemKind(
    "script", "warning", "pairs with a side in an unexpected script", "Remove the lines, unless this text is intended."
)
RATIO = ProblemKind(
    "ratio",
    "warning",
    "pairs with an unusual length ratio",
    "Check that the lines are aligned, and remove pairs that are not translations of each other.",
)
LONG = ProblemKind(
    "long",
    "warning",
    "pairs with a very long side",
    "Split or remove them. The limits are --max-chars and --max-words.",
)
COPY = ProblemKind(
    "copy",
    "warning",
    "pairs of three words or more whose target equals the source",
    "Remove the lines: even a small number of them teaches a model to copy.",
    0.001,
    mark=Mark.COPY,
)
LEAK = ProblemKind(
    "leak", "warning", "pairs that also occur in another split", "Remove them from the training data (--fix does)."
)
OVERLAP = ProblemKind(
    "overlap",
    "warning",
    "pairs whose source also occurs in another split, with a different target",
    "Split by source sentence, or remove them from the training data (--fix does) or from validation "
    "(data.dev_unseen=true).",
)
DUPLICATE = ProblemKind(
    "duplicate", "warning", "duplicate pairs", "Keep one of each, unless their frequency is meaningful.", 0.01
)
AMBIGUOUS = ProblemKind(
    "ambiguous",
    "note",
    "pairs whose source has several targets",
    "None needed if all targets are correct. A model predicts only one of them; split the data by source.",
)
UNNORMALIZED = ProblemKind(
    "unnormalized",
    "note",
    "pairs with text that is not in Unicode normalization form NFC",
    "Normalize the text: otherwise the same letter is encoded as different tokens.",
    mark=Mark.UNNORMALIZED,
    is_fixable=True,
)
MARKUP = ProblemKind(
    "markup",
    "note",
    "pairs with HTML entities or tags",
    "Unescape or remove them, unless the reference texts contain them too.",
    mark=Mark.MARKUP,
)
SPACES = ProblemKind(
    "spaces",
    "note",
    "pairs with leading, trailing or repeated white space",
    "Strip it if tokens are characters.",
    mark=Mark.SPACES,
    is_fixable=True,
)

KINDS = (
    NO_PAIR, EMPTY, SWAPPED, MOJIBAKE, REPLACED, CONTROL, SCRIPT, RATIO, LONG, COPY, LEAK, OVERLAP,
    DUPLICATE, AMBIGUOUS, UNNORMALIZED, MARKUP, SPACES,
)  # fmt: skip
"""All kinds, in the order of the report: the most severe first."""
