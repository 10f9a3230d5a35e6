"""Options shared by several commands: settings of the search, data files and their columns, ensembles, options with
several values, engines.
"""

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import click

from regard.config import Settings
from regard.decoding.settings import EngineName, Precision, SearchSettings
from regard.formatting import quote
from regard.overrides import parse_overrides

if TYPE_CHECKING:
    from regard.data.settings import Files

F = TypeVar("F", bound=Callable[..., Any])

IMAGES = (
    "Folder or zip file of images, which --pairs refers to: TSV, or captions of Flickr8k, COCO or Karpathy's splits. "
    "Without --pairs, the name of each image is its caption."
)


class _QuantityType(click.ParamType[Any]):
    """The type of an option with a number: a type of `regard.quantities`, so that it has a range."""

    name = "number"

    def __init__(self, quantity: Any) -> None:
        self._quantity = quantity

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(self._quantity).validate_python(value)
        except ValidationError as error:
            self.fail(f"{quote(value)}: {error.errors()[0]['msg'].lower()}.", param, ctx)


def number_option(flag: str, quantity: Any, metavar: str, text: str, default: float | None = None) -> Callable[[F], F]:
    """Return an option with a number in the range of a type of `regard.quantities`. A default is shown."""
    shown = default is not None
    return click.option(
        flag, metavar=metavar, type=_QuantityType(quantity), default=default, show_default=shown, help=text
    )


def setting_option(
    schema: type[Settings], name: str, metavar: str, text: str, *, show_default: bool = False
) -> Callable[[F], F]:
    """Return an option for a setting, with its range and, if it is shown, its default."""
    field = schema.model_fields[name]
    quantity = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    return number_option(
        f"--{name.replace('_', '-')}", quantity, metavar, text, field.default if show_default else None
    )


def search_options(beam: str) -> Callable[[F], F]:
    """Return the options --beam, with this help, and --set, for commands whose default is the search of validation."""
    text = "Set a search setting; see regard predict -h."
    settings = click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help=text)
    return lambda function: setting_option(SearchSettings, "beam", "K", beam)(settings(function))


def parse_search_options(beam: int | None, settings: Sequence[str]) -> dict[str, Any]:
    """Return the values of --beam and --set as settings of the search."""
    return parse_overrides(settings) | ({"beam": beam} if beam else {})


def reader_options(function: F) -> F:
    """Add --source, --target, --columns and --header, which are the same for every command."""
    source = click.option("--source", metavar="FILE", help="Source side of two parallel files; needs --target.")
    target = click.option("--target", metavar="FILE", help="Target side of two parallel files; needs --source.")
    columns = click.option(
        "--columns",
        nargs=2,
        metavar="A B",
        callback=_check_columns,
        help="Source and target columns: numbers from 1, names, or JSON keys such as translation.en. 1+3 joins two "
        "columns, such as a lemma and its tags.",
    )
    header = click.option(
        "--header/--no-header",
        default=None,
        help="Whether line 1 names the columns. By default this is detected and reported.",
    )
    return source(target(columns(header(function))))


def _check_columns(
    ctx: click.Context, parameter: click.Parameter, value: tuple[str, str] | None
) -> tuple[str, str] | None:
    if value and value[1].startswith("--"):
        first, _, second = value[0].partition(",")
        raise click.BadParameter(
            f"give two columns with a space between them, for example --columns {first} {second or 'B'}.",
            ctx,
            parameter,
        )
    return value


def file_settings(path: str, reader: dict[str, Any]) -> dict[str, Any]:
    """Return the settings for FILE, or for SOURCE,TARGET. Only a single file has columns and a header."""
    source, comma, target = path.partition(",")
    if comma and not os.path.exists(path):
        return {"source": source, "target": target}
    return {"path": path, **reader}


def reader_settings(columns: tuple[str, str] | None, header: bool | None) -> dict[str, Any]:
    """Return the values of --columns and --header as settings, without those that are not given."""
    return {**({"columns": columns} if columns else {}), **({} if header is None else {"header": header})}


def resolve_files(pairs: str | None, source: str | None, target: str | None, reader: dict[str, Any]) -> "Files | None":
    """Return the files of --pairs, or of --source and --target; None if there are none."""
    from regard.config import resolve
    from regard.data.settings import Files

    if pairs and (source or target):
        raise click.UsageError("Give --pairs, or --source and --target, not both.")
    if bool(source) != bool(target):
        raise click.UsageError("--source and --target must be used together.")
    if reader and not pairs:
        raise click.UsageError("--columns and --header need --pairs.")
    if not (pairs or source):
        return None
    return resolve(Files, {"path": pairs, "source": source, "target": target, **reader}, {})


ensemble_option = click.option(
    "--with", "others", metavar="MODEL", multiple=True, help="Add MODEL to an ensemble. Repeat for more models."
)


def engine_options(function: F) -> F:
    """Add --engine, --precision and --verbose, for commands that predict."""
    engine = click.option(
        "--engine",
        type=click.Choice(get_args(EngineName)),
        default="auto",
        show_default=True,
        help="Predict with torch, with ct2 (CTranslate2: Transformers on a CPU), with onnx (ONNX Runtime on a CPU), or "
        "with the fastest of torch and ct2 that returns the same text as torch (auto).",
    )
    precision = click.option(
        "--precision",
        type=click.Choice(get_args(Precision)),
        default="float32",
        show_default=True,
        help="Precision of the weights. int8 requires a CPU; it is less accurate, and usually faster.",
    )
    verbose = click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=_set_verbose,
        help="Print which engine is used, and why.",
    )
    return engine(precision(verbose(function)))


def _set_verbose(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    del ctx, parameter
    if value:
        logging.getLogger("regard").setLevel(logging.INFO)


accept_changes_option = click.option(
    "--accept-changes",
    is_flag=True,
    help="Use the model even if its config.yaml or tokenizers have been edited since it was saved.",
)


class MultiValueCommand(click.Command):
    """A command with options that accept all words up to the next option as values.

    If such an option comes before the arguments of the command, its first word is a value, and a later word only if
    `is_value` accepts it: in `--metric bleu runs/mine` the last word is the model.
    """

    def __init__(self, *args: Any, multi_value: Sequence[str], is_value: Callable[[str], bool], **options: Any) -> None:
        super().__init__(*args, **options)
        self._multi_value, self._is_value = multi_value, is_value

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        expanded: list[str] = []
        option: str | None = None
        after_argument = bool(args) and not args[0].startswith("-")
        for index, word in enumerate(args):
            if word == "--":
                expanded += args[index:]
                break
            if word.startswith("-"):
                option = word if word in self._multi_value else None
            elif option and args[index - 1] != option:
                if after_argument or self._is_value(word):
                    expanded.append(option)
                else:
                    option = None
            expanded.append(word)
        return super().parse_args(ctx, expanded)
