"""JSON that any parser reads: the standard has no NaN and no infinity, so a number that is not finite becomes null."""

import json
import math
from typing import Any


def dumps(value: Any, *, indent: int | None = None, ensure_ascii: bool = True) -> str:
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
