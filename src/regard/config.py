"""Settings: read presets, files and overrides, and validate them. Messages name the key, the problem and the remedy.

Each package declares its settings as `Settings` classes in its `settings.py`. These files do not import torch. A choice
is a union discriminated by `kind`, and a bare name is shorthand: `score: additive` means `score: {kind: additive}`.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib import resources
from pathlib import Path
from typing import Any, Final, NoReturn, Self, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, create_model
from pydantic.config import JsonDict
from pydantic_core import ErrorDetails

from regard.errors import ConfigError, ModelError, RegardError
from regard.formatting import did_you_mean, is_encodable, nearest, quote, shorten
from regard.overrides import assign, in_order_of_application
from regard.urls import make_absolute
from regard.yaml_reader import SUFFIXES, KeyPath, dump_yaml, load_yaml, read_yaml

_PRESETS: Final = Path(str(resources.files("regard") / "presets"))

Tree = dict[str, Any]
S = TypeVar("S", bound="Settings")


class Settings(BaseModel):
    """Base class of all settings: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def absolute(self) -> Self:
        """Return the settings with absolute paths, so that they are valid in any working directory."""
        return self.map_paths(make_absolute)

    def map_paths(self, function: Callable[[str], str]) -> Self:
        """Return the settings with other paths. A path may be a URL."""
        update: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Settings):
                update[name] = value.map_paths(function)
            elif value and PATH in field.metadata:
                update[name] = function(value) if isinstance(value, str) else tuple(map(function, value))
        return self.model_copy(update=update)

    @classmethod
    def kinds(cls) -> Mapping[str, type["Settings"]]:
        """Return the classes that a field of this type may hold, by their `kind`; empty for a class without kinds."""
        kind = cls.model_fields.get("kind")
        return {kind.default: cls} if kind and isinstance(kind.default, str) else {}

    @classmethod
    def of_kind(cls, kind: str) -> type["Settings"]:
        """Return the settings class of a kind. Import the part if necessary."""
        return cls.kinds().get(kind, cls)


def _expand_name(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


BY_NAME = BeforeValidator(_expand_name)
"""Annotation of a choice that also accepts its bare name."""


def _path_to_str(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_path_to_str(path) for path in value]
    return str(value) if isinstance(value, Path) else value


PATH = BeforeValidator(_path_to_str)
"""Annotation of a setting that is a path, or several, for `map_paths`."""

_MAX_PROBLEMS, _MAX_MESSAGE, _MAX_PLUGINS = 3, 2_000, 10

MAY_CHANGE_ON_RESUME: JsonDict = {"may_change_on_resume": True}
"""`json_schema_extra` of a field that may change when a run is resumed."""

TRAINING_ONLY: JsonDict = {"training_only": True}
"""`json_schema_extra` of a field of a model that has no effect on the predictions of a trained model."""


def resolve(
    schema: type[S], source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any], name: str = "settings"
) -> S:
    """Return the settings of a preset, a file or a mapping, with dotted-key overrides applied. Messages refer to a
    mapping as `name`.

    The source is validated before the overrides are applied, so that an error in a file is reported with its line and
    an error in an override with the override. What can be validated without torch is validated first; if that is
    everything, it is validated once.
    """
    tree, locate = _read(source, name)
    with _deferring_options() as deferred:
        settings = _resolve(schema, tree, overrides, locate)
    return _resolve(schema, tree, overrides, locate) if deferred else settings


def check_without_torch(schema: type[Settings], source: str | Path) -> None:
    """Validate a preset or a file, except for the options of parts that are known only when torch has been imported."""
    tree, locate = _read(source, str(source))
    with _deferring_options():
        _resolve(schema, tree, {}, locate)


_deferred: ContextVar[list[str] | None] = ContextVar("deferred", default=None)


@contextmanager
def _deferring_options() -> Iterator[list[str]]:
    """Validate only the names of parts that have not been imported, and collect these names."""
    deferred: list[str] = []
    token = _deferred.set(deferred)
    try:
        yield deferred
    finally:
        _deferred.reset(token)


def defer_options(kind: str) -> bool:
    """Return whether the options of a part that has not been imported can be validated later, and note its name."""
    deferred = _deferred.get()
    if deferred is None:
        return False
    deferred.append(kind)
    return True


def _read(source: str | Path | Mapping[str, Any], name: str) -> tuple[Tree, Callable[[KeyPath], str]]:
    """Return the tree of a preset, a file or a mapping, and a function that locates a key in it."""
    lines: dict[KeyPath, int] = {}
    if isinstance(source, Mapping):
        tree = dict(source)
    else:
        tree, lines = read_yaml(find_config(source))
        name = str(source)
    return tree, lambda key: _location(name, lines, key)


def _resolve(schema: type[S], tree: Tree, overrides: Mapping[str, Any], locate: Callable[[KeyPath], str]) -> S:
    base = _validate(schema, tree, locate)
    if not overrides:
        return base
    dumped = base.model_dump(mode="json")
    return _apply(schema, dumped, overrides, lambda path: _find_override(schema, dumped, overrides, path))


def _apply(schema: type[S], base: Tree, overrides: Mapping[str, Any], locate: Callable[[KeyPath], str]) -> S:
    """Return the settings of a tree with overrides applied. The tree does not change."""
    tree = copy.deepcopy(base)
    for key, value in in_order_of_application(overrides):
        if not _expand_shorthand(schema, tree, key):
            _validate(schema, tree, locate)
        assign(tree, key, value)
    return _validate(schema, tree, locate)


def presets() -> dict[str, str]:
    """Return the description of each preset by name."""
    descriptions = {}
    for path in sorted(_PRESETS.glob("*.yaml")):
        descriptions[path.stem] = str(load_yaml(path.read_text("utf-8"))[0]["about"])
    return descriptions


def find_preset(name: str) -> Path:
    """Return the file of a preset."""
    return _PRESETS / f"{name}.yaml"


def find_config(source: str | Path) -> Path:
    """Return the file of a preset name or a path."""
    path = Path(source)
    if path.suffix in SUFFIXES or path.exists():
        if path.is_dir():
            raise ConfigError(
                f"{path} is not a run folder: it has no config.yaml. Pass a preset, a YAML file or a run folder."
            )
        if not path.exists():
            raise ConfigError(f"There is no file {path}. Check the path, or list the presets with `regard presets`.")
        return path
    preset = find_preset(str(source))
    if len(path.parts) > 1:
        raise ConfigError(
            f"There is no run folder or file {path}. If it was moved, pass its new path. List the presets with "
            "`regard presets`."
        )
    if not preset.exists():
        raise ConfigError(
            f"'{source}' is neither a preset nor a file.{did_you_mean(str(source), presets())} "
            f"Presets: {', '.join(presets())}."
        )
    return preset


def to_yaml(settings: Settings) -> str:
    return dump_yaml(settings.model_dump(mode="json"))


def flatten(settings: Settings, prefix: str = "") -> dict[str, Any]:
    """Return every setting by dotted key."""
    flat: dict[str, Any] = {}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Settings):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def differences(before: Settings, after: Settings) -> dict[str, tuple[Any, Any]]:
    """Return both values of each setting that differs, by dotted key, without those that may change on resume."""
    old, new = flatten(before), flatten(after)
    may_change = set(_keys_that_may_change(before)) | set(_keys_that_may_change(after))
    keys = [key for key in {**old, **new} if key not in may_change]
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


def _keys_that_may_change(settings: Settings, prefix: str = "") -> Iterator[str]:
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, Settings):
            yield from _keys_that_may_change(value, f"{prefix}{name}.")
        if field.json_schema_extra == MAY_CHANGE_ON_RESUME:
            yield f"{prefix}{name}"


def _expand_shorthand(schema: type[Settings], tree: Tree, key: str) -> bool:
    """Replace each shorthand on the path to a key, such as a bare name, by its mapping. Return False if one is invalid.

    A shorthand is validated by itself: the other overrides may not have been applied yet.
    """
    owner, node = schema, tree
    for name in key.split(".")[:-1]:
        field, child = owner.model_fields.get(name), node.get(name)
        if field is None or child is None:
            break
        if _find_class(field.annotation, child) is None:
            fields: dict[str, Any] = {"part": (field.annotation, field)}
            part = create_model("Part", __base__=Settings, **fields)
            try:
                child = part.model_validate({"part": child}).model_dump(mode="json")["part"]
            except ValidationError:
                if not isinstance(child, str):
                    return False
                child = {"kind": child}  # the settings that it requires may be overrides, too
        chosen = _find_class(field.annotation, child)
        if chosen is None:
            return False
        node[name] = child
        owner, node = chosen, child
    return True


def _find_class(annotation: Any, value: Any) -> type[Settings] | None:
    """Return the settings class of a mapping; None for a shorthand, or without a known kind."""
    if not isinstance(value, dict):
        return None
    classes = dict(_alternatives(annotation))
    kind = value.get("kind")
    if isinstance(kind, str) and kind in classes:
        return classes[kind]
    return classes.get(None) if len(set(classes.values())) == 1 else None


def _validate(schema: type[S], tree: Tree, locate: Callable[[KeyPath], str]) -> S:
    for path, text in _walk_texts(tree):
        if not is_encodable(text):
            key = quote(".".join(map(str, path)))
            raise ConfigError(
                f"{locate(path)}: {key} contains {quote(text)}, which is not UTF-8. Use other characters."
            )
    try:
        return schema.model_validate(tree)
    except ValidationError as error:
        details = error.errors()
        for detail in details:
            if detail["type"] == "unknown_kind" and tree.get("imports"):
                _report_missing_plugins(schema, detail, tree["imports"], locate(()))
        problems = [shorten(_explain(schema, tree, detail, locate), _MAX_MESSAGE) for detail in details[:_MAX_PROBLEMS]]
        rest = len(details) - len(problems)
        more = [f"(and {rest} more)"] if rest > 0 else []
        raise ConfigError("\n".join(problems + more)) from None


def _walk_texts(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield each text in a tree, the keys included, with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from _walk_texts(key, path)
            yield from _walk_texts(child, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from _walk_texts(child, (*path, index))


def _report_missing_plugins(schema: type[Settings], detail: ErrorDetails, plugins: Any, where: str) -> NoReturn:
    """Raise ModelError for a part that a plugin registers. Plugins are imported only if the user asks for it."""
    path, _ = _find_owner(schema, detail["loc"])
    names = [
        shorten(str(name)) for name in (plugins if isinstance(plugins, list | tuple) else [plugins])[:_MAX_PLUGINS]
    ]
    flags = " ".join(f"--import {name}" for name in names)
    remedy = f"Pass {flags}, or imports={names} in Python"
    if names == ["__main__"]:
        remedy = "It was registered in a script or notebook: register it again before you use the model"
    raise ModelError(
        f"{where}: the {'.'.join(map(str, path))} {quote(detail['ctx']['tag'])} belongs to a plugin that is not "
        f"imported. {remedy}. A model folder never imports code by itself."
    )


def _explain(schema: type[Settings], tree: Tree, detail: ErrorDetails, locate: Callable[[KeyPath], str]) -> str:
    """Describe a validation error: the key, the problem and the remedy."""
    path, owner = _find_owner(schema, detail["loc"])
    key = shorten(".".join(map(str, path)))
    where = locate(path)
    match detail["type"]:
        case "extra_forbidden":
            near = _suggest(str(path[-1]), owner.model_fields, _dotted_keys(schema, tree))
            return f"{where}: unknown setting '{key}'.{near} Available: {', '.join(owner.model_fields)}."
        case "missing":
            return f"{where}: the setting '{key}' is required. Set it, for example with {key}=VALUE."
        case "union_tag_invalid":
            names = [name.strip(" '") for name in detail["ctx"]["expected_tags"].split(",")]
            return f"{where}: {_reject_name(detail['ctx']['tag'], key, names)}"
        case "unknown_kind":
            return f"{where}: {_reject_name(detail['ctx']['tag'], key, detail['ctx']['names'])}"
        case "union_tag_not_found" | "missing_kind":
            return f"{where}: {key} has no `kind`. Set {key}.kind."
        case "literal_error":
            names = [name.strip(" '") for name in detail["ctx"]["expected"].replace(" or ", ",").split(",")]
            return f"{where}: {_reject_name(detail['input'], key.removesuffix('.kind'), names)}"
        case "value_error":
            return f"{where}: {key + ': ' if key else ''}{detail['ctx']['error']}"
        case _:
            return f"{where}: {key} = {_describe(detail['input'])}: {detail['msg'].lower()}."


def _reject_name(value: Any, key: str, names: list[str]) -> str:
    near = did_you_mean(value if isinstance(value, str) else quote(value), names)
    return f"{_describe(value)} is not a valid {key}.{near} Available: {', '.join(names)}."


_MAX_SUGGESTIONS = 3


def _suggest(name: str, siblings: Iterable[str], keys: Iterable[str]) -> str:
    """Suggest names for an unknown one: the same name in another group, else a similar name in this group, else a
    similar name in another group.
    """
    groups: dict[str, list[str]] = {}
    for key in sorted(keys, key=lambda key: key.count(".")):
        groups.setdefault(key.rpartition(".")[2], []).append(key)
    if name not in groups and (near := nearest(name, siblings)):
        suggestions = [near]
    else:
        suggestions = groups.get(nearest(name, groups) or "", [])[:_MAX_SUGGESTIONS]
    return f" Did you mean {' or '.join(map(repr, suggestions))}?" if suggestions else ""


def _dotted_keys(schema: type[Settings], tree: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted key of every setting. The kind of a choice is the one in the tree, or else the default."""
    for name, field in schema.model_fields.items():
        yield f"{prefix}{name}"
        value = tree.get(name) if isinstance(tree, dict) else None
        kind = value.get("kind") if isinstance(value, dict) else value
        chosen = _find_class(field.annotation, value if isinstance(value, dict) else {"kind": value})
        if chosen is not None and isinstance(kind, str):
            chosen = chosen.of_kind(kind)
        elif chosen is None and field.default is not None:
            chosen = _find_class(field.annotation, {"kind": getattr(field.default, "kind", field.default)})
        if chosen is not None:
            yield from _dotted_keys(chosen, value, f"{prefix}{name}.")


def _find_owner(schema: type[Settings], loc: KeyPath) -> tuple[KeyPath, type[Settings]]:
    """Return the path to an error as the user writes it, without union tags, and the class that has its last key."""
    path: list[str | int] = []
    owner: type[Settings] = schema
    annotation: Any = schema
    for part in loc:
        if isinstance(part, int):  # an index of a list, whose annotation applies to every element
            path.append(part)
            continue
        alternatives = dict(_alternatives(annotation))
        if part in alternatives:
            annotation = alternatives[part]
            continue
        if None in alternatives:
            annotation = alternatives[None]
        if isinstance(annotation, type) and issubclass(annotation, Settings):
            owner = annotation
            field = annotation.model_fields.get(str(part))
            annotation = field.annotation if field else None
        path.append(part)
    return tuple(path), owner


def _alternatives(annotation: Any) -> Iterator[tuple[str | None, type[Settings]]]:
    """Yield the settings classes in an annotation, each with its `kind`, and with None."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield from annotation.kinds().items()
        yield None, annotation
    for part in get_args(annotation):
        yield from _alternatives(part)


def _location(name: str, lines: dict[KeyPath, int], path: KeyPath) -> str:
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return f"{name}:{lines[path[:end]]}"
    return name


def _find_override(schema: type[Settings], base: Tree, overrides: Mapping[str, Any], path: KeyPath) -> str:
    """Return the override that caused an error, or several if only their combination is invalid."""
    key = ".".join(map(str, path))
    causes = [name for name in overrides if name == key or key.startswith(f"{name}.")]
    if causes:
        causes = [max(causes, key=len)]
    else:
        # The error is in a group of settings: the causes are the overrides without which it does not occur.
        errors = _find_errors(schema, base, overrides)
        without = {name: _remove_override(overrides, name) for name in overrides}
        causes = [name for name in overrides if _find_errors(schema, base, without[name]) <= errors - {path}]
        # If several overrides cause the same error independently, it still occurs when one of them is removed.
        causes = causes or [name for name in overrides if path in _find_errors(schema, base, {name: overrides[name]})]
    if not causes:
        return "The settings are inconsistent"
    return " and ".join(shorten(f"{name}={overrides[name]}") for name in causes)


def _remove_override(overrides: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in overrides.items() if key != name}


def _find_errors(schema: type[Settings], base: Tree, overrides: Mapping[str, Any]) -> set[KeyPath]:
    """Return the paths of all errors of a tree with overrides applied."""
    paths: set[KeyPath] = set()

    def collect(path: KeyPath) -> str:
        paths.add(path)
        return ""

    with suppress(RegardError):
        _apply(schema, base, overrides, collect)
    return paths


def _describe(value: Any) -> str:
    return "null" if value is None else quote(value)
