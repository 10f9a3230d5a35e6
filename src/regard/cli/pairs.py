"""The options for files of pairs and their columns, the same on every verb."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def reading_options(function: F) -> F:
    """--columns and --header, the same on every verb."""
    columns = click.option(
        "--columns",
        nargs=2,
        metavar="A B",
        callback=_two_words,
        help="The columns of source and target: numbers from 1, names, or JSON keys such as translation.en. 1+3 joins "
        "two columns, such as a lemma and its tags.",
    )
    header = click.option(
        "--header/--no-header",
        default=None,
        help="Whether line 1 names the columns. By default this is detected and reported.",
    )
    return columns(header(function))


def _two_words(ctx: click.Context, parameter: click.Parameter, value: tuple[str, str] | None) -> tuple[str, str] | None:
    if value and value[1].startswith("--"):
        first, _, second = value[0].partition(",")
        raise click.BadParameter(f"give two words, for example --columns {first} {second or 'B'}.", ctx, parameter)
    return value


def files_given(path: str, reading: dict[str, Any]) -> dict[str, Any]:
    """FILE, or SOURCE,TARGET for two parallel files, as settings; only a file of pairs has columns and a header."""
    source, comma, target = path.partition(",")
    if comma and not os.path.exists(path):
        return {"source": source, "target": target}
    return {"path": path, **reading}


def reading_given(columns: tuple[str, str] | None, header: bool | None) -> dict[str, Any]:
    """The given --columns and --header, as settings."""
    return {**({"columns": columns} if columns else {}), **({} if header is None else {"header": header})}
