"""Faults: the kinds of problem that pairs may have, each with its weight, and what to do about it."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Kind:
    """A kind of problem: the name to leave it out by, what it is, and what to do about it."""

    name: str
    severity: Severity
    description: str
    remedy: str
    tolerated: float = 0.0
    """A share of the pairs up to which it is no more than a note."""


NO_PAIR = Kind(
    "no-pair",
    "error",
    "lines that are no pair",
    "Mend them, say which columns hold the pair (--columns), or train with data.bad_lines=skip.",
)
EMPTY = Kind(
    "empty",
    "error",
    "pairs with an empty side",
    "Take the lines out of both sides; training leaves them out by itself.",
)
SWAPPED = Kind("swapped", "error", "pairs whose sides are mixed up", "Exchange source and target on these lines.")
MOJIBAKE = Kind(
    "misread",
    "warning",
    "pairs with UTF-8 that was read as Latin-1 (Ã© for é)",
    "Make the file again from its origin with the right encoding.",
)
REPLACED = Kind(
    "replaced",
    "warning",
    "pairs with U+FFFD, the sign for a character that was lost",
    "Make the file again from its origin with the right encoding, or leave the lines out.",
)
CONTROL = Kind("control", "warning", "pairs with control or invisible characters", "Take the characters out.")
SCRIPT = Kind(
    "script", "warning", "pairs with a side in another script", "Leave out the lines, unless such text is wanted."
)
RATIO = Kind(
    "ratio",
    "warning",
    "pairs of unusually different length",
    "Look whether the lines are aligned; leave out those that do not translate each other.",
)
LONG = Kind(
    "long",
    "warning",
    "pairs with a very long side",
    "Split them or leave them out; the limits are --max-chars and --max-words.",
)
COPY = Kind(
    "copy",
    "warning",
    "pairs whose target is the source, three words or more",
    "Leave the lines out: a model learns from few of them to copy.",
    0.001,
)
LEAK = Kind(
    "leak",
    "warning",
    "pairs that also stand in another split",
    "Leave them out of what is learned from (--fix does).",
)
OVERLAP = Kind(
    "overlap",
    "warning",
    "pairs whose source also stands in another split, with another target",
    "Split by source sentence, leave them out of what is learned from (--fix does), or out of validation "
    "(data.dev_unseen=true).",
)
DUPLICATE = Kind(
    "duplicate",
    "warning",
    "pairs that stand there before",
    "Keep one of each, unless their frequency is to be learned.",
    0.01,
)
AMBIGUOUS = Kind(
    "ambiguous",
    "note",
    "pairs whose source has other targets too",
    "Nothing, if all are right; a model can learn one at most, and splits must be by source.",
)
UNNORMALIZED = Kind(
    "unnormalized",
    "note",
    "pairs with text that is not in Unicode's NFC",
    "Normalize it: the same letter is otherwise several tokens.",
)
MARKUP = Kind(
    "markup",
    "note",
    "pairs with HTML entities or tags",
    "Unescape or remove them, unless the reference texts have them too.",
)
SPACES = Kind(
    "spaces",
    "note",
    "pairs with white space at an end or twice in a row",
    "Strip it, if tokens are characters.",
)

KINDS = (
    NO_PAIR, EMPTY, SWAPPED, MOJIBAKE, REPLACED, CONTROL, SCRIPT, RATIO, LONG, COPY, LEAK, OVERLAP, DUPLICATE, AMBIGUOUS,
    UNNORMALIZED, MARKUP, SPACES,
)  # fmt: skip
"""From what must be mended to what should be known."""
