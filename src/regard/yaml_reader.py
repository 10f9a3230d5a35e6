"""Read and write YAML 1.2: the scalars of its core schema, no duplicate keys, and limits on length, depth and aliases.

PyYAML reads YAML 1.1, in which `0100` is 64, `1:30` is 90 and `no` is false. It also expands aliases without a limit,
so that a file of 1 kB can fill the memory.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import yaml

from regard.errors import ConfigError
from regard.regular_files import open_regular

KeyPath = tuple[str | int, ...]
"""The keys and indices that lead to a value."""

SUFFIXES = {".yaml", ".yml"}
MAX_LENGTH = 200_000
"""The maximum number of characters. Settings are shorter; anything longer is another kind of file."""
_MAX_BYTES = 4 * MAX_LENGTH  # a character has at most 4 bytes in UTF-8
MAX_DEPTH = 50
MAX_NODES = 10_000
"""The maximum number of scalars, lists and mappings after the expansion of aliases."""
_MAX_DIGITS = 100
"""The maximum length of an integer; Python does not parse integers of more than 4,300 digits."""

_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"
_TOO_MANY = f"it has more than {MAX_NODES:,} values, with aliases (*name) replaced by their values"

_TAG = "tag:yaml.org,2002:"
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
)


class YAMLSyntaxError(ValueError):
    """Text is not valid YAML 1.2, or it exceeds a limit. `line` counts from 1; it is None if it is not known."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


class _Loader(yaml.SafeLoader):
    """A loader of the core schema of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - declared by PyYAML as an instance variable
    yaml_constructors: ClassVar[dict[Any, Any]] = {
        tag: yaml.SafeLoader.yaml_constructors[tag] for tag in (f"{_TAG}str", f"{_TAG}seq", f"{_TAG}map", None)
    }

    _depth = 0
    _nodes = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        self._depth += 1
        self._nodes += 1
        if self._depth > MAX_DEPTH:
            raise YAMLSyntaxError(_TOO_DEEP, self.line + 1)
        if self._nodes > MAX_NODES:
            raise YAMLSyntaxError(_TOO_MANY, self.line + 1)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def fetch_flow_collection_start(self, token: Any) -> None:
        # The scanner reads ahead of the composer, and takes quadratic time for open brackets.
        if self.flow_level >= MAX_DEPTH:
            raise YAMLSyntaxError(_TOO_DEEP, self.line + 1)
        super().fetch_flow_collection_start(token)


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes every string that YAML 1.1 or YAML 1.2 reads as another type."""


def _construct(expression: re.Pattern[str], noun: str, convert: Callable[[str], Any]) -> Callable[[Any, Any], Any]:
    """Return the constructor of a scalar. An explicit tag (`!!int x`) may precede text of another type."""

    def construct(loader: _Loader, node: yaml.ScalarNode) -> Any:
        text = str(loader.construct_scalar(node))
        if not expression.fullmatch(text):
            problem = f"{text[:_MAX_DIGITS]!r} is not {noun}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return convert(text)

    return construct


def _parse_int(text: str) -> int | float:
    if len(text) > _MAX_DIGITS:
        return float("inf")  # out of the range of every setting
    return int(text, 0) if text[:2] in {"0x", "0o"} else int(text)


def _parse_float(text: str) -> float:
    return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))


def _register() -> None:
    scalars: list[tuple[str, re.Pattern[str], str, Callable[[str], Any]]] = [
        ("null", _NULL, "null", lambda _: None),
        ("bool", _BOOL, "true or false", lambda text: text.lower() == "true"),
        ("int", _INT, "an integer", _parse_int),
        ("float", _FLOAT, "a number", _parse_float),
    ]
    for name, expression, noun, convert in scalars:
        _Loader.add_constructor(_TAG + name, _construct(expression, noun, convert))
        whole = re.compile(f"^(?:{expression.pattern})$")
        for loader_or_dumper in (_Loader, _Dumper):
            loader_or_dumper.add_implicit_resolver(_TAG + name, whole, None)
    _Loader.add_implicit_resolver(f"{_TAG}merge", re.compile("^<<$"), ["<"])


_register()


def load_yaml(text: str) -> tuple[Any, yaml.Node | None]:
    """Read one document → (value, its node, which has line numbers). Raise YAMLSyntaxError."""
    if len(text) > MAX_LENGTH:
        raise YAMLSyntaxError(f"it has {len(text):,} characters, and settings have at most {MAX_LENGTH:,}")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, None
        _check_size(node)
        _check_keys(node)
        return loader.construct_document(node), node
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise YAMLSyntaxError(_describe(error), mark.line + 1 if mark else None) from None


def _describe(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    context = getattr(error, "context", None)
    # "expected a single document in the stream", "but found another document"
    return f"{context}, {problem}" if context and problem.startswith("but ") else str(problem)


def dump_yaml(value: Any) -> str:
    """Write a value so that YAML 1.1 and YAML 1.2 read it alike."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _check_size(root: yaml.Node) -> None:
    """Raise an error if aliases expand to too many nodes, or if a node contains itself."""
    sizes: dict[int, int] = {}

    def measure(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = MAX_NODES  # the size of a node that contains itself
            sizes[id(node)] = 1 + sum(map(measure, _children(node)))
        return sizes[id(node)]

    if measure(root) > MAX_NODES:
        raise YAMLSyntaxError(_TOO_MANY)


def _check_keys(root: yaml.Node) -> None:
    """Raise an error for a key that a mapping contains twice. PyYAML would keep the last one."""
    checked: set[int] = set()
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if id(node) in checked:
            continue
        checked.add(id(node))
        nodes += _children(node)
        if isinstance(node, yaml.MappingNode):
            keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            counts = Counter((key.tag, key.value) for key in keys)
            for key in reversed(keys):
                if counts[key.tag, key.value] > 1:
                    problem = f"the key '{key.value[:_MAX_DIGITS]}' occurs twice"
                    raise YAMLSyntaxError(problem, key.start_mark.line + 1)


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """Read a YAML mapping → (mapping, line number of each key)."""
    try:
        with open_regular(path) as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ConfigError(f"{path} is too long to contain settings.{_data_hint(path)}")
        tree, node = load_yaml(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except YAMLSyntaxError as error:
        where = f"{path}:{error.line}" if error.line else str(path)
        raise ConfigError(f"{where} is not valid YAML: {error}.{_data_hint(path)}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} does not contain settings as `key: value` lines.{_data_hint(path)}")
    return tree, dict(_key_lines(node, ()))


def _data_hint(path: Path) -> str:
    """Explain how to train on a data file that was passed instead of settings; empty for a YAML file."""
    if path.suffix in SUFFIXES:
        return ""
    return f" To train on data, use --pairs {path}, or --source and --target with two parallel files."


def _key_lines(node: yaml.Node | None, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*path, key.value), key.start_mark.line + 1
            yield from _key_lines(value, (*path, key.value))
