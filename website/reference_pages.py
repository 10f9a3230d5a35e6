"""The reference of the site, generated from the code: commands, settings and public Python names."""

import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import annotated_types
import click
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import regard
from regard.cli.manual import list_options, parse_help, walk_commands
from regard.cli.verbs import regard as program
from regard.config import Settings
from regard.registry import Choice
from regard.runs.settings import RunSettings

BOUNDS: Final = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
KIND: Final = "kind: "
HUGE: Final = 10**9
"""Limits of this size only reject typos, and are not printed."""


def render_commands() -> str:
    """Return the page of all commands, with their options and examples."""
    lines = ["# Commands", "", "For everyone who uses the command line: every command, with all options.", ""]
    for context in walk_commands(click.Context(program, info_name="regard")):
        command = context.command
        lines += [f"## {context.command_path}", "", *_paragraphs(command.help or ""), ""]
        lines += ["```text", f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}", "```", ""]
        lines += table_lines(["option", "meaning"], [[f"`{name}`", text] for name, text in list_options(context)])
        lines += _paragraphs(command.epilog or "")
    return "\n".join(lines)


def render_settings() -> str:
    """Return the page of all settings, with their types, ranges, defaults and meanings."""
    lines = [
        "# Settings",
        "",
        "For everyone who trains models: every setting, with its range and default. Write settings to a YAML file, or "
        "set them on the command line: `regard train dates training.steps=500 model.attention=luong-general`.",
        "",
    ]
    for title, schema in list_sections():
        lines += [f"## {title}", "", *_paragraphs(_summary(schema)), ""]
        rows = [[f"`{name}`", *cells] for name, *cells in list_settings(schema)]
        lines += table_lines(["setting", "type and range", "default", "meaning"], rows)
    return "\n".join(lines)


def render_python() -> str:
    """Return the page of the public names of `import regard`."""
    lines = ["# Python", "", "For everyone who uses regard from Python: every public name of `import regard`.", ""]
    for name in regard.__all__:
        part = getattr(regard, name)
        lines += [f"## {name}", "", "```python", _signature(name, part), "```", "", *_docstring(part), ""]
        if isinstance(part, type):
            for method, function in _methods(part):
                lines += [f"### {name}.{method}", "", "```python", _signature(method, function), "```", ""]
                lines += [*_docstring(function), ""]
    return "\n".join(lines)


def list_sections() -> Iterator[tuple[str, type[Settings]]]:
    """Yield the groups of settings, and the parts that they can be set to, each with a title."""
    pending: list[tuple[str, type[Settings]]] = [("Run", RunSettings)]
    seen = set()
    while pending:
        title, schema = pending.pop(0)
        if schema in seen:
            continue
        seen.add(schema)
        yield title, schema
        for name, field in schema.model_fields.items():
            group = title.partition(" = ")[0]
            path = name if group == "Run" else f"{group}.{name}"
            pending += [(f"{path}{suffix}", nested) for suffix, nested in _nested(field.annotation)]


def list_settings(schema: type[Settings]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the name of each setting, its type and range, its default, and its meaning."""
    documented = _arguments(schema)
    for name, field in schema.model_fields.items():
        if name == "kind":
            continue
        meaning = field.description or documented.get(name, "")
        if not meaning and (nested := list(_nested(field.annotation))):
            meaning = "one of the kinds below" if len(nested) > 1 else "a group of settings, below"
        yield name, describe_type(field.annotation, field.metadata), _default(field), meaning


def describe_type(annotation: Any, metadata: typing.Sequence[Any] = ()) -> str:
    """Return a type and its range as people write them."""
    if typing.get_origin(annotation) is Annotated:
        inner, *more = typing.get_args(annotation)
        return describe_type(inner, [*metadata, *more])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = typing.get_args(annotation)
        parts = dict.fromkeys(describe_type(each, metadata) for each in members if each is not types.NoneType)
        names = [part.removeprefix(KIND) for part in parts if part.startswith(KIND)]
        rest = [part for part in parts if not part.startswith(KIND)]
        named = [KIND + ", ".join(names)] if names else []
        return ", or ".join([*named, *rest, *(["`null`"] if types.NoneType in members else [])])
    if typing.get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(annotation))
    if typing.get_origin(annotation) in (tuple, list):
        inner = next(each for each in typing.get_args(annotation) if each is not Ellipsis)
        return f"list of {describe_type(inner)}"
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        kinds = annotation.kinds()
        return KIND + ", ".join(f"`{kind}`" for kind in kinds) if kinds else "group"
    types_by_name = {bool: "`true`, `false`", int: "integer", float: "number", str: "text", dict: "mapping"}
    name = types_by_name.get(annotation, getattr(annotation, "__name__", "any value"))
    return " ".join([name, ", ".join(_describe_bounds(metadata))]).strip()


def _describe_bounds(metadata: typing.Sequence[Any]) -> Iterator[str]:
    """Yield the lower and the upper bound. If there are several, the closest one counts."""
    constraints = [inner for each in metadata for inner in (each.metadata if isinstance(each, FieldInfo) else [each])]
    for signs, closest in ((("gt", "ge"), max), (("lt", "le"), min)):
        found = [
            (value, BOUNDS[sign])
            for constraint in constraints
            if isinstance(constraint, annotated_types.BaseMetadata)
            for sign in signs
            if (value := getattr(constraint, sign, None)) is not None
        ]
        if found and abs((bound := closest(found, key=lambda each: each[0]))[0]) < HUGE:
            yield f"{bound[1]} {bound[0]:,}"


def _nested(annotation: Any) -> Iterator[tuple[str, type[Settings]]]:
    """Yield the settings classes that a field can hold, with what distinguishes their titles."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        if not issubclass(annotation, Choice) or "registry" not in annotation.__dict__:
            kinds: Mapping[str, type[Settings]] = annotation.kinds()
        else:
            registry = annotation.registry
            kinds = {kind: annotation.of_kind(kind) for kind in registry.names if kind not in registry.plugins}
        if kinds:
            yield from ((f" = {kind}", schema) for kind, schema in kinds.items())
        else:
            yield "", annotation
        return
    for member in typing.get_args(annotation):
        yield from _nested(member)


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    default = field.default
    if isinstance(default, Settings):
        kind = getattr(default, "kind", None)
        return f"`{kind}`" if kind else ""
    if default is None or default is True or default is False:
        return {None: "`null`", True: "`true`", False: "`false`"}[default]
    if default in ((), [], {}, ""):
        return ""
    return f"`{list(default) if isinstance(default, tuple) else default}`"


def _summary(schema: type[Settings]) -> str:
    """Return the first paragraph of a class, unless it is inherited from pydantic or says nothing."""
    text = inspect.cleandoc(schema.__doc__ or "").partition("\n\n")[0]
    return "" if text == inspect.cleandoc(Settings.__doc__ or "") else text


def _arguments(part: Any) -> dict[str, str]:
    """Return the meaning of each argument that the docstring of a part describes."""
    found: dict[str, str] = {}
    section = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)+)", inspect.cleandoc(part.__doc__ or ""), re.MULTILINE)
    for entry in re.split(r"\n(?=    \S)", section.group(1)) if section else ():
        name, _, meaning = entry.strip().partition(":")
        found[name.strip()] = " ".join(meaning.split())
    return found


def _signature(name: str, part: Any) -> str:
    """Return a name with its parameters, without the modules of their types."""
    try:
        signature = inspect.signature(part)
    except ValueError:  # an exception
        return name
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    return name + re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", str(signature.replace(parameters=parameters)))


def _methods(part: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class defines itself and documents."""
    for name, member in vars(part).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield name, function


def _docstring(part: Any) -> list[str]:
    """Return a docstring as Markdown: sections are definition tables."""
    text = inspect.cleandoc(part.__doc__ or "")
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        heading, _, rest = paragraph.partition("\n")
        if re.fullmatch(r"(Args|Attributes|Raises|Returns|Yields):", heading) and rest.startswith("    "):
            entries = re.split(r"\n(?=    \S)", rest)
            rows = [
                [f"`{entry.strip().partition(':')[0]}`", " ".join(entry.partition(":")[2].split())] for entry in entries
            ]
            lines += table_lines([heading.rstrip(":"), ""], rows)
        elif paragraph.startswith("    "):
            lines += ["```python", inspect.cleandoc(paragraph), "```", ""]
        else:
            lines += [paragraph.replace("<", "&lt;"), ""]
    return lines


def _paragraphs(text: str) -> list[str]:
    """Return a help text as Markdown."""
    lines: list[str] = []
    for title, kept, is_kept in parse_help(text):
        if is_kept:
            lines += [*([f"{title}:"] if title else []), "", "```text", inspect.cleandoc("\n".join(kept)), "```", ""]
        else:
            lines += [kept[0].replace("<", "&lt;").replace("*", r"\*"), ""]
    return lines


def table_lines(header: list[str], rows: list[list[str]]) -> list[str]:
    if not rows:
        return []
    escaped = [[" ".join(cell.split()).replace("|", r"\|").replace("<", "&lt;") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *escaped]] + [""]
