"""Checks of the arguments of predictions: texts, options and constraints."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, get_type_hints

from numpy.typing import NDArray

from regard.arguments import check_list, check_references, check_text, check_texts
from regard.config import resolve
from regard.data.corpora import RawSource
from regard.data.sources import SourceReader
from regard.decoding.predictor import Constraints
from regard.decoding.settings import SearchSettings
from regard.errors import ArgumentTypeError, ConfigError, is_iterable
from regard.formatting import add_article, did_you_mean, quantity


class ArrayInterface(Protocol):
    """What numpy can read as an array: an array, or a Pillow image."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


OneSource = str | Path | NDArray[Any] | ArrayInterface
"""A source: a text; or what another kind of encoder reads: the name of a file, an array, or a Pillow image."""


def check_sources(source: Any, reader: SourceReader) -> tuple[list[RawSource], bool]:
    """Return the sources as a list, and whether `source` is a single source. Raise ArgumentTypeError, with the
    index, for a value that the reader does not accept.
    """
    if reader.is_source(source):
        return [source], True
    noun, accepts = reader.noun, reader.accepts
    if isinstance(source, bytes | Mapping) or not is_iterable(source):
        raise ArgumentTypeError(
            f"source must be {add_article(noun)} ({accepts}) or a list of {noun}s, not {type(source).__name__}."
        )
    sources = list(source)
    _check_items("source", sources, reader)
    return sources, False


def _check_items(name: str, sources: Iterable[Any], reader: SourceReader) -> None:
    for index, item in enumerate(sources):
        if not reader.is_source(item):
            raise ArgumentTypeError(
                f"{name}[{index}] must be {add_article(reader.noun)} ({reader.accepts}), not {type(item).__name__}."
            )


def check_source(source: Any, reader: SourceReader) -> RawSource:
    if not reader.is_source(source):
        raise ArgumentTypeError(f"source must be one {reader.noun} ({reader.accepts}), not {type(source).__name__}.")
    return source


def check_sources_and_targets(
    source: Any, target: Any, reader: SourceReader
) -> tuple[list[RawSource], list[str], bool]:
    """Return a list of sources, a list of targets, and whether they were a single source and a single target."""
    sources, single = check_sources(source, reader)
    if single and isinstance(target, str):
        return sources, [target], True
    if single or isinstance(target, str):
        raise ConfigError("Pass one source and one target, or a list of sources and a list of targets.")
    targets = check_texts("target", target)
    if len(sources) != len(targets):
        raise ConfigError(
            f"Got {quantity(len(sources), 'source')} and {quantity(len(targets), 'target')}. Pass one target for each "
            "source."
        )
    return sources, targets, False


def check_search(options: Mapping[str, Any], schema: type) -> None:
    """Raise an error for an unknown option, with the nearest name, or for a value of the wrong type."""
    types = get_type_hints(schema)
    for name, value in options.items():
        if name not in types:
            raise ConfigError(
                f"There is no search setting '{name}'.{did_you_mean(name, types)} Available: {', '.join(types)}."
            )
        if types[name] in _NUMBERS:
            accepted, noun = _NUMBERS[types[name]]
            if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
                raise ArgumentTypeError(f"{name} must be {noun}, not {value!r}.")


_NUMBERS: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "True or False"),
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
}
"""The types that a setting accepts, and what they are called. A bool is not a number."""


def check_evaluation(sources: Any, references: Any, reader: SourceReader) -> tuple[list[Any], list[Any] | None]:
    """Return sources and references, or pairs and None, as lists. Raise ArgumentTypeError for a value
    that is not a source or a text.
    """
    if references is None:
        pairs = check_list("sources", sources, "a list of (source, reference) pairs if references is None")
        for index, pair in enumerate(pairs):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ConfigError(
                    f"sources[{index}] is not a pair. Pass sources and references, or a list of pairs (source, "
                    "reference)."
                )
            check_text(f"sources[{index}][1]", pair[1])
        _check_items("sources", [source for source, _ in pairs], reader)
        return pairs, None
    items = check_list("sources", sources, f"a list of {reader.noun}s")
    _check_items("sources", items, reader)
    return items, check_references(references)


def check_evaluation_pairs(pairs: Any) -> list[tuple[Any, str]]:
    """Return (source, reference) pairs as a list."""
    listed = check_list("pairs", pairs, "a path or a list of pairs (source, reference)")
    for index, pair in enumerate(listed):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ConfigError(f"pairs[{index}] must be a pair (source, reference), not {pair!r}.")
        check_text(f"pairs[{index}][1]", pair[1])
    return [(source, reference) for source, reference in listed]


_CONSTRAINTS = ("prefix", "must_contain", "banned")


def parse_search(options: Mapping[str, Any], texts: int | None = None) -> tuple[SearchSettings, Constraints]:
    """Return the settings of the search and the constraints among the options of a prediction."""
    constraints = parse_constraints(options, texts)
    settings = {name: value for name, value in options.items() if name not in _CONSTRAINTS}
    return resolve(SearchSettings, settings, {}), constraints


def describe_search(settings: SearchSettings, constraints: Constraints) -> dict[str, Any]:
    """Return the settings and the constraints of the search for a single text, for a trace."""
    return {
        **settings.model_dump(mode="json"),
        "prefix": "".join(constraints.prefixes),
        "must_contain": [phrase for phrases in constraints.phrases for phrase in phrases],
        "banned": list(constraints.banned),
    }


def parse_constraints(options: Mapping[str, Any], texts: int | None) -> Constraints:
    """Return the constraints among the options of a prediction.

    Args:
        options: The options. `prefix` and `must_contain` have one value for each text.
        texts: The number of texts in a list; None for a single text, whose values are not in lists.
    """
    prefixes, phrases = (_per_text(name, options.get(name), texts) for name in ("prefix", "must_contain"))
    return Constraints(
        [check_text("prefix", prefix) for prefix in prefixes],
        [_as_phrases("must_contain", entry) for entry in phrases],
        _as_phrases("banned", options.get("banned") or ()),
    )


def _per_text(name: str, value: Any, texts: int | None) -> Sequence[Any]:
    """Return one value for each text; an empty list if there is no value."""
    if value is None:
        return ()
    if texts is None:
        return [value]
    if isinstance(value, str):
        raise ConfigError(
            f"{name}={value!r} is one value for a list of {quantity(texts, 'text')}. Pass a list, one for each text."
        )
    if not is_iterable(value):
        raise ArgumentTypeError(f"{name} must be a list with one value for each text, not {type(value).__name__}.")
    values = list(value)
    if values and len(values) != texts:
        raise ConfigError(
            f"{name} has {quantity(len(values), 'value')} for {quantity(texts, 'text')}. Pass one for each."
        )
    return values


def _as_phrases(name: str, phrases: Any) -> list[str]:
    """Return a list of phrases; a text is a single phrase."""
    return [phrases] if isinstance(phrases, str) else check_texts(name, phrases)
