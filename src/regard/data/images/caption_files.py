"""Caption files: tables, the token file of Flickr8k, the JSON of COCO, and the JSON of Karpathy's splits."""

import gzip
import logging
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from regard.data.lines import open_file, read_lines
from regard.data.pair_files import read_rows
from regard.data.settings import Files, SplitName
from regard.errors import DataError
from regard.formatting import parse_json, quantity, short_path

log = logging.getLogger(__name__)

_SPLITS: dict[str, SplitName] = {
    "train": "train", "restval": "train", "val": "dev", "dev": "dev", "validation": "dev", "test": "test",
}  # fmt: skip
"""The names of splits in JSON files. `restval` is the part of COCO's validation images that Karpathy trains on."""

_FLICKR_LINE = re.compile(r"(?P<image>.+?)#\d+\s+(?P<text>.*)")
"""`1000.jpg#0<TAB>caption`, a line of the token file of Flickr8k. In one of its lines, spaces replace the tab."""


class Caption(NamedTuple):
    """A caption and the name of its image; its split if the file sets one."""

    image: str
    text: str
    split: SplitName | None = None


def read_captions(files: Files) -> list[Caption]:
    """Read a caption file. Its format is detected. Empty captions are skipped with a warning."""
    path = str(files.path)
    document = _parse_document(path)
    captions = list(_read_table(files) if document is None else _parse_captions(document, path))
    empty = sum(not caption.text for caption in captions)
    if empty:
        log.warning("%s: skipped %s without text.", short_path(path), quantity(empty, "caption"))
    if empty == len(captions):
        raise DataError(f"{short_path(path)} contains no captions. Check the file.")
    return [caption for caption in captions if caption.text]


def is_list_of_names(files: Files) -> bool:
    """Whether a file contains only names of images, one per line."""
    if _parse_document(str(files.path)) is not None:
        return False
    first = next((line.text for line in read_lines(str(files.path)) if line.text.strip()), "")
    return "\t" not in first and not first.lstrip().startswith("{") and not _is_csv(files)


def read_names(path: str) -> list[str]:
    """Read a list of images, one name per line."""
    names = [line.text.strip() for line in read_lines(path) if line.text.strip()]
    if not names:
        raise DataError(f"{short_path(path)} contains no names of images. Check the file.")
    return names


def _is_csv(files: Files) -> bool:
    """Whether a file is CSV by its settings, its name, or a first line such as `image,caption`."""
    if files.format != "auto" or files.delimiter is not None:
        return files.format == "csv"
    if str(files.path).endswith((".csv", ".csv.gz")):
        return True
    first = next((line.text for line in read_lines(str(files.path))), "")
    return first.strip().lower() in {"image,caption", "file,caption", "image_name,caption", "file,text", "image,text"}


def _read_table(files: Files) -> Iterator[Caption]:
    """Read lines `image<TAB>caption` or `image#0<TAB>caption`, CSV, or JSON lines."""
    first = next((line.text for line in read_lines(str(files.path))), "")
    if files.format == "auto" and _FLICKR_LINE.fullmatch(first):
        yield from _read_flickr(str(files.path))
        return
    if files.format == "auto" and _is_csv(files):
        files = files.model_copy(update={"format": "csv"})
    for row in read_rows(files):
        if row.problem:
            raise DataError(f"{row.location}: {row.problem}. {row.remedy or _LINE_REMEDY}")
        yield Caption(row.source.strip(), _clean(row.target))


_LINE_REMEDY = "A line must contain the name of an image, a tab and a caption."


def _read_flickr(path: str) -> Iterator[Caption]:
    for line in read_lines(path):
        match = _FLICKR_LINE.fullmatch(line.text)
        if line.text.strip() and match is None:
            problem = line.problem or "the line does not start with the name of an image and the number of a caption"
            raise DataError(f"{short_path(path)}:{line.number}: {problem}. {line.remedy or _LINE_REMEDY}")
        if match is not None:
            yield Caption(match["image"].strip(), _clean(match["text"]))


def _parse_document(path: str) -> Any:
    """Return the content of a JSON file; None if it is another kind of file, or JSON lines."""
    with open_file(path) as handle:
        if not handle.peek(1):
            raise DataError(f"{short_path(path)} is empty. Check how it was created.")
        if not path.removesuffix(".gz").endswith(".json"):
            return None
        content = handle.read()
    try:
        document = parse_json(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{short_path(path)} is a damaged gzip file ({error}). Copy or download it again.") from None
    except ValueError as error:
        if b"\n{" in content:  # JSON lines
            return None
        raise DataError(f"{short_path(path)} is not valid JSON: {error}. Create or download it again.") from None
    return document if isinstance(document, dict) and "images" in document else None


def _parse_captions(document: Mapping[str, Any], path: str) -> Iterator[Caption]:
    try:
        yield from _parse_coco(document) if "annotations" in document else _parse_karpathy(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{short_path(path)} is neither COCO captions (images, annotations) nor Karpathy's splits (images with "
            f"sentences): {type(error).__name__} {error}. Convert it to lines of an image, a tab and a caption."
        ) from None


def _parse_coco(document: Mapping[str, Any]) -> Iterator[Caption]:
    names = {image["id"]: str(image["file_name"]) for image in document["images"]}
    for annotation in document["annotations"]:
        number = annotation["image_id"]
        yield Caption(names.get(number, f"(image_id {number})"), _clean(annotation["caption"]))


def _parse_karpathy(document: Mapping[str, Any]) -> Iterator[Caption]:
    for image in document["images"]:
        name = os.path.join(image.get("filepath", ""), image["filename"])
        for sentence in image["sentences"]:
            yield Caption(name, _clean(sentence["raw"]), _SPLITS.get(image.get("split", "")))


def _clean(text: str) -> str:
    """Remove line breaks and repeated spaces, which some captions of COCO contain."""
    return " ".join(text.split())
