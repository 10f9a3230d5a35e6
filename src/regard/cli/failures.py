"""Failures at the command line: one paragraph on stderr and an exit code; a traceback only with --debug."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from regard.errors import (
    DivergedError,
    Interrupted,
    RegardError,
    describe_disk_failure,
    is_disk_failure,
    is_memory_failure,
)
from regard.formatting import short_path
from regard.operating_system import is_broken_pipe
from regard.training.ranks import get_rank


@contextmanager
def report_failures(*, debug: bool) -> Iterator[None]:
    """Run a command; print any failure and exit with its code."""
    if sys.stdout is None:
        _fail(f"Standard output is closed. Redirect it, for example with > {os.devnull}.", 7)
    try:
        yield
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        _exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("Stopped.", 130)
    except SystemExit as stop:
        caller = _find_caller(stop)
        if stop.code or caller.startswith(os.path.dirname(click.__file__)):  # click exits after shell completion
            raise
        _fail(f"{short_path(caller)} called sys.exit({stop.code}), so the command did not finish. Remove the call.", 2)
    except BaseException as error:
        if isinstance(error, OSError) and is_broken_pipe(error):
            _exit(1)
        if debug:
            raise
        _report(error)


def _find_caller(stop: SystemExit) -> str:
    """Return the file and the line of the call of `sys.exit`."""
    frame = traceback.extract_tb(stop.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _report(error: BaseException) -> NoReturn:
    """Print a failure, and exit with its code."""
    if isinstance(error, click.ClickException):
        error.show()
        _exit(error.exit_code)
    if isinstance(error, Interrupted | DivergedError) and get_rank():
        _exit(error.exit_code)  # rank 0 prints the message
    if isinstance(error, RegardError):
        _fail(str(error), error.exit_code)
    if isinstance(error, OSError) and is_disk_failure(error):
        problem, remedy = describe_disk_failure(error, "The output")
        _fail(f"{problem}. {remedy.capitalize()} and try again.", 7)
    if is_memory_failure(error):
        _fail("Out of memory. Try a smaller --batch-size or model, or raise the memory limit (ulimit -v).", 7)
    if isinstance(error, OSError):
        _fail(f"{error.filename or 'A file'}: {error.strerror}.", 3)
    if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
        _fail(
            f"The output cannot be written: {error.encoding} has no {error.object[error.start]!r}. Set the "
            "environment variable PYTHONIOENCODING=utf-8.",
            7,
        )
    kind = type(error).__name__
    _fail(f"This is a bug in regard: {kind}: {error}. Please report it with the output of --debug.", 70)


def _fail(message: str, code: int) -> NoReturn:
    rank = f" (rank {get_rank()})" if get_rank() else ""
    print(f"regard{rank}: {message}", file=sys.stderr)
    _exit(code)


def _exit(code: int) -> NoReturn:
    """Exit without a second error from an output that cannot be flushed."""
    try:
        sys.stdout.flush()
    except (OSError, AttributeError, ValueError):
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
