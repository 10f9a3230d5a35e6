"""Pinning: write what is detected about the files of a run to its settings, so that it is not detected again.

A pinned file has an absolute path, a format, and column names if the file has them. It is read in the same way from any
working directory.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard.data.files import Files
from regard.data.lines import display_name, is_stream
from regard.data.readers import read_layout, read_rows
from regard.data.settings import SPLITS, DataSettings, FilesData
from regard.errors import DataError


def pin_data(data: DataSettings) -> DataSettings:
    """Return the data settings as a run stores them. Detected settings are logged."""
    return pin_files(data) if isinstance(data, FilesData) else data.absolute()


def pin_files(data: FilesData) -> FilesData:
    data = data.absolute()
    check_present(data)
    for name in SPLITS[:2]:
        reject_pipes(files.paths if (files := data.files(name)) else ())
    pinned: dict[str, Files] = {}
    for name in SPLITS:
        split_files: Files | None = getattr(data, name)
        if split_files is not None:
            pinned[name] = _pin(split_files, data, pinned.get("train"))
    return data.model_copy(update=pinned)


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
            if not Path(path).exists() and not is_stream(path):
                setting = "data.folder=FOLDER" if data.folder else f"data.train.{key}=FILE"
                raise DataError(
                    f"There is no file {display_name(path)}. Check the path, or set another one: {setting}."
                )


def _pin(files: Files, data: FilesData, train: Files | None) -> Files:
    """Pin one file. If its columns are not set, it gets those of the training file if it has the same names."""
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
