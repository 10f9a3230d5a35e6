"""regard manual"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

from regard.errors import ConfigError
from regard.version import __version__

FOLDER: Final = Path("~/.local/share/man/man1")
"""Where `man` finds the pages of one user."""

EXAMPLES = """\b
Examples:
  regard manual                       # then: man regard-train
  regard manual --out /usr/local/share/man/man1"""


@click.command(epilog=EXAMPLES)
@click.option("--out", metavar="DIR", type=Path, default=FOLDER, show_default=True, help="Write the pages to DIR.")
def command(out: Path) -> None:
    """Write manual pages for regard and each of its commands, so that `man regard-train` shows the help.

    Print the names of the files on stdout.
    """
    root = click.get_current_context().find_root()
    folder = out.expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for context in walk_commands(root):
            path = folder / f"{context.command_path.replace(' ', '-')}.1"
            path.write_text(render_page(context), "utf-8")
            click.echo(path)
    except OSError as error:
        raise ConfigError(f"The manual pages cannot be written to {folder}: {error.strerror}.") from None


def render_page(context: click.Context) -> str:
    """Return the manual page of a command, in the format of troff."""
    command = context.command
    title = context.command_path.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(context))
    summary = command.get_short_help_str(limit=200).rstrip(".")
    lines = [
        f'.TH "{title.upper()}" 1 "" "regard {__version__}" "regard"',
        ".SH NAME",
        _escape(f"{title} - {summary}"),
        ".SH SYNOPSIS",
        f".B {_escape(context.command_path)}",
        _escape(usage),
        ".SH DESCRIPTION",
        *_render_text(command.help or ""),
    ]
    if options := list_options(context):
        lines += [
            ".SH OPTIONS",
            *(line for name, text in options for line in (".TP", f".B {_escape(name)}", _escape(text))),
        ]
    if subcommands := _list_subcommands(context):
        lines.append(".SH COMMANDS")
        for name, subcommand in subcommands:
            lines += [".TP", f".BR {_escape(f'{title}-{name}')} (1)", _escape(subcommand.get_short_help_str(limit=200))]
    lines += _render_text(command.epilog or "")
    return "\n".join(lines) + "\n"


def walk_commands(context: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of a command and of its subcommands, without running them."""
    yield context
    for name, subcommand in _list_subcommands(context):
        yield from walk_commands(click.Context(subcommand, context, name))


def list_options(context: click.Context) -> list[tuple[str, str]]:
    """Return the options of a command, with their help."""
    records = [parameter.get_help_record(context) for parameter in context.command.get_params(context)]
    return [record for record in records if record and record[1]]


class Paragraph(NamedTuple):
    """A part of a help text: lines that are kept, or a single line that is wrapped."""

    title: str
    lines: list[str]
    is_kept: bool


def parse_help(text: str) -> Iterator[Paragraph]:
    """Yield the paragraphs of a help text. Click marks those that keep their lines with a backspace. Their first
    line, if it ends in a colon, is a title.
    """
    for paragraph in filter(None, re.split(r"\n\s*\n", inspect.cleandoc(text))):
        if not paragraph.startswith("\b"):
            yield Paragraph("", [" ".join(paragraph.split())], is_kept=False)
            continue
        first, *rest = paragraph.removeprefix("\b").lstrip("\n").splitlines()
        yield Paragraph(first[:-1], rest, is_kept=True) if first.endswith(":") else Paragraph("", [first, *rest], True)


def _list_subcommands(context: click.Context) -> list[tuple[str, click.Command]]:
    group = context.command
    if not isinstance(group, click.Group):
        return []
    found = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    return [(name, command) for name, command in found if command is not None]


def _render_text(text: str) -> Iterator[str]:
    """Yield the lines of a help text in the format of troff. A title starts a section."""
    for title, lines, is_kept in parse_help(text):
        yield f".SH {_escape(title.upper())}" if title else ".PP"
        yield from (".nf", *map(_escape, lines), ".fi") if is_kept else map(_escape, lines)


def _escape(text: str) -> str:
    """Escape what troff would interpret: backslashes, minus signs, and a period or an apostrophe at the start."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped
