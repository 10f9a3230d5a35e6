"""The search space of a sweep: overrides with several values, `key=a,b,c`, or with a range, `key=log(1e-4,1e-2)`."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import quote, shorten, to_json
from regard.overrides import parse_override

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from regard.runs.settings import RunSettings

_RANGES = {"uniform": (False, False), "log": (True, False), "int": (False, True), "logint": (True, True)}
"""Whether the values of a range are distributed uniformly in their logarithm, and whether they are integers."""

_MAX_VALIDATED = 300
"""The number of combinations of choices that are validated before the first trial of a search."""

_INNER = (math.sqrt(5) - 1) / 2
"""The relative position of a probe inside a range. It is irrational, so that the probe is not an integer."""

Values = dict[str, Any]
"""The values of the settings that a sweep varies, by dotted key."""


@dataclass(frozen=True)
class Choices:
    """Values to choose from, as they are written on the command line, by their text."""

    values: dict[str, Any]

    def distribution(self) -> "BaseDistribution":
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(tuple(self.values))

    @property
    def probes(self) -> list[Any]:
        """The values to validate."""
        return list(self.values.values())

    def __str__(self) -> str:
        return ",".join(self.values)


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    kind: str
    low: float
    high: float
    step: float | None = None

    @property
    def log(self) -> bool:
        return _RANGES[self.kind][0]

    @property
    def integer(self) -> bool:
        return _RANGES[self.kind][1]

    def distribution(self) -> "BaseDistribution":
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.integer:
            return IntDistribution(int(self.low), int(self.high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def round(self, number: float) -> float:
        """Return a number with four significant digits, unless it is a multiple of a step."""
        if self.integer or self.step is not None:
            return number
        return min(max(float(f"{number:.4g}"), self.low), self.high)

    @property
    def probes(self) -> list[Any]:
        """The values to validate: both ends, and one between them."""
        if self.integer:
            return [int(self.low), int(self.high)]
        return [self.low, self.high, self.low + _INNER * (self.high - self.low)]

    def __str__(self) -> str:
        numbers = [self.low, self.high, *([] if self.step is None else [self.step])]
        return f"{self.kind}({','.join(f'{number:g}' for number in numbers)})"


@dataclass(frozen=True)
class SearchSpace:
    """The settings that a sweep varies, by dotted key."""

    dimensions: dict[str, Choices | Range]

    @property
    def has_ranges(self) -> bool:
        return any(isinstance(dimension, Range) for dimension in self.dimensions.values())

    @property
    def size(self) -> float:
        """The number of combinations; infinite if there are ranges."""
        if self.has_ranges:
            return math.inf
        return math.prod(len(dimension.probes) for dimension in self.dimensions.values())

    def combinations(self) -> Iterator[dict[str, str]]:
        """Yield the parameters of each combination of choices. The last key varies fastest."""
        texts = [list(d.values) for d in self.dimensions.values() if isinstance(d, Choices)]
        for combination in product(*texts):
            yield dict(zip(self.dimensions, combination, strict=True))

    def distributions(self) -> "dict[str, BaseDistribution]":
        return {key: dimension.distribution() for key, dimension in self.dimensions.items()}

    def round(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return parameters with short numbers."""
        return {
            key: dimension.round(parameters[key]) if isinstance(dimension, Range) else parameters[key]
            for key, dimension in self.dimensions.items()
        }

    def values(self, parameters: Mapping[str, Any]) -> Values:
        """Return the values of the settings for parameters of Optuna."""
        return {
            key: dimension.values[parameters[key]] if isinstance(dimension, Choices) else parameters[key]
            for key, dimension in self.dimensions.items()
        }

    def describe(self, parameters: Mapping[str, Any]) -> dict[str, str]:
        """Return each value as text."""
        return {
            key: f"{parameters[key]:.6g}" if isinstance(dimension, Range) else str(parameters[key])
            for key, dimension in self.dimensions.items()
        }

    def to_json(self) -> dict[str, str]:
        return {key: str(dimension) for key, dimension in self.dimensions.items()}

    def validate(self, resolve: Callable[[Values], "RunSettings"]) -> None:
        """Resolve the settings for each choice and for both ends of each range, so that errors are raised early.

        All combinations of a grid are resolved. If a search has very many, the choices of each key are resolved with
        the first choices of the others.
        """
        probes = [dimension.probes for dimension in self.dimensions.values()]
        combinations: Iterable[Sequence[Any]] = product(*probes)
        if self.has_ranges or self.size > _MAX_VALIDATED:
            first = [values[0] for values in probes]
            single = ([*first[:n], value, *first[n + 1 :]] for n, values in enumerate(probes) for value in values)
            combinations = [*single, *islice(combinations, _MAX_VALIDATED)]
        for combination in combinations:
            resolve(dict(zip(self.dimensions, combination, strict=True)))


def parse_words(words: Iterable[str]) -> tuple[SearchSpace, Values]:
    """Return the search space of the overrides of a command, and the overrides with a single value."""
    dimensions: dict[str, Choices | Range] = {}
    fixed: Values = {}
    for word in words:
        key, value = parse_override(word)
        if key in dimensions or key in fixed:
            raise ConfigError(f"'{key}' is set twice. Set it once; separate several values by commas.")
        dimension = _parse_text(key, word.partition("=")[2].strip())
        if dimension is None:
            fixed[key] = value
        else:
            dimensions[key] = dimension
    return SearchSpace(dimensions), fixed


def parse_mapping(space: Mapping[str, Any]) -> SearchSpace:
    """Return the search space of `regard.sweep`: lists of values, or ranges and choices as on the command line."""
    dimensions: dict[str, Choices | Range] = {}
    for key, given in space.items():
        if isinstance(given, str):
            dimension = _parse_text(key, given)
        elif isinstance(given, list | tuple):
            dimension = _make_choices(key, {_to_text(value): value for value in given}, len(given))
        else:
            raise ArgumentTypeError(
                f"space['{key}'] must be a list of values, or a range such as 'log(1e-4,1e-2)', not {quote(given)}."
            )
        if dimension is None:
            raise ConfigError(f"space['{key}'] has one value, {quote(given)}. Pass it in overrides instead.")
        dimensions[key] = dimension
    return SearchSpace(dimensions)


def _to_text(value: Any) -> str:
    """Return a value as it is written on the command line."""
    if isinstance(value, str) and parse_override(f"key={value}")[1] == value and "," not in value:
        return value
    return to_json(value, ensure_ascii=False)


def _parse_text(key: str, text: str) -> Choices | Range | None:
    """Parse choices or a range; return None for a single value."""
    call = re.fullmatch(r"([a-z]+)\((.*)\)", text)
    if call:
        return _parse_range(key, text, *call.groups())
    choices = split_choices(text)
    if len(choices) == 1:
        return None
    if not all(choices):
        raise ConfigError(f"{key}={shorten(text)}: a choice is empty. Write the values with a comma between them.")
    values = {choice: parse_override(f"{key}={choice}")[1] for choice in choices}
    return _make_choices(key, values, len(choices))


def _make_choices(key: str, values: dict[str, Any], count: int) -> Choices:
    if len(values) < 2 or len(values) < count:
        problem = "a value is given twice" if values and len(values) < count else "fewer than two values are given"
        raise ConfigError(f"{key}: {problem}. Give several different values.")
    return Choices(values)


def split_choices(text: str) -> list[str]:
    """Split at commas outside quotes, brackets and braces.

    >>> split_choices("[1,2],[3]")
    ['[1,2]', '[3]']
    """
    parts, depth, quoted, start = [], 0, "", 0
    for index, character in enumerate(text):
        if quoted:
            quoted = "" if character == quoted else quoted
        elif character in "\"'" and not text[start:index].strip():  # an apostrophe inside a word is not a quote
            quoted = character
        elif character in "[{(":
            depth += 1
        elif character in ")}]":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    return [*parts, text[start:].strip()]


def _parse_range(key: str, text: str, kind: str, arguments: str) -> Range:
    word = f"{key}={shorten(text)}"
    if kind not in _RANGES:
        raise ConfigError(f"{word}: '{kind}' is not a range. Use {', '.join(f'{name}(LOW,HIGH)' for name in _RANGES)}.")
    log, integer = _RANGES[kind]
    try:
        numbers = [(int if integer else float)(number) for number in arguments.split(",")]
    except ValueError:
        expected = "integers" if integer else "numbers"
        raise ConfigError(f"{word}: the ends of the range must be {expected}, such as {kind}(1,10).") from None
    if len(numbers) not in (2, 3) or not all(map(math.isfinite, numbers)):
        raise ConfigError(f"{word}: a range has two finite ends, {kind}(LOW,HIGH), and optionally a step.")
    low, high, *rest = numbers
    if low >= high:
        raise ConfigError(f"{word}: the range is empty or reversed. The first number must be less than the second.")
    if log and (low <= 0 or rest):
        problem = "a logarithmic range has no step" if rest else "a logarithmic range must be above 0"
        raise ConfigError(
            f"{word}: {problem}. Change the ends of the range, or use {kind.replace('log', '') or 'uniform'}(…)."
        )
    step = rest[0] if rest else None
    if step is not None and not 0 < step <= high - low:
        raise ConfigError(f"{word}: the step must be positive, and not larger than the range.")
    if step is not None and not math.isclose((high - low) / step, round((high - low) / step), rel_tol=1e-9):
        raise ConfigError(f"{word}: the range is not a multiple of the step. Change its upper end.")
    return Range(kind, low, high, step)
