"""Pairs in memory: from lists and other iterables, dictionaries, data frames and datasets.

Data frames and datasets are recognized by their attributes (`columns`, `column_names`), so that neither pandas nor
datasets has to be installed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from regard.data.pair_files import get_text, obvious_keys, text_keys
from regard.errors import ArgumentTypeError, ConfigError, DataError, is_iterable
from regard.formatting import did_you_mean, quantity

ColumnNames = tuple[str, str]

_SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid"), "test": ("test",)}
"""The names that a dictionary of datasets may use for each split."""

_FORMS = (
    "Pass (source, target) pairs, a dictionary of two lists, a data frame, or a dataset with a column for the source "
    "and one for the target."
)

PairsInMemory = Any
"""An iterable of pairs or records, a mapping of columns, a data frame or a dataset."""


def collect_splits(
    pairs: PairsInMemory,
    dev: PairsInMemory | None = None,
    test: PairsInMemory | None = None,
    columns: Sequence[str] | None = None,
) -> dict[str, list[tuple[str, str]]]:
    """Read the pairs of each split that exists into lists, by the name of the split.

    Args:
        pairs: The training pairs, or a dictionary of datasets with the key "train", whose other splits are used too.
        dev: The pairs for validation.
        test: The pairs for testing.
        columns: The names of the columns (or keys) of the source and the target.
    """
    chosen = None if columns is None else _check_columns(columns)
    splits = {"train": pairs, "dev": dev, "test": test}
    if isinstance(pairs, Mapping) and "train" in pairs:
        for split, names in _SPLITS.items():
            if split == "train" or splits[split] is None:
                splits[split] = next((pairs[name] for name in names if name in pairs), None)
    return {
        split: collect_pairs(data, "pairs" if split == "train" else split, chosen)
        for split, data in splits.items()
        if data is not None
    }


def collect_pairs(data: PairsInMemory, name: str, columns: ColumnNames | None = None) -> list[tuple[str, str]]:
    """Read pairs into a list. Errors name the argument and the index of the pair."""
    rows = _iterate_rows(data, name)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{name} is empty. {_FORMS}")
    rows = chain([first], rows)
    if isinstance(first, Mapping):
        keys = _find_keys(first, name, columns)
        return [
            _check_pair(_read_record(row, keys, f"{name}[{index}]"), f"{name}[{index}]", keys)
            for index, row in enumerate(rows)
        ]
    if columns is not None:
        raise ConfigError(f"columns={columns!r}: {name} has no columns, only (source, target) pairs. Omit columns.")
    return [_check_pair(_unpack(row, f"{name}[{index}]"), f"{name}[{index}]") for index, row in enumerate(rows)]


def _check_columns(columns: Any) -> ColumnNames:
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise ArgumentTypeError(
            f"columns must be the names of two columns, not {columns!r}. For example, columns=('en', 'de')."
        )
    if len(columns) != 2 or not all(isinstance(column, str) for column in columns):
        raise ConfigError(
            f"columns must be two names, not {columns!r}: those of the source and of the target. For example, "
            "columns=('en', 'de')."
        )
    source, target = columns
    return source, target


def _iterate_rows(data: PairsInMemory, name: str) -> Iterator[Any]:
    """Return the rows of a table as dictionaries, or the items of an iterable."""
    columns = _column_names(data)
    if columns is not None:
        return _iterate_columns({column: data[column] for column in columns}, name)
    if isinstance(data, str | bytes) or not is_iterable(data):
        hint = " To train on a file, use `regard train --pairs FILE`." if isinstance(data, str | bytes) else ""
        raise ArgumentTypeError(f"{name} must be an iterable of pairs, not {type(data).__name__}. {_FORMS}{hint}")
    return iter(data)


def _column_names(data: PairsInMemory) -> list[str] | None:
    """Return the names of the columns of a table, or None if it is not a table.

    Datasets have `column_names`, which is None if it is not known before the rows are read; data frames have `columns`.
    """
    if isinstance(data, Mapping):
        return list(data)
    names = getattr(data, "column_names", None)
    if names is None:
        names = getattr(data, "columns", None)
    return None if names is None else [str(column) for column in names]


def _iterate_columns(columns: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of columns of equal length."""
    listed: dict[str, list[Any]] = {}
    for column, values in columns.items():
        if isinstance(values, str | bytes) or not is_iterable(values):
            raise ArgumentTypeError(
                f"{name}[{column!r}] must be a list of texts, not {type(values).__name__}. {_FORMS}"
            )
        listed[column] = list(values)
    lengths = {column: len(values) for column, values in listed.items()}
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{column!r} has {length:,}" for column, length in lengths.items())
        raise ConfigError(f"{name}: the columns have different lengths ({described}). Pass one target for each source.")
    return (dict(zip(listed, row, strict=True)) for row in zip(*listed.values(), strict=True))


def _find_keys(record: Mapping[str, Any], name: str, columns: ColumnNames | None) -> ColumnNames:
    """Return the keys of the source and the target, which may be nested: `translation.en`."""
    available = text_keys(dict(record))
    if columns is None:
        keys = obvious_keys(dict(record)) or _default_keys(record)
        if keys is None:
            listed = ", ".join(map(str, record)) or "none"
            raise ConfigError(
                f"{name}: it is not clear which columns are the source and the target. Choose two with columns=(…, …). "
                f"Columns: {listed}. Columns with text: {', '.join(available) or 'none'}."
            )
        return keys
    source, target = (_find_key(column, record, available, name) for column in columns)
    return source, target


def _default_keys(record: Mapping[str, Any]) -> ColumnNames | None:
    """Return the keys of a record in which a text is missing, if they are clear; the missing text is reported later."""
    if {"source", "target"} <= set(record):
        return "source", "target"
    source, target = record if len(record) == 2 else (None, None)
    return None if source is None or target is None else (source, target)


def _find_key(column: str, record: Mapping[str, Any], available: Sequence[str], name: str) -> str:
    """Return the key with this name, or the only nested one whose last part has this name."""
    if column in record or column in available:
        return column
    nested = [key for key in available if key.rpartition(".")[2] == column]
    if len(nested) != 1:
        names = list(dict.fromkeys([*record, *available]))
        raise ConfigError(
            f"columns: {name} has no column {column!r}.{did_you_mean(column, names)} Available: {', '.join(names)}."
        )
    return nested[0]


def _read_record(row: Any, keys: ColumnNames, location: str) -> tuple[Any, Any]:
    if not isinstance(row, Mapping):
        raise ArgumentTypeError(
            f"{location} must be a dictionary, like the first item, not {type(row).__name__}. Pass items of one type."
        )
    record = dict(row)
    source, target = (text if (text := get_text(record, key)) is not None else record.get(key) for key in keys)
    return source, target


def _unpack(row: Any, location: str) -> tuple[Any, Any]:
    if isinstance(row, str | bytes | Mapping | set | frozenset) or not is_iterable(row):
        raise ArgumentTypeError(f"{location} must be a pair (source, target), not {_describe(row)}.")
    items = tuple(row)
    if len(items) != 2:
        raise ConfigError(f"{location} has {quantity(len(items), 'item')} instead of 2. Pass (source, target).")
    return items


def _check_pair(pair: tuple[Any, Any], location: str, keys: ColumnNames = ("source", "target")) -> tuple[str, str]:
    for key, text in zip(keys, pair, strict=True):
        if not isinstance(text, str):
            raise ArgumentTypeError(f"{location}: the {_side(key, keys)} must be a text (str), not {_describe(text)}.")
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise DataError(
                f"{location}: the {_side(key, keys)} is not valid Unicode: it contains a lone surrogate. Decode the "
                "text again with errors='replace'."
            )
    source, target = pair
    return str(source), str(target)


def _side(key: str, keys: ColumnNames) -> str:
    side = "source" if key == keys[0] else "target"
    return side if key == side else f"{side} ({key})"


def _describe(value: object) -> str:
    """Describe a value of the wrong type; a missing value is None, or NaN in a data frame."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return f"{value!r} (a missing value). Remove such pairs first"
    text = repr(value)
    return f"{type(value).__name__} ({text if len(text) <= 40 else text[:37] + '…'})"
