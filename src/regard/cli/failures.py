"""Failures at the command line: one paragraph on stderr and an exit code; a traceback only with --debug."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from regard.errors import RegardError, describe_disk_failure, is_disk_failure


@contextmanager
def report_failures(*, debug: bool) -> Iterator[None]:
    """Run a command; print any failure and exit with its code."""
    try:
        if sys.stdout is None:
            _fail(f"Standard output is closed. Redirect it, for example with > {os.devnull}.", 7)
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
        _fail("Stopped.", 130)
    except RegardError as error:
        if debug:
            raise
        _fail(str(error), error.exit_code)
    except OSError as error:
        if _is_broken_pipe(error):
            _exit(1)
        if debug:
            raise
        if is_disk_failure(error):
            problem, remedy = describe_disk_failure(error, "The output")
            _fail(f"{problem}. {remedy.capitalize()} and try again.", 7)
        _fail(f"{error.filename or 'A file'}: {error.strerror}.", 3)
    except MemoryError:
        _fail("Out of memory. Try a smaller --batch-size or model.", 7)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
            _fail(
                f"The output cannot be written: {error.encoding} has no {error.object[error.start]!r}. Set the "
                "environment variable PYTHONIOENCODING=utf-8.",
                7,
            )
        kind = type(error).__name__
        _fail(f"This is a bug in regard: {kind}: {error}. Please report it with the output of --debug.", 70)


def _is_broken_pipe(error: OSError) -> bool:
    """Whether the reader of the output has exited, as `head` does. Windows reports this as an invalid argument."""
    if isinstance(error, BrokenPipeError):
        return True
    return sys.platform == "win32" and error.errno == errno.EINVAL and error.filename is None


def _fail(message: str, code: int) -> None:
    print(f"regard: {message}", file=sys.stderr)
    _exit(code)


def _exit(code: int) -> None:
    """Exit without a second error from an output that cannot be flushed."""
    try:
        sys.stdout.flush()
    except (OSError, AttributeError, ValueError):
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
