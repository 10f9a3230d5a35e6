"""The group of verbs; each is a module of the same name whose `command` is imported only when it is used."""

import importlib
import logging
import sys

import click

from regard.formatting import did_you_mean
from regard.version import __version__

VERBS = {
    "train": "train a model, or go on with one that was stopped",
    "predict": "answer text: from the arguments, or a line at a time from stdin",
    "evaluate": "score a model on pairs",
    "look": "draw what a model looks at while it answers, or how it learned",
    "data": "check pairs for problems (check), or count and measure them (stats)",
    "presets": "list the settings that come with regard",
    "explain": "say what a config computes, which kernels it takes and why",
    "mechanisms": "list the mechanisms of attention by their names in the literature",
}

EXAMPLES = """\b
Examples:
  regard train dates
  regard look runs/dates "3 mai 2009"
  regard predict runs/dates < dates.txt > iso.txt
  regard evaluate runs/dates --pairs test.tsv --min accuracy=0.99

Every verb takes -h, and --debug for a full traceback. Exit codes: 0 done, 1 the answer is no, 2 usage or
settings, 3 data, 4 model, 5 diverged, 6 run in use, 7 disk or memory, 70 a bug, 75 stopped by a signal."""


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"regard.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            near = did_you_mean(args[0], VERBS)
            raise click.UsageError(f"There is no verb '{args[0]}'.{near} Verbs: {', '.join(VERBS)}.", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


class _Once(logging.Filter):
    """A file that is gone through several times is complained of once."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        new = message not in self._said
        self._said.add(message)
        return new


def _print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    del parameter
    if value:
        click.echo(f"regard {__version__}")
        ctx.exit()


@click.group(cls=_Verbs, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version)
def regard() -> None:
    """Sequence-to-sequence learning with attention: train it, run it fast, and see what it looks at."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("note: %(message)s"))
    handler.addFilter(_Once())
    logger = logging.getLogger("regard")
    logger.handlers = [handler]
    logger.propagate = False
