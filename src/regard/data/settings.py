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

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,) if self.path else (str(self.source), str(self.target))

    def __str__(self) -> str:
        return " and ".join(self.paths)


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


class SequencesData(Settings):
    """Strings of letters to be copied, reversed or sorted; built in, a pure function of its seed."""

    kind: Literal["sequences"] = "sequences"
    task: Literal["copy", "reverse", "sort"] = "reverse"
    letters: int = Field(26, ge=2, le=26, description="how many letters there are")
    shortest: PositiveInt = 5
    longest: PositiveInt = 30
    train: PositiveInt = 20_000
    dev: PositiveInt = 500
    test: PositiveInt = 1_000
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _has_enough_strings(self) -> Self:
        if self.shortest > self.longest:
            raise ValueError(f"shortest: {self.shortest} is more than longest, {self.longest}.")
        lengths = range(self.shortest, min(self.longest, self.shortest + 12) + 1)
        strings = sum(self.letters**length for length in lengths)
        if strings < 4 * (self.train + self.dev + self.test):
            raise ValueError(f"letters: there are only {strings} strings of these lengths. Allow longer ones.")
        return self


class FilesData(Settings):
    """Pairs from files. Without dev files, one source sentence in twenty (of a large corpus, about 2,000 in all) is
    held back from training.
    """

    kind: Literal["files"] = "files"
    train: FilesChoice
    dev: FilesChoice | None = None
    test: FilesChoice | None = None
    bad_lines: Literal["error", "skip"] = Field("error", description="what to do with a line that is no pair")


Data = Annotated[DatesData | SequencesData | FilesData, Field(discriminator="kind"), BY_NAME]


class CharTokenizer(Settings):
    """Every character is a token."""

    kind: Literal["char"] = "char"
    shared: bool = Field(True, description="one vocabulary for source and target")
    max_length: PositiveInt = Field(1_000, json_schema_extra=HARMLESS, description="longer sources are cut")


TokenizerChoice = Annotated[CharTokenizer, BY_NAME]
