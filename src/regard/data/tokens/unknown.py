"""The parts of texts that have no token in the vocabulary, collected for a message."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import final

MAX_NAMED = 8
"""The maximum number of unknown tokens named in a message."""


@final
@dataclass
class UnknownTokens:
    """The first distinct unknown tokens, which a message names, and the number of texts with unknown tokens."""

    texts: int = 0
    _distinct: dict[str, None] = field(default_factory=dict)

    @classmethod
    def of(cls, unknown: Iterable[str]) -> "UnknownTokens":
        """Return the unknown tokens of one text."""
        collected = cls()
        collected.add(unknown)
        return collected

    def add(self, unknown: Iterable[str]) -> None:
        """Add the unknown tokens of a text."""
        found = dict.fromkeys(unknown)
        self.texts += bool(found)
        if len(self._distinct) <= MAX_NAMED:
            self._distinct |= found

    def __bool__(self) -> bool:
        return bool(self._distinct)

    def __str__(self) -> str:
        """Return the names of the tokens."""
        more = " and others" if len(self._distinct) > MAX_NAMED else ""
        return ", ".join(map(repr, islice(self._distinct, MAX_NAMED))) + more
