"""Readers: rows of pairs from parallel files, TSV, CSV, JSONL and dictionaries."""

import csv
import json
import logging
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from regard.data.lines import read_lines
from regard.data.settings import Columns, Files
from regard.errors import DataError

log = logging.getLogger(__name__)

Places = tuple[tuple[int, ...], tuple[int, ...]]
"""Which cells of a row make the source, and which the target."""


class Row(NamedTuple):
    """A place in a file, and the pair that stands there or what is wrong with it."""

    place: str
    source: str
    target: str
    problem: str | None = None


def read_rows(files: Files) -> Iterator[Row]:
    """The rows of a file or two, or of those of several languages, which are then tags of their sources."""
    for language, own in files.by_language.items():
        for row in _rows(own):
            yield row._replace(source=_tagged(row.source, language)) if language and row.source.strip() else row


def _tagged(source: str, tag: str) -> str:
    """A source with one more tag than it has."""
    return f"{source};{tag}" if "\t" in source else f"{source}\t{tag}"


def _rows(files: Files) -> Iterator[Row]:
    if files.path is None:
        return _parallel(str(files.source), str(files.target))
    name = files.path.removesuffix(".gz")
    endings = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".dict": "dictionary"}
    told = next((form for ending, form in endings.items() if name.endswith(ending)), "tsv")
    form = told if files.format == "auto" else files.format
    return {"tsv": _tsv, "csv": _csv, "jsonl": _jsonl, "dictionary": _dictionary}[form](files.path, files.fields)


def _parallel(source: str, target: str) -> Iterator[Row]:
    ours, theirs = read_lines(source), read_lines(target)
    for count, (left, right) in enumerate(zip_longest(ours, theirs)):
        if left is None or right is None:
            lines = count + 1 + sum(1 for _ in (theirs if left is None else ours))
            counts = (count, lines) if left is None else (lines, count)
            raise DataError(
                f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}. Line n of one must belong to "
                "line n of the other: find where they part, or make them again."
            )
        at_fault = target if right.problem and not left.problem else source
        yield Row(f"{at_fault}:{left.number}", left.text, right.text, left.problem or right.problem)


def _tsv(path: str, columns: Columns | None) -> Iterator[Row]:
    places = _numbers(columns)
    for line in read_lines(path):
        cells = line.text.split("\t")
        if line.number == 1 and len(cells) > 2 and columns is None:
            log.warning(
                "%s has %d columns; the first two are used. Name others with --columns, or columns in a config: 1 "
                "and 3, or 1+3 and 2 where the third holds tags of the first.",
                path,
                len(cells),
            )
        yield _pick(f"{path}:{line.number}", cells, places, line.problem, "tab")


def _dictionary(path: str, columns: Columns | None) -> Iterator[Row]:
    """Lines `WORD  PH PH …`: the first word, and all that follows it."""
    del columns
    for line in read_lines(path):
        yield _pick(f"{path}:{line.number}", line.text.split(maxsplit=1), ((0,), (1,)), line.problem, "space")


def _csv(path: str, columns: Columns | None) -> Iterator[Row]:
    problems: dict[int, str] = {}

    def text() -> Iterator[str]:
        for line in read_lines(path):
            if line.problem:
                problems[line.number] = line.problem
            yield line.text + "\n"

    reader = csv.reader(text(), strict=True)
    places: Places | None = None
    last = 0
    named = columns is not None and any(isinstance(field, str) for side in columns for field in side)
    names = columns if columns is not None and named else (("source",), ("target",))
    try:
        for cells in reader:
            if places is None:
                missing = [str(name) for side in names for name in side if name not in cells]
                if not missing:
                    left, right = (tuple(cells.index(str(name)) for name in side) for side in names)
                    places = (left, right) if named or columns is None else _numbers(columns)
                    last = reader.line_num
                    continue
                if named:
                    raise DataError(
                        f"{path}:1: there is no column {', '.join(missing)}. The header has: {', '.join(cells)}."
                    )
                places = _numbers(columns)
            joined = [cell.replace("\n", " ") for cell in cells]
            told = (problems[number] for number in range(last + 1, reader.line_num + 1) if number in problems)
            last = reader.line_num
            yield _pick(f"{path}:{last}", joined, places, next(told, None), "comma")
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not valid CSV: {error}. Check the quotes.") from None


def _jsonl(path: str, columns: Columns | None) -> Iterator[Row]:
    sides = columns or (("source",), ("target",))
    wanted = " and ".join(f"'{name}'" for side in sides for name in side)
    for line in read_lines(path):
        place = f"{path}:{line.number}"
        try:
            record = json.loads(line.text) if not line.problem else {}
        except json.JSONDecodeError as error:
            yield Row(place, "", "", f"not valid JSON: {error.msg} at character {error.pos}")
            continue
        if line.problem:
            yield Row(place, "", "", line.problem)
        elif not isinstance(record, dict):
            yield Row(place, "", "", f"not an object with the keys {wanted}")
        elif not all(isinstance(record.get(name), str) for side in sides for name in side):
            yield Row(place, "", "", f"no text under {wanted}; its keys are {', '.join(record)} (see columns)")
        else:
            left, right = ("\t".join(record[name].replace("\n", " ") for name in side) for side in sides)
            yield Row(place, left, right)


def _numbers(columns: Columns | None) -> Places:
    if columns is None:
        return (0,), (1,)
    names = [str(field) for side in columns for field in side if isinstance(field, str)]
    if names:
        raise DataError(
            f"A TSV file has no header: give its columns {', '.join(names)} as numbers from 1 (several for one side as "
            "1+3)."
        )
    left, right = (tuple(int(field) - 1 for field in side) for side in columns)
    return left, right


def _pick(place: str, cells: list[str], places: Places, problem: str | None, sign: str) -> Row:
    if problem:
        return Row(place, "", "", problem)
    needed = max(max(side) for side in places) + 1
    if len(cells) < needed:
        found = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
        return Row(place, " ".join(cells), "", f"{found} where {needed} are needed, with a {sign} between")
    left, right = ("\t".join(cells[column] for column in side) for side in places)
    return Row(place, left, right)
