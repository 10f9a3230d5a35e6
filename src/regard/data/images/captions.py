"""Corpora of images with captions: read caption files, match captions to images, split them, and check the images.

An image may have several captions, each of which is a pair. Images are in a folder or a zip file. Captions are in
tables, in the token file of Flickr8k, in the JSON of COCO, or in the JSON of Karpathy's splits.
"""

import gzip
import json
import logging
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.cache import cache_key, get_or_build
from regard.data.held_out import HeldOutShares
from regard.data.images.files import ImageFolder, hash_file, label_from_name
from regard.data.images.pixels import import_pillow, load_image
from regard.data.images.settings import BadImages, CaptionsData
from regard.data.lines import open_file, read_lines
from regard.data.pair_files import read_rows
from regard.data.settings import SPLITS, Files, SplitName
from regard.errors import DataError
from regard.formatting import parse_json, quantity, short_path
from regard.regular_files import read_regular

log = logging.getLogger(__name__)

_SPLITS: dict[str, SplitName] = {
    "train": "train", "restval": "train", "val": "dev", "dev": "dev", "validation": "dev", "test": "test",
}  # fmt: skip
"""The names of splits in JSON files. `restval` is the part of COCO's validation images that Karpathy trains on."""

_FLICKR_LINE = re.compile(r"(?P<image>.+?)#\d+\s+(?P<text>.*)")
"""`1000.jpg#0<TAB>caption`, a line of the token file of Flickr8k. In one of its lines, spaces replace the tab."""


MAX_MISSING_SHARE = 0.1
"""The maximum share of captions whose image is missing. Below it, they are reported and ignored."""

_MAX_NAMES, _MAX_PROBLEMS = 3, 20
"""The maximum number of missing images that a message names, and of images that cannot be read with their problems."""

_REDUCED_SIZE = 64
"""Images are checked at a reduced size, at which JPEG files are decoded faster."""


class Caption(NamedTuple):
    """A caption and the name of its image; its split if the file sets one."""

    image: str
    text: str
    split: SplitName | None = None


class ImageCaption(NamedTuple):
    """The path of an image and one of its captions; its split if it is known."""

    path: str
    text: str
    split: SplitName | None = None


Splits = dict[SplitName, list[tuple[str, str]]]


def load_splits(settings: CaptionsData) -> Splits:
    """Load the pairs (path of an image, caption) of each split. Images that cannot be read are reported."""
    folder = ImageFolder.open(settings.image_path)
    matched = _match(_read(settings, folder), folder, str(settings.captions or "the names of the images"))
    lists, own_captions = _read_split_files(settings, folder)
    splits = _split(matched, settings, lists, folder)
    for split, captions in own_captions.items():
        splits[split] = [(caption.path, caption.text) for caption in _group_by_image(captions)]
    unused = len(set(folder.images) - {caption.path for caption in matched})
    if unused:
        log.warning(
            "%s: not used, because they have no caption: %s.", short_path(folder.path), quantity(unused, "image")
        )
    return _without_bad_images(splits, settings.bad_images)


def read_pairs(settings: CaptionsData) -> list[tuple[str, str]]:
    """Read all pairs of a corpus, whatever their split."""
    folder = ImageFolder.open(settings.image_path)
    matched = _group_by_image(_match(_read(settings, folder), folder, str(settings.captions)))
    pairs: Splits = {"test": [(caption.path, caption.text) for caption in matched]}
    return _without_bad_images(pairs, settings.bad_images)["test"]


def list_files(settings: CaptionsData) -> tuple[str, ...]:
    """Return the files that a corpus consists of, besides the images."""
    return tuple(str(files.path) for name in ("captions", *SPLITS) if (files := settings.files(name)) is not None)


def _read(settings: CaptionsData, folder: ImageFolder) -> list[Caption]:
    files, train = settings.files("captions"), settings.files("train")
    if files is not None:
        return read_captions(files)
    if train is not None and not is_list_of_names(train):
        return []  # every split has its own caption file
    return [Caption(folder.relative(path), label_from_name(path)) for path in folder.images]


def _match(captions: Sequence[Caption], folder: ImageFolder, name: str) -> list[ImageCaption]:
    """Find the image of each caption. Raise an error if too many have none."""
    found = [(caption, folder.find(caption.image)) for caption in captions]
    matched = [ImageCaption(path, caption.text, caption.split) for caption, path in found if path is not None]
    missing = list(dict.fromkeys(caption.image for caption, path in found if path is None))
    if not missing:
        return matched
    count = len(captions) - len(matched)
    message = (
        f"{name}: {short_path(folder.path)} has no image for {quantity(count, 'caption')} of {len(captions):,}: "
        f"{_name_some(missing)}"
    )
    if count > MAX_MISSING_SHARE * len(captions):
        raise DataError(
            f"{message}. At most {MAX_MISSING_SHARE:.0%} may be missing. Check the folder of the images, and the names "
            "in the caption file."
        )
    log.warning("%s. They are not used.", message)
    return matched


def _name_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _read_split_files(
    settings: CaptionsData, folder: ImageFolder
) -> tuple[dict[str, SplitName], dict[SplitName, list[ImageCaption]]]:
    """Return the split of each image that a list of names contains, and the captions of splits with a file of their
    own.
    """
    lists: dict[str, SplitName] = {}
    captions: dict[SplitName, list[ImageCaption]] = {}
    for split in SPLITS:
        files = settings.files(split)
        if files is None:
            continue
        if not is_list_of_names(files):
            captions[split] = _match(read_captions(files), folder, str(files))
            continue
        names = read_names(str(files.path))
        paths = [folder.find(name) for name in names]
        missing = [name for name, path in zip(names, paths, strict=True) if path is None]
        if len(missing) > MAX_MISSING_SHARE * len(names):
            raise DataError(
                f"{files}: {quantity(len(missing), 'name')} of {len(names):,} are not those of images in "
                f"{short_path(folder.path)}: {_name_some(missing)}. Check the names."
            )
        for path in filter(None, paths):
            if lists.setdefault(path, split) != split:
                raise DataError(f"{files}: {short_path(path)} is also in the {lists[path]} images. Remove it from one.")
    return lists, captions


def _split(
    matched: Sequence[ImageCaption], settings: CaptionsData, lists: Mapping[str, SplitName], folder: ImageFolder
) -> Splits:
    """Assign each image to a split: by the lists, by the caption file, or by a hash of its name."""
    splits: Splits = {name: [] for name in SPLITS}
    known = {caption.split for caption in matched} | {name for name in SPLITS if settings.files(name) is not None}
    shares = HeldOutShares.of(
        len(matched), dev="dev" not in known, test="test" not in known and settings.test_every is None
    )
    tested = set(sorted({caption.path for caption in matched})[:: settings.test_every]) if settings.test_every else ()
    for path, text, split in _group_by_image(matched):
        name = lists.get(path, split)
        if name is None and settings.files("train") is not None:
            continue  # the image is in none of the lists
        if name is None:
            name = "test" if path in tested else shares.split_of(folder.relative(path))
        splits[name].append((path, text))
    return splits


def _group_by_image(captions: Sequence[ImageCaption]) -> list[ImageCaption]:
    """Return the captions of each image one after the other, so that the first pairs of a split are those of some of
    its images.
    """
    groups: dict[str, list[ImageCaption]] = {}
    for caption in captions:
        groups.setdefault(caption.path, []).append(caption)
    return [caption for group in groups.values() for caption in group]


def _without_bad_images(splits: Splits, policy: BadImages) -> Splits:
    """Remove the pairs of images that cannot be read, or raise an error."""
    bad = find_bad_images(sorted({path for pairs in splits.values() for path, _ in pairs}))
    if not bad:
        return splits
    problems = list(bad.values())
    if policy == "error":
        more = f" {quantity(len(bad) - 1, 'other image')} cannot be read either." if len(bad) > 1 else ""
        raise DataError(f"{problems[0]}{more} data.bad_images=skip ignores such images.")
    more = f" … and {len(bad) - _MAX_PROBLEMS:,} more." if len(bad) > _MAX_PROBLEMS else ""
    log.warning(
        "Skipped %s that cannot be read: %s%s", quantity(len(bad), "image"), " ".join(problems[:_MAX_PROBLEMS]), more
    )
    return {name: [pair for pair in pairs if pair[0] not in bad] for name, pairs in splits.items()}


def find_bad_images(paths: Sequence[str]) -> dict[str, str]:
    """Return what is wrong with each image that cannot be read. The result for unchanged files is cached."""

    def check(folder: Path) -> None:
        bad = [path for path in paths if _find_problem(path) is not None]
        (folder / "bad.json").write_text(json.dumps(bad, allow_nan=False), "utf-8")

    import_pillow()
    folder = get_or_build("images", cache_key([[path, _hash(path)] for path in paths]), check)
    bad = json.loads(read_regular(folder / "bad.json"))
    return {path: problem for path in bad if (problem := _find_problem(path)) is not None}


def _hash(path: str) -> str:
    try:
        return hash_file(path)
    except DataError as error:
        return str(error)


def _find_problem(path: str) -> str | None:
    try:
        load_image(path, at_least=_REDUCED_SIZE)
    except DataError as error:
        return str(error)
    return None


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
