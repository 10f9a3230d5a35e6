"""What manifest.json and state.json of a checkpoint contain. A file with other types is damaged, whatever its hash."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from regard.quantities import Count, OptionalCount, Threads

_Position = Annotated[float, Field(ge=0, le=1e9)]
_Dimension = Annotated[int, Field(ge=0, le=2**40)]


class _Stored(BaseModel):
    """Values of exactly these types. Keys that another version of regard wrote are allowed."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Manifest(_Stored):
    """The hashes of the files of a checkpoint and of its tokenizers, the shapes of its weights, and the settings."""

    format: int
    files: dict[str, str] = {}
    shapes: dict[str, list[_Dimension]] = {}
    tokenizers: dict[str, str] = {}
    tokenizer_parts: dict[str, dict[str, str]] = {}
    """A hash of each part of each tokenizer. Missing in older checkpoints."""
    settings: dict[str, Any] = {}
    """The settings that predictions depend on. Missing in older checkpoints."""


class _StoredSegment(_Stored):
    step: OptionalCount
    position: _Position
    end: Count
    thinning: Count = 1
    threads: Threads | None = None


class _StoredSchedule(_Stored):
    length: Count
    segments: Annotated[list[_StoredSegment], Field(min_length=1)]


class _StoredBest(_Stored):
    """The best validation: its step, and its values by the label of the metric."""

    __pydantic_extra__: dict[str, float | None] = Field(init=False)

    step: OptionalCount | None = None
    name: str | None = None
    pairs: OptionalCount = 0
    signatures: dict[str, str] = {}


class _StoredLengths(_Stored):
    source: _Position
    target: _Position


class StoredState(_Stored):
    """The state of a run; see `RunProgress`. Keys may be missing: a model of another version can be used."""

    data: dict[str, str] = {}
    schedule: _StoredSchedule | None = None
    step: OptionalCount = 0
    best_step: OptionalCount | None = None
    best: _StoredBest = _StoredBest()
    best_name: str | None = None
    validations_since_best: OptionalCount = 0
    plateau_validations: OptionalCount = 0
    lr_reductions: OptionalCount = 0
    micro_batches: Count = 1
    eager: bool = False
    average_tried: bool = False
    average_lengths: _StoredLengths | None = None
