"""Files of pairs: where they are, and how their columns are read."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, field_validator, model_validator

from regard.config import MAY_CHANGE_ON_RESUME, Settings
from regard.data.lines import STANDARD_INPUT
from regard.formatting import short_path
from regard.quantities import Column

Columns = tuple[tuple[str | int, ...], tuple[str | int, ...]]


class Files(Settings):
    """One file of pairs (`path`, or just the path itself), or two parallel files (`source` and `target`).

    Files may be moved before a run is resumed: only the hash of their content must stay the same.
    """

    path: str | None = Field(None, json_schema_extra=MAY_CHANGE_ON_RESUME)
    source: str | None = Field(None, json_schema_extra=MAY_CHANGE_ON_RESUME)
    target: str | None = Field(None, json_schema_extra=MAY_CHANGE_ON_RESUME)
    format: Literal["auto", "tsv", "csv", "jsonl", "dictionary", "fast_align"] = Field(
        "auto",
        description="by default inferred from the file; a dictionary line has a word, spaces, a pronunciation; a line "
        "of fast_align has a source, |||, a target",
    )
    columns: tuple[str | Column, str | Column] | None = Field(
        None,
        description="source and target: names, JSON keys such as translation.en, or numbers from 1; 1+3 joins two",
    )
    header: bool | Literal["auto"] = Field(
        "auto", description="whether line 1 names the columns; auto decides by comparing it with the lines below"
    )
    delimiter: str | None = Field(
        None,
        min_length=1,
        max_length=1,
        description="column separator of CSV; by default a comma, or the ; tab or | that splits all lines equally",
    )
    _languages: tuple[str, ...] = PrivateAttr(())
    """The values of {language} in the file names. Each one is added to its sources as a tag."""

    @model_validator(mode="after")
    def _one_or_two(self) -> Self:
        if (self.path is None) == (self.source is None or self.target is None):
            raise ValueError("set either path (one file of pairs), or source and target (two parallel files).")
        return self

    @model_validator(mode="after")
    def _named_columns_need_a_header(self) -> Self:
        names = [str(name) for side in self.fields or () for name in side if isinstance(name, str)]
        if names and self.header is False:
            raise ValueError(f"columns: {', '.join(names)} are names, but header is false. Give numbers from 1.")
        return self

    @field_validator("columns")
    @classmethod
    def _counted_from_1(cls, columns: tuple[str | int, str | int] | None) -> tuple[str | int, str | int] | None:
        for column in columns or ():
            if any(name.isdecimal() and not int(name) for name in str(column).split("+")):
                raise ValueError(f"there is no column 0 ('{column}'): columns are counted from 1.")
        return columns

    @property
    def fields(self) -> Columns | None:
        """The columns of the source and those of the target: names, or numbers from 1."""
        if self.columns is None:
            return None
        left, right = (
            tuple(int(name) if name.isdecimal() else name for name in str(column).split("+")) for column in self.columns
        )
        return left, right

    @property
    def by_language(self) -> "dict[str, Files]":
        """The files of each language. Without languages, the only key is ''."""
        if not self._languages:
            return {"": self}
        return {language: self.within("", language) for language in self._languages}

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for files in self.by_language.values() for path in files.names.values())

    @property
    def names(self) -> dict[str, str]:
        """The paths that are set, by the name of the setting."""
        paths = {name: getattr(self, name) for name in ("path", "source", "target")}
        return {name: path for name, path in paths.items() if path is not None}

    def within(self, folder: str, language: str | tuple[str, ...]) -> "Files":
        """Return a copy with the paths in a folder, for one language or several."""
        paths = {name: str(Path(folder) / path) for name, path in self.names.items()}
        if isinstance(language, str):
            paths = {name: path.replace("{language}", language) for name, path in paths.items()}
        copy = self.model_copy(update=paths)
        copy._languages = () if isinstance(language, str) else language
        return copy

    def absolute(self) -> Self:
        return self.model_copy(
            update={name: os.path.abspath(path) for name, path in self.names.items() if path != STANDARD_INPUT}
        )

    def read_like(self, other: "Files") -> "Files":
        """Return a copy that uses the columns and the header setting of another file, where these are not set.

        A file that is not JSON does not use the keys of a JSON file.
        """
        if self.path is None or other.path is None or (other.format == "jsonl" and not self._is_json):
            return self
        header = True if other.header is True and self.header == "auto" else self.header
        return self.model_copy(update={"columns": self.columns or other.columns, "header": header})

    @property
    def _is_json(self) -> bool:
        path = str(self.path).removesuffix(".gz")
        return self.format == "jsonl" or (self.format == "auto" and path.endswith((".jsonl", ".ndjson", ".json")))

    def __str__(self) -> str:
        return " and ".join(map(short_path, self.names.values()))


def _path(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


FilesChoice = Annotated[Files, BeforeValidator(_path)]
