"""Readers: rows of pairs from parallel files, TSV, CSV, JSONL and dictionaries."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice, zip_longest
from typing import NamedTuple

from regard.data.files import Files
from regard.data.layouts import HEAD, Layout, Record, detect_layout, get_text, parse_records, text_keys
from regard.data.lines import Line, display_name, read_lines
from regard.errors import DataError
from regard.formatting import is_encodable, parse_json, quantity

TAB = "\t"
"""Separates the fields of one side."""

_DELIMITER_NAMES = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}


class Row(NamedTuple):
    """A pair and its location in a file (`train.tsv:3`), or a problem and its remedy."""

    location: str
    source: str
    target: str
    problem: str | None = None
    remedy: str = ""


def read_rows(files: Files) -> Iterator[Row]:
    """Read the rows of one file or two. With several languages, the language is added to each source as a tag."""
    for language, language_files in files.by_language.items():
        for row in _rows(language_files):
            yield row._replace(source=_add_tag(row.source, language)) if language and row.source.strip() else row


def _add_tag(source: str, tag: str) -> str:
    return f"{source};{tag}" if "\t" in source else f"{source}\t{tag}"


def _rows(files: Files) -> Iterator[Row]:
    if files.path is None:
        yield from _parallel(str(files.source), str(files.target))
        return
    name = display_name(files.path)
    lines = read_lines(files.path)
    head = list(islice(lines, HEAD))
    layout = detect_layout(files, head)
    layout.log_notices(name)
    if layout.format == "jsonl":
        yield from _json_rows(chain(head, lines), layout, name)
        return
    left, right = layout.columns
    needed = 1 + max(map(int, (*left, *right)))
    records = parse_records(layout.format, layout.delimiter, chain(head, lines), name)
    for record in islice(records, int(layout.header), None):
        cells, location = record.cells, f"{name}:{record.number}"
        if record.problem or len(cells) < needed:
            yield _row_without_pair(location, record, layout, needed)
        else:
            yield Row(location, TAB.join([cells[int(n)] for n in left]), TAB.join([cells[int(n)] for n in right]))


def read_layout(files: Files) -> Layout | None:
    """Detect the layout of a file of pairs. Return None for several files, or if the file is not a regular file."""
    if files.path is None or "" not in files.by_language or not os.path.isfile(files.path):
        return None
    with contextlib.closing(read_lines(files.path)) as lines:
        return detect_layout(files, list(islice(lines, HEAD)))


def _parallel(source: str, target: str) -> Iterator[Row]:
    source_lines, target_lines = read_lines(source), read_lines(target)
    for count, (left, right) in enumerate(zip_longest(source_lines, target_lines)):
        if left is None or right is None:
            lines = count + 1 + sum(1 for _ in (target_lines if left is None else source_lines))
            counts = (count, lines) if left is None else (lines, count)
            raise DataError(
                f"{display_name(source)} has {quantity(counts[0], 'line')} and {display_name(target)} has "
                f"{counts[1]:,}. Line n of one must belong to line n of the other: find the first lines that do not "
                "match, or create both again."
            )
        path = target if right.problem and not left.problem else source
        problem, remedy = left[2:] if left.problem else right[2:]
        yield Row(f"{display_name(path)}:{left.number}", left.text, right.text, problem, remedy)


def _json_rows(lines: Iterable[Line], layout: Layout, name: str) -> Iterator[Row]:
    sides = layout.columns
    required = " and ".join(f"'{key}'" for side in sides for key in side)
    for line in lines:
        location = f"{name}:{line.number}"
        if line.problem or not line.text.strip():
            yield Row(location, "", "", line.problem, line.remedy)
            continue
        try:
            record = parse_json(line.text)
        except ValueError as error:
            yield Row(location, "", "", f"not valid JSON: {error}")
            continue
        if not isinstance(record, dict):
            yield Row(location, "", "", f"not an object with the keys {required}")
            continue
        texts = [[get_text(record, str(key)) for key in side] for side in sides]
        if any(text is None for side in texts for text in side):
            keys = text_keys(record)
            problem = (
                f"no text under {required}; the keys with text are {', '.join(keys)}"
                if keys
                else (f"no text under {required}, or under any other key")
            )
            remedy = f"Choose two keys, for example --columns {keys[0]} {keys[1]}" if len(keys) > 1 else ""
            yield Row(location, "", "", problem, f"{remedy}." if remedy else "")
        else:
            left, right = (TAB.join(str(text).replace("\n", " ") for text in side) for side in texts)
            if is_encodable(left + right):
                yield Row(location, left, right)
            else:
                yield Row(location, "", "", "an escape such as \\ud800, which is not a character")


def _row_without_pair(location: str, record: Record, layout: Layout, needed: int) -> Row:
    """Return the row of a record with a problem. A blank record is a pair with empty sides."""
    cells = record.cells
    if record.problem or not any(cell.strip() for cell in cells):
        return Row(location, "", "", record.problem, record.remedy)
    csv_delimiter = _DELIMITER_NAMES.get(layout.delimiter, f"'{layout.delimiter}'")
    delimiters = {"tsv": "a tab", "dictionary": "a space", "csv": csv_delimiter, "fast_align": "|||"}
    problem = (
        f"{quantity(len(cells), 'column')} instead of {needed}; columns are separated by {delimiters[layout.format]}"
    )
    return Row(location, " ".join(cells), "", problem)
