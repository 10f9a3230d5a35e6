"""The command line: one module for each verb, imported when it is used. Help needs no torch."""

import sys

import click

from regard.cli.failures import reported
from regard.cli.verbs import regard


def main() -> None:
    """The entry point of the `regard` command."""
    arguments = sys.argv[1:]
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in ours
    with reported(debug=debug):
        words = [word for word in arguments if word != "--debug"]
        code = regard.main(words, standalone_mode=False, prog_name="regard")
        if code:
            raise click.exceptions.Exit(code)
