"""Files of pairs: their layouts, and their rows.

The layout is how a file stores pairs. What the settings do not specify is detected from its first lines, and reported.
A run stores what was detected in its settings, so that it is not detected again: each file has an absolute path, a
format, and column names if the file has them, and is read in the same way from any working directory.
"""

import contextlib
import csv
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard

from regard.data.headers import Verdict, is_counter, judge_first_row
from regard.data.lines import Line, display_name, is_stream, read_lines, read_texts
from regard.data.settings import SPLITS, Columns, DataSettings, Files, FilesData
from regard.errors import DataError
from regard.formatting import did_you_mean, is_encodable, parse_json, quantity
from regard.urls import is_url

log = logging.getLogger(__name__)

Format = Literal["tsv", "csv", "jsonl", "dictionary", "fast_align"]

HEAD = 500
"""The number of lines that a layout is detected from."""

EXTENSIONS: dict[str, Format] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".dict": "dictionary",
}

_DELIMITERS = (",", ";", "\t", "|")

BARS = " ||| "
"""Separates source and target in the format of fast_align and other word aligners."""

INFLECTIONS: Columns = ((1, 3), (2,))
"""The columns of a file of lemmas, inflected forms and tags, as in UniMorph."""

_TAGS = re.compile(r"[^\s;]+(;[^\s;]+)*")

_MIN_TAGGED_SHARE = 0.9
"""The minimum share of lines that have several tags in the third column."""

DEFAULT_KEYS: Columns = (("source",), ("target",))

_BLOCK = 1_000
"""The maximum number of lines that are parsed together."""


class Record(NamedTuple):
    """A record of a table: the number of its last line and its cells, or a problem and its remedy."""

    number: int
    cells: list[str]
    problem: str | None = None
    remedy: str = ""


class Layout(NamedTuple):
    """How a file stores pairs."""

    format: Format
    delimiter: str
    header: bool
    """Whether the first record names the columns."""
    columns: Columns
    """JSON keys, or column indices from 0."""
    names: tuple[str, str] | None = None
    """The columns to store in the settings, if the user gave none: the names in the header, or `INFLECTIONS`."""
    notices: tuple[str, ...] = ()

    def log_notices(self, name: str) -> None:
        """Log what was detected in the file `name`. The command line prints a notice for the first such file only."""
        for notice in self.notices:
            log.warning("%s", notice, extra={"once": notice.replace(name, "")})


def detect_layout(files: Files, head: Sequence[Line]) -> Layout:
    """Detect the layout of one file of pairs, from its settings and, for what they do not set, its first lines."""
    assert files.path is not None
    name, format_ = display_name(files.path), _detect_format(files, head)
    if format_ == "jsonl":
        return _detect_keys(name, files.fields, head)
    delimiter, notices = files.delimiter or "\t", []
    if format_ == "csv" and files.delimiter is None:
        delimiter = _detect_delimiter(head)
        if delimiter != ",":
            printed = "tabs" if delimiter == "\t" else f"'{delimiter}'"
            notices.append(f"{name}: columns are separated by {printed}. Set delimiter in a config to use another.")
    records = _parse_head(format_, delimiter, head)
    rows = [record.cells for record in records if not record.problem and any(record.cells)]
    first = rows[0] if rows else []
    named = any(isinstance(field, str) for side in files.fields or () for field in side)
    header, verdict = files.header, judge_first_row(rows)
    if header == "auto":
        header = named or verdict is Verdict.HEADER
        listed = ", ".join(first)
        if header and not named:
            notices.append(f"{name}: line 1 is treated as a header: {listed}. Use --no-header if it is a pair.")
        elif verdict is Verdict.UNCERTAIN and not named:
            notices.append(
                f"{name}: line 1 ({listed}) may be a header; it is read as a pair. Use --header if it is one."
            )
    inflections = files.fields is None and not header and _contain_tags(rows)
    columns = files.fields or (INFLECTIONS if inflections else _default_columns(first) if header else ((1,), (2,)))
    if inflections:
        notices.append(
            f"{name}: the source is the first column with the tags in the third, such as {first[2]}; the target is the "
            "second column. To use other columns, set --columns (columns in a config), for example to 1 2."
        )
    elif files.fields is None and len(first) > 2 and format_ != "dictionary":
        notices.append(_describe_choice(name, first, columns, header))
    indices = _column_indices(name, columns, first)
    if header:
        _check_unique(name, files.fields, indices, first)
    names = _column_names(first, indices) if header and files.fields is None else None
    return Layout(format_, delimiter, header, indices, ("1+3", "2") if inflections else names, tuple(notices))


def _contain_tags(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the third of three columns contains tags, as in files of inflections.

    It does if nearly all of its cells have several values, separated by semicolons, and there are few distinct values.
    """
    cells = [row[2] for row in rows if len(row) == 3 and _TAGS.fullmatch(row[2])]
    counts = Counter(tag for cell in cells for tag in cell.split(";"))
    several = sum(";" in cell for cell in cells) >= _MIN_TAGGED_SHARE * len(rows)
    return several and 0 < len(counts) <= counts.total() / 2


def _detect_format(files: Files, head: Sequence[Line]) -> Format:
    if files.format != "auto":
        return files.format
    if files.delimiter is not None:
        return "csv"
    assert files.path is not None
    path = files.path.removesuffix(".gz")
    by_extension = next((format_ for end, format_ in EXTENSIONS.items() if path.endswith(end)), None)
    if by_extension is not None:
        return by_extension
    if any(_parse_json_object(line) for line in head[:1]):
        return "jsonl"
    texts = [line.text for line in head if line.text.strip()]
    return "fast_align" if texts and all(BARS in text and "\t" not in text for text in texts) else "tsv"


_SPLIT: dict[Format, Callable[[str], list[str]]] = {
    "tsv": lambda text: text.split("\t"),
    "dictionary": lambda text: text.split(maxsplit=1),
    "fast_align": lambda text: text.split(BARS),
}
"""Split a line into cells, for each format whose records are single lines."""


def parse_records(format_: Format, delimiter: str, lines: Iterable[Line], name: str) -> Iterator[Record]:
    """Parse the records of a table."""
    if format_ == "csv":
        return _parse_csv(lines, delimiter, name)
    split = _SPLIT[format_]
    return (Record(line.number, split(line.text), *line[2:]) for line in lines)


def _parse_csv(lines: Iterable[Line], delimiter: str, name: str) -> Iterator[Record]:
    problems: dict[int, Line] = {}

    def text() -> Iterator[str]:
        for line in lines:
            if line.problem:
                problems[line.number] = line
            yield line.text + "\n"

    reader = csv.reader(text(), delimiter=delimiter, strict=True)
    last = 0
    try:
        for cells in reader:
            bad_line = next(
                (problems[number] for number in range(last + 1, reader.line_num + 1) if number in problems), None
            )
            last = reader.line_num
            joined = [cell.replace("\n", " ") for cell in cells]
            yield Record(last, joined, *(bad_line[2:] if bad_line else ()))
    except csv.Error as error:
        raise DataError(f"{name}:{reader.line_num}: not valid CSV: {error}. Check the quotes.") from None


def _parse_head(format_: Format, delimiter: str, head: Sequence[Line]) -> Iterator[Record]:
    """Parse the records at the start of a file. The last one may be incomplete; the reader reports problems."""
    try:
        yield from parse_records(format_, delimiter, head, "")
    except DataError:
        return


def _detect_delimiter(head: Sequence[Line]) -> str:
    """Return a comma, unless exactly one other delimiter splits all records into the same number of columns.

    A delimiter that is always followed by a space is treated as punctuation if another one splits the records too.
    """
    candidates: list[str] = []
    punctuation: list[str] = []
    for delimiter in _DELIMITERS:
        records = [record for record in _parse_head("csv", delimiter, head) if not record.problem and any(record.cells)]
        sizes = {len(record.cells) for record in records}
        if len(sizes) == 1 and max(sizes) > 1:
            spaced = all(cell.startswith(" ") for record in records for cell in record.cells[1:])
            (punctuation if spaced else candidates).append(delimiter)
    delimiters = candidates or punctuation
    return delimiters[0] if len(delimiters) == 1 or "," in delimiters else ","


def _default_columns(header: Sequence[str]) -> Columns:
    """Return `source` and `target` if both exist; else the first two columns that do not number the lines."""
    lowered = [name.strip().casefold() for name in header]
    if "source" in lowered and "target" in lowered:
        return (lowered.index("source") + 1,), (lowered.index("target") + 1,)
    numbers = [number for number, name in enumerate(header, start=1) if not is_counter(name)]
    left, right = numbers[:2] if len(numbers) > 1 else (1, 2)
    return (left,), (right,)


def _describe_choice(name: str, first: Sequence[str], columns: Columns, header: bool) -> str:
    left, right = (side[0] for side in columns)
    used = f"'{first[int(left) - 1]}' and '{first[int(right) - 1]}'" if header else "the first two"
    return (
        f"{name} has {len(first)} columns; {used} are used. To use others, set --columns (columns in a config), for "
        "example to 1 3, or to 1+3 2 if the third contains tags of the first."
    )


def _column_indices(name: str, columns: Columns, header: Sequence[str]) -> Columns:
    """Return the indices of columns, from 0."""
    missing = [field for side in columns for field in side if isinstance(field, str) and _find(field, header) is None]
    if missing:
        suggestion = did_you_mean(missing[0], header)
        raise DataError(
            f"{name}:1: there is no column {', '.join(missing)}.{suggestion} Line 1 has: {', '.join(header)}. Use "
            "these names, or numbers from 1, for example --columns 1 2."
        )
    left, right = (
        tuple(field - 1 if isinstance(field, int) else int(_find(field, header) or 0) for field in side)
        for side in columns
    )
    return left, right


def _check_unique(name: str, fields: Columns | None, indices: Columns, header: Sequence[str]) -> None:
    """Raise DataError if a column that was not chosen by its number has the same name as another."""
    by_number = {field - 1 for side in fields or () for field in side if isinstance(field, int)}
    for index in {int(index) for side in indices for index in side} - by_number:
        numbers = [str(number) for number, column in enumerate(header, start=1) if column == header[index]]
        if len(numbers) > 1:
            raise DataError(
                f"{name}:1: the columns {', '.join(numbers)} have the same name, '{header[index]}'. Choose columns by "
                "their numbers, for example --columns 1 2."
            )


def _find(name: str, header: Sequence[str]) -> int | None:
    """Return the index of a column with this exact name, else of one that differs in case or spaces at its ends."""
    lowered = [column.strip().casefold() for column in header]
    if name in header:
        return list(header).index(name)
    return lowered.index(name.strip().casefold()) if name.strip().casefold() in lowered else None


def _column_names(header: Sequence[str], columns: Columns) -> tuple[str, str] | None:
    """Return the names of two columns if --columns accepts both as names."""
    left, right = (header[int(side[0])].strip() if int(side[0]) < len(header) else "" for side in columns)
    usable = all(name and not name.isdecimal() and "+" not in name for name in (left, right))
    return (left, right) if usable else None


def _detect_keys(name: str, columns: Columns | None, head: Sequence[Line]) -> Layout:
    if columns is not None:
        numbers = [str(field) for side in columns for field in side if isinstance(field, int)]
        if numbers:
            raise DataError(
                f"{name}: JSON records have keys, not column numbers ({', '.join(numbers)}). Give two keys with "
                "--columns, for example --columns translation.en translation.de."
            )
        return Layout("jsonl", "", False, columns)
    for line in head:
        keys = obvious_keys(_parse_json_object(line) or {})
        if keys is not None:
            notices = (f"{name}: '{keys[0]}' is used as the source and '{keys[1]}' as the target. Choose others with "
                       "--columns.",)  # fmt: skip
            standard = keys == ("source", "target")
            return Layout("jsonl", "", False, ((keys[0],), (keys[1],)), keys, () if standard else notices)
    return Layout("jsonl", "", False, DEFAULT_KEYS)


def obvious_keys(record: dict[str, Any]) -> tuple[str, str] | None:
    """Return `source` and `target` if both exist; else the keys of the only object with two texts, or of the only two
    texts.
    """
    keys = text_keys(record)
    if "source" in keys and "target" in keys:
        return "source", "target"
    groups = [key for key, value in record.items() if isinstance(value, dict) and len(text_keys(value)) == 2]
    if len(groups) == 1:
        left, right = text_keys(record[groups[0]])
        return f"{groups[0]}.{left}", f"{groups[0]}.{right}"
    keys = [key for key in keys if not is_counter(key.rpartition(".")[2])]
    return (keys[0], keys[1]) if len(keys) == 2 else None


def _parse_json_object(line: Line) -> dict[str, Any] | None:
    try:
        record = None if line.problem or not line.text.lstrip().startswith("{") else parse_json(line.text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def text_keys(record: dict[str, Any], levels: int = 8) -> list[str]:
    """Return the keys that contain text; those of nested objects, up to some levels, as `translation.en`."""
    if not levels:
        return []
    nested = (
        [f"{key}.{inner}" for inner in text_keys(value, levels - 1)]
        if isinstance(value, dict)
        else [key] * isinstance(value, str)
        for key, value in record.items()
    )
    return list(chain.from_iterable(nested))


def get_text(record: dict[str, Any], key: str) -> str | None:
    """Return the text under a key, which may be nested (`translation.en`); None if there is none."""
    if isinstance(record.get(key), str):
        return str(record[key])
    outer, _, inner = key.partition(".")
    while inner:
        value = record.get(outer)
        if isinstance(value, dict) and (text := get_text(value, inner)) is not None:
            return text
        following, _, inner = inner.partition(".")
        outer = f"{outer}.{following}"
    return None


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


class RowBlock(NamedTuple):
    """The pairs of consecutive lines without problems, and where the first line is."""

    name: str
    number: int
    sources: list[str]
    targets: list[str]

    @property
    def has_empty_sides(self) -> bool:
        return any(not all(texts) or any(map(str.isspace, texts)) for texts in (self.sources, self.targets))

    def rows(self) -> Iterator[Row]:
        pairs = zip(self.sources, self.targets, strict=True)
        return (Row(f"{self.name}:{number}", *pair) for number, pair in enumerate(pairs, self.number))


def read_rows(files: Files) -> Iterator[Row]:
    """Read the rows of one file or two. With several languages, the language is added to each source as a tag."""
    for block in read_blocks(files):
        yield from (block,) if isinstance(block, Row) else block.rows()


def read_blocks(files: Files) -> Iterator[RowBlock | Row]:
    """As `read_rows`, but rows without problems are in blocks, which is faster."""
    for language, language_files in files.by_language.items():
        blocks = _read_blocks(language_files)
        yield from (_add_tags(block, language) for block in blocks) if language else blocks


def _add_tags(block: RowBlock | Row, tag: str) -> RowBlock | Row:
    if isinstance(block, Row):
        return block._replace(source=_add_tag(block.source, tag))
    return block._replace(sources=[_add_tag(source, tag) for source in block.sources])


def _add_tag(source: str, tag: str) -> str:
    if not source.strip():
        return source
    return f"{source};{tag}" if "\t" in source else f"{source}\t{tag}"


def _read_blocks(files: Files) -> Iterator[RowBlock | Row]:
    if files.path is None:
        yield from _parallel(str(files.source), str(files.target))
        return
    name = display_name(files.path)
    texts = read_texts(files.path)
    head = list(islice(texts, HEAD))
    layout = detect_layout(files, list(_number(head)))
    layout.log_notices(name)
    all_texts = chain(head, texts)
    if layout.format == "jsonl":
        yield from _json_rows(_number(all_texts), layout, name)
    elif layout.format == "csv":
        records = parse_records(layout.format, layout.delimiter, _number(all_texts), name)
        yield from _table_rows(islice(records, int(layout.header), None), layout, name)
    else:
        yield from _table_blocks(islice(all_texts, int(layout.header), None), layout, name)


def _number(texts: Iterable[str | Line], first: int = 1) -> Iterator[Line]:
    return (Line(number, text) if isinstance(text, str) else text for number, text in enumerate(texts, first))


def _are_texts(block: list[str | Line]) -> TypeGuard[list[str]]:
    """Whether no line has a problem."""
    return set(map(type, block)) <= {str}


def _table_blocks(texts: Iterator[str | Line], layout: Layout, name: str) -> Iterator[RowBlock | Row]:
    """Parse a table whose records are single lines. Lines with the same number of columns are split together."""
    needed, number = _needed_columns(layout), 1 + int(layout.header)
    while block := list(islice(texts, _BLOCK)):
        columns = _split_columns(layout.format, block) if _are_texts(block) else []
        if len(columns) >= needed:
            source, target = (_join_columns([columns[int(index)] for index in side]) for side in layout.columns)
            yield RowBlock(name, number, source, target)
        else:
            yield from _table_rows(parse_records(layout.format, "", _number(block, number), name), layout, name)
        number += len(block)


def _split_columns(format_: Format, lines: list[str]) -> list[list[str]]:
    """Return the columns of lines; none if the lines have different numbers of columns."""
    if format_ == "tsv":
        sizes = set(map(str.count, lines, repeat(TAB)))
        cells = TAB.join(lines).split(TAB) if len(sizes) == 1 else []
        return [cells[start :: 1 + max(sizes)] for start in range(1 + max(sizes))] if cells else []
    records = list(map(_SPLIT[format_], lines))
    return [list(column) for column in zip(*records, strict=True)] if len(set(map(len, records))) == 1 else []


def _join_columns(columns: list[list[str]]) -> list[str]:
    return columns[0] if len(columns) == 1 else list(map(TAB.join, zip(*columns, strict=True)))


def _table_rows(records: Iterable[Record], layout: Layout, name: str) -> Iterator[Row]:
    left, right = map(_cell_getter, layout.columns)
    needed = _needed_columns(layout)
    for record in records:
        location = f"{name}:{record.number}"
        if record.problem or len(record.cells) < needed:
            yield _row_without_pair(location, record, layout, needed)
        else:
            yield Row(location, left(record.cells), right(record.cells))


def _cell_getter(columns: Sequence[int | str]) -> Callable[[list[str]], str]:
    """Return a function that joins the cells of some columns."""
    indices = [int(column) for column in columns]
    return itemgetter(*indices) if len(indices) == 1 else lambda cells: TAB.join([cells[index] for index in indices])


def _needed_columns(layout: Layout) -> int:
    return 1 + max(int(column) for side in layout.columns for column in side)


def read_layout(files: Files) -> Layout | None:
    """Detect the layout of a file of pairs. Return None for several files, or if the file is not a regular file."""
    if files.path is None or "" not in files.by_language or not (is_url(files.path) or os.path.isfile(files.path)):
        return None
    with contextlib.closing(read_lines(files.path)) as lines:
        return detect_layout(files, list(islice(lines, HEAD)))


def _parallel(source: str, target: str) -> Iterator[RowBlock | Row]:
    source_texts, target_texts = read_texts(source), read_texts(target)
    number = 1
    while True:
        left, right = list(islice(source_texts, _BLOCK)), list(islice(target_texts, _BLOCK))
        common = min(len(left), len(right))
        sources, targets = left[:common], right[:common]
        if _are_texts(sources) and _are_texts(targets):
            yield RowBlock(display_name(source), number, sources, targets)
        else:
            lines = _number(sources, number), _number(targets, number)
            yield from map(partial(_parallel_row, source, target), *lines)
        number += common
        if len(left) != len(right):
            counts = [number - 1 + len(texts) - common for texts in (left, right)]
            longer = source_texts if len(left) > len(right) else target_texts
            counts[0 if longer is source_texts else 1] += sum(1 for _ in longer)
            raise DataError(
                f"{display_name(source)} has {quantity(counts[0], 'line')} and {display_name(target)} has "
                f"{counts[1]:,}. Line n of one must belong to line n of the other: find the first lines that do not "
                "match, or create both again."
            )
        if not common:
            return


def _parallel_row(source: str, target: str, left: Line, right: Line) -> Row:
    path = target if right.problem and not left.problem else source
    problem, remedy = left[2:] if left.problem else right[2:]
    return Row(f"{display_name(path)}:{left.number}", left.text, right.text, problem, remedy)


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


def resolve_data(data: DataSettings) -> DataSettings:
    """Return the data settings as a run stores them. Detected settings are logged."""
    return resolve_files(data) if isinstance(data, FilesData) else data.absolute()


def resolve_files(data: FilesData) -> FilesData:
    data = data.absolute()
    check_present(data)
    for name in SPLITS[:2]:
        reject_pipes(files.paths if (files := data.files(name)) else ())
    resolved: dict[str, Files] = {}
    for name in SPLITS:
        split_files: Files | None = getattr(data, name)
        if split_files is not None:
            resolved[name] = _resolve_layout(split_files, data, resolved.get("train"))
    return data.model_copy(update=resolved)


def reject_pipes(paths: Iterable[str]) -> None:
    pipe = next(filter(is_stream, paths), None)
    if pipe is not None:
        raise DataError(
            f"{display_name(pipe)} is a pipe or a device, but training pairs are read several times. Write them to a "
            "file first."
        )


def check_present(data: FilesData) -> None:
    """Raise an error if a training file is missing."""
    train = data.files("train")
    assert train is not None
    for files in train.by_language.values():
        for key, path in files.names.items():
            if not (is_url(path) or Path(path).exists() or is_stream(path)):
                setting = "data.folder=FOLDER" if data.folder else f"data.train.{key}=FILE"
                raise DataError(
                    f"There is no file {display_name(path)}. Check the path, or set another one: {setting}."
                )


def _resolve_layout(files: Files, data: FilesData, train: Files | None) -> Files:
    """Return a file with its layout. If its columns are not set, it gets those of the training file if it has the same
    names.
    """
    if train is not None and train.columns is not None and files.columns is None:
        with_columns = files.model_copy(update={"columns": train.columns})
        if _has_named_columns(with_columns.within(data.folder, data.language)):
            files = with_columns
    layout = read_layout(files.within(data.folder, data.language))
    if layout is None:
        return files
    layout.log_notices(display_name(str(files.path)))
    detected: dict[str, Any] = {"format": layout.format}
    if layout.header:
        detected["header"] = True
    if layout.names:
        detected["columns"] = layout.names
    return files.model_copy(update=detected)


def _has_named_columns(files: Files) -> bool:
    """Whether the columns are set by name, and the file has columns with these names."""
    if any(isinstance(field, int) for side in files.fields or () for field in side):
        return False
    try:
        return read_layout(files) is not None and next(iter(read_rows(files))).problem is None
    except (DataError, StopIteration):
        return False
