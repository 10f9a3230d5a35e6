"""Registries: the parts that a model or a run is built from (scores, cells, corpora, …), by name; and plugins.

A part has a `kind`, settings and a builder. The settings are derived from the signature of the builder: each parameter
that the caller does not provide is an option. Built-in parts are registered like those of plugins, when the module that
defines them is imported. Their names are read from its source before, because it may import torch, which takes seconds.

Settings that other code uses directly, such as those of encoders, are declared as classes instead. Their
builders receive the settings.
"""

import importlib
import importlib.util
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, ValidationError, create_model
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from regard.config import Settings, defer_options
from regard.errors import ArgumentTypeError, ConfigError, RegardError
from regard.formatting import add_article
from regard.overrides import parse_overrides

ENTRY_POINTS = "regard.plugins"
"""The entry point group of installed plugins."""

_NAME = re.compile(r"[\w.-]+")
"""The names of parts: settings and commands can contain them without quotes."""

_importing: ContextVar[str | None] = ContextVar("importing", default=None)
"""The plugin that is being imported, as the user named it."""


@dataclass(eq=False)
class Registry:
    """All parts of one type, for example all scores: the settings, the builder and the plugin of each `kind`.

    `module` registers the built-in parts; it is imported when one of them is needed. `provided` are the names of the
    values that the caller of `build_part` can provide; a builder receives those that it has a parameter for. `facts`
    are the class attributes of a part that are copied to its settings class.
    """

    noun: str
    module: str
    provided: frozenset[str] = frozenset()
    facts: tuple[str, ...] = ()
    default: str | None = None
    """The kind that is used for a mapping without `kind`."""
    settings: dict[str, type["Choice"]] = field(default_factory=dict)
    builders: dict[str, Callable[..., Any]] = field(default_factory=dict)
    plugins: dict[str, str] = field(default_factory=dict)
    """The plugin that registered each kind that is not built in."""

    def find(self, kind: str) -> type["Choice"] | None:
        """Return the settings class of a kind; None if no such kind is registered."""
        if kind not in self.settings and kind in self.built_in:
            importlib.import_module(self.module)
        if kind not in self.settings:
            load_installed_plugins()
        return self.settings.get(kind)

    @property
    def built_in(self) -> tuple[str, ...]:
        """The names that the module registers, whether it has been imported or not."""
        return _find_registrations(self.module, self.noun)

    @property
    def names(self) -> list[str]:
        """All names that are known: those of built-in parts first."""
        return list(dict.fromkeys((*self.built_in, *self.settings)))

    def register(self, base: type["Choice"], kind: str, build: Callable[..., Any], **facts: Any) -> None:
        """Register a part under a new name. Its options are the parameters of `build` that are not provided."""
        if not isinstance(kind, str) or not callable(build):
            raise ArgumentTypeError(
                f"register_{self.noun} expects a name and a class or function, not {kind!r} and {build!r}."
            )
        if not _NAME.fullmatch(kind):
            raise ConfigError(
                f"'{kind}' cannot be the name of {add_article(self.noun)}. Use letters, digits, '-', '_' and '.'."
            )
        importlib.import_module(self.module)
        if kind in self.settings and kind not in self.plugins:
            raise ConfigError(f"'{kind}' is the name of a built-in {self.noun}. Choose another name.")
        plugin = _importing.get() or _files.get(build.__module__, build.__module__)
        if self.plugins.get(kind, plugin) != plugin:
            raise ConfigError(
                f"The {self.noun} '{kind}' is already registered by {self.plugins[kind]}. Choose another name."
            )
        part = build if isinstance(build, type) else typing.get_type_hints(build).get("return")
        facts = {name: getattr(part, name) for name in self.facts if hasattr(part, name)} | facts
        for name, value in facts.items():
            expected = type(getattr(base, name, value))
            if not isinstance(value, expected):
                raise ArgumentTypeError(
                    f"{name} of the {self.noun} '{kind}' must be of type {expected.__name__}, not {value!r}."
                )
        options = _derive_options(self.noun, kind, build, self.provided)
        for name, (_, default) in list(options.items()):
            if name in base.model_fields and default is ...:  # the settings of this kind of part define it
                del options[name]
            elif name not in base.model_fields and (name.startswith("_") or name in dir(base)):
                raise ConfigError(f"The {self.noun} '{kind}' has an option '{name}', a reserved name. Rename it.")
        fields: dict[str, Any] = {"kind": (Literal[kind], kind), **options}
        self.settings.pop(kind, None)
        created = create_model(_class_name(kind), __base__=base, __module__=build.__module__, **fields)
        created.__doc__ = inspect.getdoc(build)
        for name, value in facts.items():
            setattr(created, name, value)
        self.builders[kind] = build
        if kind not in self.built_in:
            self.plugins[kind] = plugin


class Choice(Settings):
    """Base class of settings that are one of several kinds, selected by `kind`. A bare name is short for its mapping.

    A direct subclass, such as `Score`, has a registry, and is the type of a settings field. Its subclasses are the
    kinds, each with a default for `kind`.
    """

    registry: ClassVar[Registry]
    shorthands: ClassVar[tuple[str, ...]] = ()
    """Further names, which `expand` replaces."""

    kind: str

    @classmethod
    def kinds(cls) -> Mapping[str, type[Settings]]:
        if "registry" not in cls.__dict__:
            return super().kinds()
        return {kind: cls.registry.settings.get(kind, cls) for kind in cls.registry.names}

    @classmethod
    def of_kind(cls, kind: str) -> type[Settings]:
        return (cls.registry.find(kind) or cls) if "registry" in cls.__dict__ else cls

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        kind = cls.model_fields["kind"].default
        if isinstance(kind, str):
            cls.registry.settings.setdefault(kind, cls)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if "registry" in cls.__dict__:
            return core_schema.no_info_plain_validator_function(cls.parse)
        return handler(source)

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Return the settings that a name, a mapping with a `kind`, or settings describe."""
        if isinstance(value, cls):
            return value
        value = cls.expand(value)
        registry = cls.registry
        if not isinstance(value, Mapping):
            raise PydanticCustomError("not_a_choice", "expected a name or a mapping")
        kind = value.get("kind", registry.default)
        if kind is None:
            raise PydanticCustomError("missing_kind", "kind is missing")
        schema: type[Choice] | None = None
        if isinstance(kind, str):
            is_deferred = kind not in registry.settings and kind in registry.built_in and defer_options(kind)
            schema = cls._accepting_any_options() if is_deferred else registry.find(kind)
        if schema is None:
            # Pydantic cannot format a string with lone surrogates.
            tag = kind.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(kind, str) else kind
            raise PydanticCustomError(
                "unknown_kind", "unknown kind", {"tag": tag, "names": [*registry.names, *cls.shorthands]}
            )
        try:
            return typing.cast(Self, schema.model_validate({**value, "kind": kind}))
        except ValidationError as error:
            # As in a union of pydantic, the kind is part of the location.
            details = [_with_kind(detail, kind) for detail in error.errors()]
            raise ValidationError.from_exception_data(error.title, details) from None

    @classmethod
    def expand(cls, value: Any) -> Any:
        """Expand shorthand: a bare name is a mapping with this kind."""
        return {"kind": value} if isinstance(value, str) else value

    @classmethod
    @cache
    def _accepting_any_options(cls) -> type["Choice"]:
        """Return a class for parts that have not been imported: they may have any options."""
        metaclass: Any = type(cls)
        namespace = {"__module__": __name__, "model_config": ConfigDict(extra="allow")}
        created: type[Choice] = metaclass(cls.__name__, (cls,), namespace)
        return created

    def build_part(self, **provided: Any) -> Any:
        """Build the part. The builder receives its options, and the values in `provided` that it has parameters for. A
        builder with a parameter `settings` receives the settings instead of the options.
        """
        importlib.import_module(self.registry.module)
        build = self.registry.builders[self.kind]
        names = _parameters(build)
        context = {"settings": self, **provided}
        options = {} if "settings" in names else self.options(names)
        return build(**{name: value for name, value in context.items() if name in names}, **options)

    def options(self, names: frozenset[str]) -> dict[str, Any]:
        """Return the options that a builder with parameters of these names receives."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "kind" and name in names}


_PYDANTIC_ERRORS = frozenset(typing.get_args(core_schema.ErrorType))
"""The errors that pydantic defines. All others were raised as PydanticCustomError."""


def _with_kind(detail: Any, kind: str) -> InitErrorDetails:
    """Return the details of an error with the kind in front of its location."""
    loc, value, context = (kind, *detail["loc"]), detail["input"], detail.get("ctx", {})
    if detail["type"] not in _PYDANTIC_ERRORS:
        return InitErrorDetails(type=PydanticCustomError(detail["type"], detail["msg"], context), loc=loc, input=value)
    return InitErrorDetails(type=detail["type"], loc=loc, input=value, ctx=context)


def expand_label(value: Any) -> Any:
    """Expand a label, a name that options can follow (`bleu:tokenize=none,lowercase=true`), into a mapping."""
    if not isinstance(value, str):
        return value
    kind, _, options = value.partition(":")
    return {"kind": kind, **parse_overrides(filter(None, options.split(",")))}


def default_choice(value: Any, description: str | None = None) -> Any:
    """Return the default of a settings field that holds a part, directly or in a group: a name or a mapping.

    It is validated when it is used, not when the class is defined, because this may import torch.
    """
    return Field(value, validate_default=True, description=description)


@cache
def _find_registrations(module: str, noun: str) -> tuple[str, ...]:
    """Return the names in the calls `register_noun("name", …)` of a module, without importing it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text("utf-8")
    return tuple(re.findall(rf'^register_{noun}\("([^"]+)"', source, re.MULTILINE))


@cache
def _parameters(build: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(build).parameters)


def _derive_options(
    noun: str, kind: str, build: Callable[..., Any], provided: frozenset[str]
) -> dict[str, tuple[Any, Any]]:
    """Return a settings field for each parameter of a builder that is not provided."""
    function: Any = build.__init__ if inspect.isclass(build) else build
    hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, tuple[Any, Any]] = {}
    for name, parameter in inspect.signature(build).parameters.items():
        if name in provided or name == "settings":
            continue
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise ConfigError(
                f"The {noun} '{kind}' cannot be registered: its parameter {parameter} cannot be set by name. Replace "
                "it with one keyword parameter for each option."
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints.get(name, Any), default)
    return fields


def _class_name(kind: str) -> str:
    return "".join(part.capitalize() for part in kind.replace("-", "_").split("_"))


def plugins_of(settings: Settings) -> list[str]:
    """Return the plugins that registered parts of these settings, without duplicates."""
    found: dict[str, None] = {}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Choice) and part.kind in part.registry.plugins:
                found[part.registry.plugins[part.kind]] = None
            if isinstance(part, Settings):
                found |= dict.fromkeys(plugins_of(part))
    return list(found)


@contextmanager
def _importing_plugin(name: str) -> Iterator[None]:
    """Attribute registrations inside the block to a plugin, and report its errors with its name."""
    token = _importing.set(name)
    try:
        yield
    except RegardError:
        raise
    except SystemExit as error:
        raise ConfigError(
            f"The plugin {name} could not be imported: it calls sys.exit({error.code}). Remove the call, or move it "
            'under `if __name__ == "__main__":`.'
        ) from error
    except Exception as error:
        raise ConfigError(
            f"The plugin {name} could not be imported: {type(error).__name__}: {error}. Correct it, or uninstall it. "
            "--debug prints the traceback."
        ) from error
    finally:
        _importing.reset(token)


def load_installed_plugins() -> None:
    """Load the installed plugins, once: the entry points of the group `regard.plugins`."""
    for entry in _find_entry_points():
        if entry.value not in _loaded:
            _loaded.add(entry.value)
            try:
                with _importing_plugin(entry.value):
                    entry.load()
            except BaseException:
                _loaded.remove(entry.value)
                raise


_loaded: set[str] = set()


@cache
def _find_entry_points() -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=ENTRY_POINTS))


def import_plugins(names: str | Iterable[str]) -> None:
    """Import plugins: modules by name, or Python files by path."""
    if not isinstance(names, Iterable) or isinstance(names, bytes):
        raise ArgumentTypeError(f"imports must be names of modules or paths of .py files, not {names!r}.")
    for name in [names] if isinstance(names, str) else names:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"imports must be names of modules or paths of .py files, not {name!r}.")
        with _importing_plugin(name):
            _import_file(name) if name.endswith(".py") else _import_module(name)
        _imported[name] = None


_imported: dict[str, None] = {}
"""The plugins that were imported, as the user named them."""


def imported_plugins() -> tuple[str, ...]:
    """Return the plugins that were imported by `import_plugins`, so that another process can import them."""
    return tuple(_imported)


def _import_module(name: str) -> None:
    try:
        with _working_directory_on_path():
            spec = None if name in sys.modules else importlib.util.find_spec(name)
            if spec is None or spec.origin is None or _module_name(Path(spec.origin)) not in _files:
                importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"There is no module '{name}' to import. Check the name, install its package, or pass the path of a .py "
            "file."
        ) from None


_files: dict[str, str] = {}
"""The plugins that were imported from files, as the user named them, by the name of the module."""


def _module_name(path: Path) -> str:
    """Return the name of the module of a file. No other module has it, although a plugin may be called random.py."""
    digest = sha256(os.fsencode(path.resolve())).hexdigest()
    return f"regard_plugin_{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}_{digest[:16]}"


def _import_file(file: str) -> None:
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"There is no file {path} to import. Check the path.")
    name = _module_name(path)
    existing = getattr(sys.modules.get(path.stem), "__file__", None)
    if name in _files or (existing is not None and Path(existing).resolve() == path.resolve()):
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name], _files[name] = module, file
    try:
        spec.loader.exec_module(module)
    except BaseException:  # as `import` does: another attempt must fail again
        del sys.modules[name], _files[name]
        raise


@contextmanager
def _working_directory_on_path() -> Iterator[None]:
    """Find modules in the working directory too, as `python -m` does."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")
