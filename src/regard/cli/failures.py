"""Failures at the command line: one paragraph on stderr and an exit code, never a traceback unless asked."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from regard.errors import RegardError, describe_disk_failure, is_disk_failure


@contextmanager
def reported(*, debug: bool) -> Iterator[None]:
    """Run a command; whatever goes wrong in it ends the process with its code."""
    try:
        if sys.stdout is None:
            _end("Standard output is closed. Give it somewhere to go, for example > /dev/null.", 7)
        yield
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        _exit(stop.exit_code)
    except click.ClickException as error:
        if debug:
            raise
        error.show()
        _exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _end("Stopped.", 130)
    except BrokenPipeError:
        # Whoever read the output has gone, as `head` does; there is nobody left to tell.
        _exit(1)
    except RegardError as error:
        if debug:
            raise
        _end(str(error), error.exit_code)
    except OSError as error:
        if debug:
            raise
        if is_disk_failure(error):
            problem, remedy = describe_disk_failure(error, "The output")
            _end(f"{problem}. {remedy.capitalize()} and try again.", 7)
        _end(f"{error.filename or 'A file'}: {error.strerror}.", 3)
    except MemoryError:
        _end("Memory gave out. Try a smaller --batch-size or model.", 7)
    except Exception as error:
        if debug:
            raise
        kind = type(error).__name__
        _end(f"This is a bug in regard: {kind}: {error}. Please report it with what --debug prints.", 70)


def _end(message: str, code: int) -> None:
    print(f"regard: {message}", file=sys.stderr)
    _exit(code)


def _exit(code: int) -> None:
    """End without a second complaint from an output that cannot be flushed."""
    try:
        sys.stdout.flush()
    except (OSError, AttributeError, ValueError):
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
