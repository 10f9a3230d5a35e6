"""The command line: one module per command, imported on first use. Help does not import torch."""

import sys

import click

from regard.cli.failures import report_failures
from regard.formatting import open_lossy_stderr
from regard.operating_system import use_utf8
from regard.training.signals import exit_on_interrupts_of_imports, exit_on_signals


def main() -> None:
    """Run the `regard` command."""
    arguments = sys.argv[1:]
    if arguments[:1] in (["train"], ["sweep"]):
        exit_on_signals()  # the imports take a second
    else:
        exit_on_interrupts_of_imports()
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in options
    use_utf8()
    sys.stderr = open_lossy_stderr()
    with report_failures(debug=debug):
        from regard.cli.verbs import regard

        words = [word for word in arguments if word != "--debug"]
        code = regard.main(words, standalone_mode=False, prog_name="regard")
        if code:
            raise click.exceptions.Exit(code)
