"""Dispatch: choose the fastest supported implementation of an operation."""

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Dispatch(NamedTuple):
    """The implementation that is used, and the reason why each faster one is not."""

    path: str
    rejected: dict[str, str]


def first_available(unsupported_reasons: Mapping[str, Callable[[], str | None]], otherwise: str) -> Dispatch:
    """Return the first path that has no reason to be unsupported, else `otherwise`. List the fastest path first."""
    rejected: dict[str, str] = {}
    for path, unsupported_reason in unsupported_reasons.items():
        reason = unsupported_reason()
        if reason is None:
            return Dispatch(path, rejected)
        rejected[path] = reason
    return Dispatch(otherwise, rejected)
