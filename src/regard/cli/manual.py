"""regard manual"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

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
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    if options := [record for record in records if record and record[1]]:
        lines += [
            ".SH OPTIONS",
            *(line for name, text in options for line in (".TP", f".B {_escape(name)}", _escape(text))),
        ]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None
            lines += [".TP", f".BR {_escape(f'{title}-{name}')} (1)", _escape(subcommand.get_short_help_str(limit=200))]
    lines += _render_text(command.epilog or "")
    return "\n".join(lines) + "\n"


def walk_commands(context: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of a command and of its subcommands, without running them."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            subcommand = context.command.get_command(context, name)
            assert subcommand is not None
            yield from walk_commands(click.Context(subcommand, context, name))


def _render_text(text: str) -> list[str]:
    """Return the lines of a help text. Click marks a paragraph that keeps its lines with a backspace. Its first
    line, if it ends in a colon, is the title of a section.
    """
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if not paragraph.startswith("\b"):
            lines += [".PP", _escape(" ".join(paragraph.split()))]
            continue
        first, *rest = paragraph.removeprefix("\b").lstrip("\n").splitlines()
        is_title = first.endswith(":")
        lines.append(f".SH {_escape(first[:-1].upper())}" if is_title else ".PP")
        lines += [".nf", *map(_escape, rest if is_title else [first, *rest]), ".fi"]
    return lines


def _escape(text: str) -> str:
    """Escape what troff would interpret: backslashes, minus signs, and a period or an apostrophe at the start."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped
