"""Text for messages and output: numbers with their nouns, paths, suggestions, tables, JSON."""

import json
import math
import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

_SIMILAR, _SIMILAR_IF_SHORT, _SHORTEST_PREFIX = 0.75, 0.66, 3
"""The ratio of `difflib` above which two names are similar: high enough to reject unrelated words, lower for words of
up to three letters, which may differ in one; and the shortest prefix of a name that identifies it.
"""


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name that `word` is a misspelling or a prefix of, if any."""
    known = list(names)
    alike = get_close_matches(word, known, n=1, cutoff=_SIMILAR if len(word) > 3 else _SIMILAR_IF_SHORT)
    longer = [name for name in known if len(word) >= _SHORTEST_PREFIX and name.startswith(word)]
    return next(iter(alike + longer), None)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """` Did you mean 'additive'?`, or nothing if no name is spelled alike."""
    found = nearest(word, names)
    return f" Did you mean '{found}'?" if found else ""


def quantity(number: int, noun: str) -> str:
    """`1 line`, `1,234 lines`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short_path(path: str | Path) -> str:
    """A path for messages: relative if it is below the current folder."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith(os.pardir) else relative


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with aligned columns, the same on a terminal and in a pipe."""
    from rich.cells import cell_len

    lines = [header, *rows]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def to_json(value: Any, *, indent: int | None = None, ensure_ascii: bool = True) -> str:
    """JSON that every parser reads. The standard has no NaN and no infinity: such a number becomes null."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)
    except ValueError:  # rare, so it is faster not to check every number first
        return json.dumps(_finite(value), indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_finite(entry) for entry in value]
        case _:
            return value
