"""The choice among implementations of one operation: the first that does not refuse."""

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Dispatch(NamedTuple):
    """The implementation that is used, and why each faster one is not."""

    path: str
    refused: dict[str, str]


def first_available(refusals: Mapping[str, Callable[[], str | None]], otherwise: str) -> Dispatch:
    """The first path that has no reason to refuse, else `otherwise`. The fastest path comes first."""
    refused: dict[str, str] = {}
    for path, refusal in refusals.items():
        reason = refusal()
        if reason is None:
            return Dispatch(path, refused)
        refused[path] = reason
    return Dispatch(otherwise, refused)
