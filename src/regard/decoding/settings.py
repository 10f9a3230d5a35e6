"""Settings of decoding."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, TypedDict

from pydantic import Field, model_validator

from regard.config import MAY_CHANGE_ON_RESUME, Settings
from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import did_you_mean
from regard.quantities import (
    BeamSize,
    Factor,
    FractionBelowOne,
    OptionalCount,
    OptionalLength,
    PositiveFraction,
    Ratio,
    SampleCount,
    Seed,
    Temperature,
    Weight,
)

EngineName = Literal["auto", "torch", "ct2", "onnx"]
"""What computes predictions: torch, CTranslate2, ONNX Runtime, or the fastest with the same output as torch."""

Precision = Literal["float32", "int8"]


class SearchFields(Settings):
    """The settings of a search, each with its range. The command line, Python and the explorer accept these."""

    beam: BeamSize = Field(
        1, description="beam size; 1 is greedy search. By default the smallest size that fits nbest and groups"
    )
    nbest: BeamSize = Field(1, description="predictions for each source, best first")
    length_penalty: Weight = Field(
        0.6, description="α: beam search ranks hypotheses by log p / ((5 + length) / 6)^α; 0 ranks them by log p"
    )
    coverage_penalty: Weight = Field(
        0.0, description="β: penalty for source tokens that receive little attention, applied to finished hypotheses"
    )
    groups: BeamSize = Field(1, description="groups of diverse beam search; they split the beam equally")
    diversity_penalty: Weight = Field(
        0.5, description="penalty on a token for each hypothesis of an earlier group that has it at the same step"
    )
    sample: bool = Field(False, description="sample each token instead of choosing the most likely one")
    temperature: Temperature = Field(
        1.0, description="sampling temperature: below 1 more conservative, above 1 more diverse"
    )
    top_k: OptionalCount = Field(0, description="sample from the k most likely tokens; 0 is off")
    top_p: PositiveFraction = Field(
        1.0, description="sample from the most likely tokens whose probabilities add up to p; 1 is off"
    )
    min_p: FractionBelowOne = Field(
        0.0,
        description="sample from tokens at least min_p times as likely as the most likely one; 0 is off",
    )
    mbr_samples: SampleCount = Field(
        0,
        description="minimum Bayes risk: sample N predictions, choose the most similar to the others (chrF); 0 is off",
    )
    no_repeat_ngram: OptionalLength = Field(0, description="do not generate an n-gram of this size twice; 0 is off")
    repetition_penalty: Factor = Field(
        1.0, description="multiplies the log-probability of tokens already generated; 1 is off"
    )
    loop_guard: bool = Field(
        True,
        description="greedy search: if a prediction repeats a few tokens in a loop, keep only the first cycle",
    )
    min_length: OptionalLength = Field(0, description="minimum number of tokens in a prediction")
    seed: Seed = Field(0, description="random seed; a sample depends on it and on the index of its text")


class SearchSettings(SearchFields):
    """Search strategy: greedy search, beam search, sampling or minimum Bayes risk."""

    @property
    def has_one_hypothesis(self) -> bool:
        """Whether the search follows a single hypothesis of each source."""
        return self.beam == self.nbest == 1 and not self.mbr_samples

    @property
    def is_greedy(self) -> bool:
        """Whether the search chooses the most likely token at each step."""
        return self.beam == 1 and not self.sample and not self.mbr_samples

    @property
    def is_random(self) -> bool:
        """Whether predictions are sampled. They then depend on the index of the source."""
        return self.sample or self.mbr_samples > 0

    @property
    def uses_beam(self) -> bool:
        """Whether the search keeps a beam of hypotheses; otherwise it is greedy, or samples."""
        return self.beam > 1 and not self.sample and not self.mbr_samples

    @property
    def group_size(self) -> int:
        """The beam size of each group."""
        return self.beam // self.groups

    @model_validator(mode="before")
    @classmethod
    def _set_default_beam(cls, values: Any) -> Any:
        """By default, the beam is the smallest multiple of `groups` that holds `nbest` hypotheses."""
        if not isinstance(values, dict) or values.get("sample") or values.get("mbr_samples"):
            return values
        nbest, groups = values.get("nbest", 1), values.get("groups", 1)
        if not (isinstance(nbest, int) and isinstance(groups, int) and groups > 0):
            return values  # rejected by the types of the fields
        return {"beam": -(-nbest // groups) * groups, **values}

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.beam % self.groups:
            raise ValueError(
                f"groups: the beam size {self.beam} is not divisible by {self.groups} groups. Change one of them."
            )
        if self.sample and self.beam > 1:
            raise ValueError(
                "sample: sampling and beam search cannot be combined. Remove beam; for several samples, set nbest."
            )
        if not self.sample and not self.mbr_samples and self.nbest > self.beam:
            raise ValueError(f"nbest: a beam of {self.beam} cannot return {self.nbest} predictions. Use a wider beam.")
        return self


class SearchOptions(TypedDict, total=False):
    """The settings of the search as keyword arguments; see `SearchSettings`."""

    beam: int
    nbest: int
    length_penalty: float
    coverage_penalty: float
    groups: int
    diversity_penalty: float
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    mbr_samples: int
    no_repeat_ngram: int
    repetition_penalty: float
    loop_guard: bool
    min_length: int
    seed: int


class PredictionOptions(SearchOptions, total=False):
    """The settings of the search and the constraints on predictions, as keyword arguments.

    For a list of sources, `prefix` and `must_contain` have one item for each source.
    """

    prefix: str | Sequence[str]
    must_contain: str | Sequence[str] | Sequence[str | Sequence[str]]
    banned: str | Sequence[str]


class DecodingSettings(Settings):
    """Length limit: a prediction has at most `max_length_ratio` · (source length) + `max_length_extra` tokens."""

    max_length_ratio: Ratio = Field(
        2.0, json_schema_extra=MAY_CHANGE_ON_RESUME, description="target tokens allowed for each source token"
    )
    max_length_extra: OptionalLength = Field(
        20, json_schema_extra=MAY_CHANGE_ON_RESUME, description="target tokens allowed in addition"
    )


CONSTRAINTS = ("prefix", "must_contain", "banned")
"""The constraints among the options of a prediction."""


def check_search(options: Mapping[str, Any], constraints: Sequence[str] = ()) -> None:
    """Raise an error for an unknown option, with the nearest name, or for a value of the wrong type.

    Args:
        options: Settings of the search, and constraints, as a user passes them.
        constraints: The names of the accepted constraints.
    """
    fields = SearchSettings.model_fields
    names = (*fields, *constraints)
    for name, value in options.items():
        if name not in names:
            raise ConfigError(
                f"There is no search setting '{name}'.{did_you_mean(name, names)} Available: {', '.join(names)}."
            )
        if name in fields:
            accepted, noun = _TYPES[fields[name].annotation]
            if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
                raise ArgumentTypeError(f"{name} must be {noun}, not {value!r}.")


_TYPES: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "True or False"),
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
}
"""For each annotation, the accepted types and their name in messages. A bool is not a number."""
