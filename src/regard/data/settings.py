"""What may be set in the data: where the pairs come from, and how text becomes tokens."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

from regard.config import BY_NAME, HARMLESS, Settings


class Files(Settings):
    """One file of pairs (`path`, or just the path itself), or two parallel files (`source` and `target`)."""

    path: str | None = None
    source: str | None = None
    target: str | None = None
    format: Literal["auto", "tsv", "csv", "jsonl"] = Field("auto", description="by default told by the name")
    columns: tuple[str, str] | tuple[PositiveInt, PositiveInt] | None = Field(
        None, description="names, or numbers from 1, of the source's and the target's column"
    )

    @model_validator(mode="after")
    def _one_or_two(self) -> Self:
        if (self.path is None) == (self.source is None or self.target is None):
            raise ValueError("give either one file of pairs (path), or two parallel files (source and target).")
        return self

    def __str__(self) -> str:
        return self.path or f"{self.source} and {self.target}"


def _path(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


FilesChoice = Annotated[Files, BeforeValidator(_path)]


class DatesData(Settings):
    """Dates as people write them in dozens of languages → YYYY-MM-DD; built in, a pure function of its seed."""

    kind: Literal["dates"] = "dates"
    train: PositiveInt = 20_000
    dev: PositiveInt = 500
    test: PositiveInt = 1_000
    seed: NonNegativeInt = 0


class FilesData(Settings):
    """Pairs from files. Without dev files, one source sentence in twenty is held back from training."""

    kind: Literal["files"] = "files"
    train: FilesChoice
    dev: FilesChoice | None = None
    test: FilesChoice | None = None
    bad_lines: Literal["error", "skip"] = Field("error", description="what to do with a line that is no pair")


Data = Annotated[DatesData | FilesData, Field(discriminator="kind"), BY_NAME]


class CharTokenizer(Settings):
    """Every character is a token."""

    kind: Literal["char"] = "char"
    shared: bool = Field(True, description="one vocabulary for source and target")
    max_length: PositiveInt = Field(1_000, json_schema_extra=HARMLESS, description="longer sources are cut")


TokenizerChoice = Annotated[CharTokenizer, BY_NAME]
