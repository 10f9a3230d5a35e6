"""The group of commands. Each command is a module of the same name, whose `command` is imported on first use."""

import importlib
import keyword
import logging
import platform
import sys

import click

from regard.cli.completion import suggest_files
from regard.formatting import did_you_mean
from regard.version import __version__

VERBS = {
    "train": "Train a model, or resume one.",
    "predict": "Predict the output for texts, from arguments or from stdin.",
    "evaluate": "Score a model on pairs.",
    "sweep": "Train a grid of settings, or search for good ones, and compare the results.",
    "compare": "Compare runs, or outputs in files, with significance tests.",
    "look": "Draw the attention weights of a prediction, or learning curves.",
    "explore": "Explore predictions and attention weights of models in the browser.",
    "serve": "Serve models over HTTP, with the API of LibreTranslate and a page.",
    "align": "Align the words of pairs, and compute alignment error rate.",
    "export": "Write a model in the format of other software.",
    "import": "Import a Marian or Joey NMT model.",
    "data": "Check pairs for problems (check), or print statistics (stats).",
    "presets": "List the presets, or print one.",
    "explain": "Print what a model computes, what it costs and which kernels it uses.",
    "mechanisms": "List the attention mechanisms by name.",
    "course": "List the lessons of the course, or open one in Jupyter.",
    "completion": "Print a script for shell completion: bash, zsh or fish.",
    "manual": "Write manual pages for `man regard`.",
}

EXAMPLES = """\b
Examples:
  regard train dates
  regard look runs/dates "3 mai 2009"
  regard predict runs/dates < dates.txt > iso.txt
  regard evaluate runs/dates --pairs test.tsv --min accuracy=0.99

Every command accepts -h, --import MODULE (load a plugin) and --debug (print the full traceback of an error).

Exit codes: 0 success, 1 threshold missed or problems found, 2 usage or settings, 3 data, 4 model, 5 diverged,
6 run in use, 7 disk or memory, 70 bug, 75 stopped by a signal, can be resumed, 130 interrupted."""


def _import_plugins(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> None:
    del ctx, parameter
    if value:
        from regard.registry import import_plugins

        import_plugins(value)


def _add_import_option(command: click.Command) -> None:
    """Add --import to a command, and to the commands of a group."""
    option = click.Option(
        ["--import", "imports"],
        metavar="MODULE",
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=_import_plugins,
        help="Import a plugin: a module or .py file that registers scores, cells or other parts. Repeat for more.",
    )
    if all(parameter.name != option.name for parameter in command.params):
        command.params.append(option)
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        _add_import_option(subcommand)


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in VERBS:
            return None
        module = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command: click.Command = importlib.import_module(f"regard.cli.{module}").command
        _add_import_option(command)
        suggest_files(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            suggestion = did_you_mean(args[0], VERBS)
            raise click.UsageError(f"There is no command '{args[0]}'.{suggestion} Commands: {', '.join(VERBS)}.", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


class _Once(logging.Filter):
    """Print each message once, even if a file is read several times."""

    def __init__(self) -> None:
        super().__init__()
        self._printed: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = getattr(record, "once", record.getMessage())
        is_new = message not in self._printed
        self._printed.add(message)
        return is_new


def _print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    del parameter
    if value:
        import torch

        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        click.echo(f"regard {__version__}\nPython {platform.python_version()}, torch {torch.__version__}, {device}")
        ctx.exit()


@click.group(
    cls=_Verbs,
    epilog=EXAMPLES,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the versions of regard, Python and torch, and the device.",
)
def regard() -> None:
    """Sequence-to-sequence learning with attention: train it, run it fast, and see what it attends to."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("note: %(message)s"))
    handler.addFilter(_Once())
    logger = logging.getLogger("regard")
    logger.handlers = [handler]
    logger.setLevel(logging.WARNING)
    logger.propagate = False
