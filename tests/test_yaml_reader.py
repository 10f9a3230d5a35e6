"""YAML 1.2: scalars, duplicate keys, and limits."""

import itertools
import math
from typing import Any

import pytest
import yaml

from regard import yaml_reader
from regard.yaml_reader import MAX_LENGTH, YAMLSyntaxError, dump_yaml, load_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0100", 100),
        ("0o17", 15),
        ("0x1F", 31),
        ("-12", -12),
        ("1e3", 1000.0),
        ("1.5e-3", 0.0015),
        ("-.5", -0.5),
        ("-.INF", -math.inf),
        ("1:30", "1:30"),
        ("2024-13-45", "2024-13-45"),
        ("2024-01-02", "2024-01-02"),
        ("0b_", "0b_"),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("True", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("9" * 5_000, math.inf),
        ("[1, 'a', {b: c}]", [1, "a", {"b": "c"}]),
        ("{a: &x {b: 1}, c: {<<: *x, d: 2}}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    found = load_yaml(text)[0]
    assert found == value
    assert type(found) is type(value)


def nest_aliases() -> str:
    """Return nine lists of nine aliases each: 9⁹ values."""
    names = "abcdefghi"
    lists = [f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in itertools.pairwise(names)]
    return "\n".join(["a: &a [x, x, x, x, x, x, x, x, x]", *lists])


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a: !!int x", "'x' is not an integer", 1),
        ("a: 1\nb: !!bool maybe", "'maybe' is not true or false", 2),
        ("a: !!float x", "'x' is not a number", 1),
        ("a: !!timestamp 2024-01-01", "could not determine a constructor", 1),
        ("a: !!python/object:os.system x", "could not determine a constructor", 1),
        ("a: 1\nb: 2\na: 3", "the key 'a' occurs twice", 3),
        ("a: {b: 1, c: 2, b: 3}", "the key 'b' occurs twice", 1),
        ("? [a]\n: 1", "unhashable key", 1),
        ("a: 1\n" + "[" * 3_000, "nested more than 50 levels", 2),
        ("[" * 199_000, "nested more than 50 levels", 1),
        ("{a: " * 3_000, "nested more than 50 levels", 1),
        ("- " * 3_000, "nested more than 50 levels", 1),
        ("&a [*a]", "more than 10,000 values", None),
        (nest_aliases(), "more than 10,000 values", None),
        ("a: b\n---\nc: d", "expected a single document in the stream, but found another document", 2),
        ("a: [", "expected the node content", 1),
        ("a: \x00", "special characters are not allowed", None),
        ("a" * (MAX_LENGTH + 1), "characters, and settings have at most 200,000", None),
    ],
)
def test_errors_are_reported_with_their_line(
    text: str, message: str, line: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = 0

    class CountingLoader(yaml_reader._Loader):
        def get_event(self) -> yaml.Event:
            nonlocal events
            events += 1
            event: yaml.Event = super().get_event()  # type: ignore[no-untyped-call]
            return event

    monkeypatch.setattr(yaml_reader, "_Loader", CountingLoader)
    with pytest.raises(YAMLSyntaxError) as failure:
        load_yaml(text)
    assert message in str(failure.value)
    assert failure.value.line == line
    assert events <= yaml_reader.MAX_NODES  # it stops at the error, and does not read 200,000 brackets


@pytest.mark.parametrize(
    "text", ["1e3", "0o17", "0100", "1:30", "yes", "2024-01-01", "0x1F", "", "~", "1_000", "<<", "a: b", "é", "\u2028"]
)
def test_a_written_string_is_the_same_in_both_versions_of_yaml(text: str) -> None:
    written = dump_yaml({"key": text})
    assert load_yaml(written)[0] == {"key": text}
    assert yaml.safe_load(written) == {"key": text}
