"""Pinning: what is detected about the files of a run is written into its settings, instead of being detected again.

A pinned file has an absolute path, a format, and, if the file has names of columns, the names of its own. So it is
always read in the same way, from any folder.
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard.data.files import Files
from regard.data.lines import display_name, is_stream
from regard.data.readers import read_layout, read_rows
from regard.data.settings import SPLITS, Data, FilesData
from regard.errors import DataError

log = logging.getLogger(__name__)


def pin_data(data: Data) -> Data:
    """The data as a run stores it. Detected settings are reported."""
    return pin_files(data) if isinstance(data, FilesData) else data.absolute()


def pin_files(data: FilesData) -> FilesData:
    data = data.absolute()
    check_present(data)
    for name in SPLITS[:2]:
        reject_pipes(files.paths if (files := data.files(name)) else ())
    pinned: dict[str, Files] = {}
    for name in SPLITS:
        given: Files | None = getattr(data, name)
        if given is not None:
            pinned[name] = _pin(given, data, pinned.get("train"))
    return data.model_copy(update=pinned)


def reject_pipes(paths: Iterable[str]) -> None:
    pipe = next(filter(is_stream, paths), None)
    if pipe is not None:
        raise DataError(
            f"{display_name(pipe)} is a pipe or a device, and training pairs are read several times. Write them to a file "
            "first."
        )


def check_present(data: FilesData) -> None:
    """Raise an error if a training file is missing."""
    learned = data.files("train")
    assert learned is not None
    for files in learned.by_language.values():
        for key, path in files.names.items():
            if not Path(path).exists() and not is_stream(path):
                where = "data.folder=FOLDER" if data.folder else f"data.train.{key}=FILE"
                raise DataError(
                    f"There is no file {display_name(path)}. Check the path, or give the right one: {where}."
                )


def _pin(given: Files, data: FilesData, train: Files | None) -> Files:
    """Pin one file. Without columns, it gets those of the training file, if it has columns with the same names."""
    if train is not None and train.columns is not None and given.columns is None:
        alike = given.model_copy(update={"columns": train.columns})
        if _has_its_names(alike.within(data.folder, data.language)):
            given = alike
    layout = read_layout(given.within(data.folder, data.language))
    if layout is None:
        return given
    for notice in layout.notices:
        log.warning("%s", notice)
    found: dict[str, Any] = {"format": layout.format}
    if layout.header:
        found["header"] = True
    if layout.names:
        found["columns"] = layout.names
    return given.model_copy(update=found)


def _has_its_names(files: Files) -> bool:
    """Whether the columns are set by name, and the file has columns with these names."""
    if any(isinstance(field, int) for side in files.fields or () for field in side):
        return False
    try:
        return read_layout(files) is not None and next(iter(read_rows(files))).problem is None
    except (DataError, StopIteration):
        return False
