"""What the predictions of a checkpoint depend on besides its weights: settings in config.yaml, and tokenizers.

Each manifest contains them, so that a later edit is noticed even if the weights still fit. Edits without an effect on
predictions are not changes: other settings, comments, the order of keys, white space.
"""

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from regard.config import MAY_CHANGE_ON_RESUME, TRAINING_ONLY, Settings
from regard.formatting import parse_json, quote, to_json
from regard.runs.settings import RunSettings

_NO_EFFECT = (MAY_CHANGE_ON_RESUME, TRAINING_ONLY)


def describe_settings(settings: RunSettings) -> dict[str, Any]:
    """Return the settings that predictions depend on, by dotted key.

    Of the tokenizer settings, only `shared` is included: tokenizer.json contains everything else.
    """
    described = {setting.key: setting.value for setting in _flatten(settings.model, "model.")}
    return {**described, "tokenizer.shared": settings.tokenizer.shared}


class _Setting(NamedTuple):
    """A setting with its dotted key, its value as JSON, and its default."""

    key: str
    value: Any
    default: Any
    is_default: bool


def _flatten(settings: Settings, prefix: str) -> Iterator[_Setting]:
    dumped = settings.model_dump(mode="json")
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if field.json_schema_extra in _NO_EFFECT:
            continue
        if isinstance(value, Settings):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            default = field.get_default(call_default_factory=True)
            yield _Setting(f"{prefix}{name}", dumped[name], default, value == default)


def find_changed_settings(saved: Mapping[str, Any], settings: RunSettings) -> dict[str, tuple[Any, Any]]:
    """Return both values of each setting that differs from the saved one, by dotted key.

    A setting that was not saved did not exist when the checkpoint was written, and its default has no effect. It is
    compared with its default.
    """
    now = describe_settings(settings)
    changed = {key: (value, now.get(key)) for key, value in saved.items() if now.get(key) != value}
    if changed or not saved:
        return changed
    added = (setting for setting in _flatten(settings.model, "model.") if setting.key not in saved)
    return {setting.key: (setting.default, setting.value) for setting in added if not setting.is_default}


def list_differences(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Format changed settings for a message: `seed was 0 and is now 1; …`."""
    return "; ".join(f"{key} was {quote(old)} and is now {quote(new)}" for key, (old, new) in changed.items())


@lru_cache(maxsize=4)
def hash_tokenizer_parts(content: bytes) -> Mapping[str, str]:
    """Return a hash of each part of a tokenizer file, which does not depend on white space and the order of keys.

    Raise ValueError if the content is not valid.
    """
    document = parse_json(content)
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    parts: dict[str, Any] = {}
    for name, part in document.items():
        nested = name == "model" and isinstance(part, dict)
        parts |= {f"{name}.{key}": value for key, value in part.items()} if nested else {name: part}
    try:
        canonical = {name: to_json(part, sort_keys=True) for name, part in parts.items()}
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in canonical.items()}


def find_changed_parts(saved: Mapping[str, str], content: bytes) -> list[str]:
    """Return the names of the parts of a tokenizer that differ from the saved ones. Raise ValueError if the content is
    not valid.
    """
    now = hash_tokenizer_parts(content)
    return sorted(name for name in saved.keys() | now.keys() if saved.get(name) != now.get(name))
