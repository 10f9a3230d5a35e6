"""Checks of the arguments of predictions: texts, options and constraints."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from regard.data.corpora import RawSource
from regard.data.sources import SourceReader
from regard.decoding.predictor import Constraints
from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import did_you_mean


def check_sources(source: Any, reader: SourceReader) -> tuple[list[RawSource], bool]:
    """Return the sources as a list, and whether there was only one, without a list. Raise ArgumentTypeError for
    anything that the reader does not accept, with its index.
    """
    if reader.is_source(source):
        return [source], True
    noun, accepts = reader.noun, reader.accepts
    if isinstance(source, bytes | Mapping) or not isinstance(source, Iterable):
        raise ArgumentTypeError(
            f"source must be a {noun} ({accepts}) or a list of {noun}s, not {type(source).__name__}."
        )
    sources = list(source)
    for index, item in enumerate(sources):
        if not reader.is_source(item):
            raise ArgumentTypeError(f"source[{index}] must be a {noun} ({accepts}), not {type(item).__name__}.")
    return sources, False


def check_source(source: Any, reader: SourceReader) -> RawSource:
    if not reader.is_source(source):
        raise ArgumentTypeError(f"source must be one {reader.noun} ({reader.accepts}), not {type(source).__name__}.")
    return source


def check_texts(name: str, texts: Any) -> list[str]:
    """Return the texts as a list. Raise ArgumentTypeError for anything else, with its index."""
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
        raise ArgumentTypeError(f"{name} must be a text (str) or a list of texts, not {type(texts).__name__}.")
    checked: list[str] = []
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ArgumentTypeError(f"{name}[{index}] must be a text (str), not {type(text).__name__}.")
        checked.append(text)
    return checked


def check_text(name: str, text: Any) -> str:
    if not isinstance(text, str):
        raise ArgumentTypeError(f"{name} must be one text (str), not {type(text).__name__}.")
    return text


def check_size(name: str, size: Any) -> int:
    """Return a number of texts, which must be at least 1."""
    if not isinstance(size, int) or isinstance(size, bool):
        raise ArgumentTypeError(f"{name} must be an integer, not {type(size).__name__}.")
    if size < 1:
        raise ConfigError(f"{name} is {size}, but must be at least 1.")
    return size


def check_names(options: Mapping[str, Any], available: Iterable[str]) -> None:
    """Raise ConfigError for the first option that does not exist, with the nearest name."""
    names = list(available)
    unknown = next((name for name in options if name not in names), None)
    if unknown is not None:
        raise ConfigError(
            f"There is no search setting '{unknown}'.{did_you_mean(unknown, names)} Available: {', '.join(names)}."
        )


def parse_constraints(options: Mapping[str, Any], texts: int | None) -> Constraints:
    """Return the constraints among the options of a prediction.

    Args:
        options: The options. `prefix` and `must_contain` have one value for each text.
        texts: The number of texts, or None for a single text whose values are not in a list.
    """
    prefixes, phrases = (_per_text(name, options.get(name), texts) for name in ("prefix", "must_contain"))
    return Constraints(
        [check_text("prefix", prefix) for prefix in prefixes],
        [_as_phrases("must_contain", entry) for entry in phrases],
        _as_phrases("banned", options.get("banned") or ()),
    )


def _per_text(name: str, value: Any, texts: int | None) -> Sequence[Any]:
    """Return one value for each text; nothing if there is no value."""
    if value is None:
        return ()
    if texts is None:
        return [value]
    if isinstance(value, str):
        raise ConfigError(f"{name}={value!r} is one value for a list of {texts} texts. Pass a list, one for each text.")
    if not isinstance(value, Iterable):
        raise ArgumentTypeError(f"{name} must be a list with one value for each text, not {type(value).__name__}.")
    values = list(value)
    if values and len(values) != texts:
        raise ConfigError(f"{name}: there are {len(values)} values for {texts} texts. Pass one for each.")
    return values


def _as_phrases(name: str, phrases: Any) -> list[str]:
    """Return a list of phrases; a text is a single phrase."""
    return [phrases] if isinstance(phrases, str) else check_texts(name, phrases)
