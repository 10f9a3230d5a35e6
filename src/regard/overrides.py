"""Overrides: settings by dotted key, such as `training.steps=500`. Their order has no effect."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from regard.errors import ConfigError
from regard.formatting import shorten
from regard.yaml_reader import YAMLSyntaxError, load_yaml


def parse_override(text: str) -> tuple[str, Any]:
    """`training.steps=500` → ("training.steps", 500); the value is read as YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"'{text}' is not a setting. Write key=value, for example training.steps=500.")
    try:
        return key.strip(), load_yaml(value)[0] if value else ""
    except YAMLSyntaxError:
        return key.strip(), value


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Return the overrides of a command by key. A key that is given twice is rejected."""
    overrides: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for text in texts:
        key, value = parse_override(text)
        if key in overrides:
            raise ConfigError(f"'{key}' is set twice: {shorten(sources[key])} and {shorten(text)}. Set it once.")
        overrides[key], sources[key] = value, text
    return overrides


def reject_ambiguous_kinds(overrides: Mapping[str, Any]) -> None:
    """Reject a `kind` next to a value of its whole group: a new kind would remove the settings in that value."""
    for key, kind in overrides.items():
        group, _, last = key.rpartition(".")
        if last != "kind":
            continue
        for name, value in overrides.items():
            if f"{group}.".startswith(f"{name}.") and _find(value, group[len(name) + 1 :]) is not None:
                given = " and ".join(shorten(f"{name}={value}") for name, value in ((name, value), (key, kind)))
                raise ConfigError(f"{given} both set {group}. Remove {key}, and set the kind in {name}.")


def _find(value: Any, key: str) -> Any:
    """Return the value of a dotted key in a value, or None."""
    for name in filter(None, key.split(".")):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def in_order_of_application(overrides: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield overrides so that a group comes before its settings, and a `kind` before its options."""
    for key in sorted(overrides, key=lambda key: (key.count("."), not key.endswith(".kind"), key)):
        yield key, overrides[key]


def assign(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key. Anything on its path that is not a mapping is replaced by one.

    Changing a `kind` removes the other settings of the group, because they belong to the old kind.
    """
    *parents, last = key.split(".")
    node = tree
    for name in parents:
        child = node.get(name)
        if not isinstance(child, dict):
            child = node[name] = {}
        node = child
    if last == "kind" and node.get("kind") != value:
        node.clear()
    node[last] = copy.deepcopy(value)
