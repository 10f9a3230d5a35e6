"""Readers: rows of pairs from parallel files, TSV, CSV, JSONL and dictionaries."""

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice, zip_longest
from typing import NamedTuple

from regard.data.files import Files
from regard.data.layouts import HEAD, Layout, Record, detect_layout, parse_records, text_keys, text_under
from regard.data.lines import Line, display_name, read_lines
from regard.errors import DataError
from regard.formatting import quantity

log = logging.getLogger(__name__)

TAB = "\t"
"""Separates the fields of one side."""

_SIGNS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}


class Row(NamedTuple):
    """A place in a file, and the pair that is there, or what is wrong with it and what to do about that."""

    place: str
    source: str
    target: str
    problem: str | None = None
    remedy: str = ""


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
        yield from _parallel(str(files.source), str(files.target))
        return
    name = display_name(files.path)
    lines = read_lines(files.path)
    head = list(islice(lines, HEAD))
    layout = detect_layout(files, head)
    for notice in layout.notices:
        log.warning("%s", notice)
    if layout.format == "jsonl":
        yield from _records_of_json(chain(head, lines), layout, name)
        return
    left, right = layout.columns
    needed = 1 + max(map(int, (*left, *right)))
    records = parse_records(layout.format, layout.delimiter, chain(head, lines), name)
    for record in islice(records, int(layout.header), None):
        cells, place = record.cells, f"{name}:{record.number}"
        if record.problem or len(cells) < needed:
            yield _row_without_pair(place, record, layout, needed)
        else:
            yield Row(place, TAB.join([cells[int(n)] for n in left]), TAB.join([cells[int(n)] for n in right]))


def read_layout(files: Files) -> Layout | None:
    """Detect the layout of a file of pairs; None for several files, and for one that is not a regular file."""
    if files.path is None or "" not in files.by_language or not os.path.isfile(files.path):
        return None
    with contextlib.closing(read_lines(files.path)) as lines:
        return detect_layout(files, list(islice(lines, HEAD)))


def _parallel(source: str, target: str) -> Iterator[Row]:
    ours, theirs = read_lines(source), read_lines(target)
    for count, (left, right) in enumerate(zip_longest(ours, theirs)):
        if left is None or right is None:
            lines = count + 1 + sum(1 for _ in (theirs if left is None else ours))
            counts = (count, lines) if left is None else (lines, count)
            raise DataError(
                f"{display_name(source)} has {quantity(counts[0], 'line')} and {display_name(target)} has {counts[1]:,}. Line n "
                "of one must belong to line n of the other: find the first lines that do not match, or create both "
                "again."
            )
        at_fault = target if right.problem and not left.problem else source
        problem, remedy = left[2:] if left.problem else right[2:]
        yield Row(f"{display_name(at_fault)}:{left.number}", left.text, right.text, problem, remedy)


def _records_of_json(lines: Iterable[Line], layout: Layout, name: str) -> Iterator[Row]:
    sides = layout.columns
    wanted = " and ".join(f"'{key}'" for side in sides for key in side)
    for line in lines:
        place = f"{name}:{line.number}"
        if line.problem or not line.text.strip():
            yield Row(place, "", "", line.problem, line.remedy)
            continue
        try:
            record = json.loads(line.text)
        except json.JSONDecodeError as error:
            yield Row(place, "", "", f"not valid JSON: {error.msg} at character {error.pos}")
            continue
        if not isinstance(record, dict):
            yield Row(place, "", "", f"not an object with the keys {wanted}")
            continue
        texts = [[text_under(record, str(key)) for key in side] for side in sides]
        if any(text is None for side in texts for text in side):
            keys = text_keys(record)
            problem = f"no text under {wanted}; it is under {', '.join(keys) or 'no key at all'}"
            remedy = f"Choose two keys, for example --columns {keys[0]} {keys[1]}" if len(keys) > 1 else ""
            yield Row(place, "", "", problem, f"{remedy}." if remedy else "")
        else:
            left, right = (TAB.join(str(text).replace("\n", " ") for text in side) for side in texts)
            yield Row(place, left, right)


def _row_without_pair(place: str, record: Record, layout: Layout, needed: int) -> Row:
    """The row of a record with a problem; a blank record is a pair with empty sides."""
    cells = record.cells
    if record.problem or not any(cell.strip() for cell in cells):
        return Row(place, "", "", record.problem, record.remedy)
    signs = {"tsv": "a tab", "dictionary": "a space", "csv": _SIGNS.get(layout.delimiter, f"'{layout.delimiter}'")}
    problem = f"{quantity(len(cells), 'column')} where {needed} are needed, with {signs[layout.format]} between"
    return Row(place, " ".join(cells), "", problem)
