"""Options that several verbs share: files of pairs with their columns, models that predict together, repeated words."""

import os
from collections.abc import Callable, Sequence
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


with_others = click.option(
    "--with", "others", metavar="MODEL", multiple=True, help="Predict together with another model, as an ensemble."
)


class SeveralWords(click.Command):
    """A command some of whose options take all the words up to the next option.

    Where such an option stands before the command's own arguments, its first word is its own, and a further one only
    if it is `known`: in `--metric bleu runs/mine` the last word is the model.
    """

    def __init__(self, *args: Any, several: Sequence[str], known: Callable[[str], bool], **options: Any) -> None:
        super().__init__(*args, **options)
        self._several, self._known = several, known

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spelled: list[str] = []
        option: str | None = None
        begun = bool(args) and not args[0].startswith("-")
        for place, word in enumerate(args):
            if word == "--":
                spelled += args[place:]
                break
            if word.startswith("-"):
                option = word if word in self._several else None
            elif option and args[place - 1] != option:
                if begun or self._known(word):
                    spelled.append(option)
                else:
                    option = None
            spelled.append(word)
        return super().parse_args(ctx, spelled)
