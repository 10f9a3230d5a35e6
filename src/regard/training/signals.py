"""Signals: the first SIGINT or SIGTERM requests an orderly stop, the second one exits immediately.

During training, the request is checked after each step, and the state is saved. Before training, there is no state to
save, and the signal interrupts the process wherever it is.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from regard.errors import Interrupted
from regard.operating_system import STOP_SIGNALS


@dataclass
class StopRequest:
    """Whether a stop of the run has been requested, and by which signal."""

    by: signal.Signals | None = None
    deferred: bool = False
    """Whether the request is checked after each step. If not, a signal raises an exception."""
    resumed: bool = False
    """Whether the run was trained before."""
    importing: bool = False
    """Whether modules are being imported. Then a signal ends the process."""

    def __bool__(self) -> bool:
        return self.by is not None

    def describe(self) -> str:
        assert self.by is not None
        if self.resumed:
            return f"Stopped by {self.by.name} before training was resumed. Run the same command to resume."
        return f"Stopped by {self.by.name} before training started. Run the same command to start again."

    @contextmanager
    def imports(self) -> Iterator[None]:
        """Within the block, a signal ends the process. It must not raise an exception during the import of torch, which
        takes seconds: native libraries may ignore the exception, and be initialized only in part.
        """
        self.importing = True
        yield
        self.importing = False


def exit_on_signals() -> None:
    """From now on, until `stop_on_signals`, SIGINT and SIGTERM end the process with the exit code of `Interrupted`."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        _exit_with_message(f"Stopped by {signal.Signals(number).name}. Run the same command again.")

    if threading.current_thread() is threading.main_thread():
        for number in STOP_SIGNALS:
            signal.signal(number, end)


def exit_on_interrupts_of_imports() -> None:
    """From now on, SIGINT ends the process while modules are imported. At other times, it raises KeyboardInterrupt.

    A native library that is interrupted while it is imported raises other exceptions, or aborts the process.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        caller = frame
        while caller is not None:
            if caller.f_code.co_filename.startswith("<frozen importlib"):
                _exit_with_message("Stopped.", 128 + number)
            caller = caller.f_back
        signal.default_int_handler(number, frame)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)


def _exit_with_message(message: str, code: int = Interrupted.exit_code) -> NoReturn:
    """End the process in a signal handler, where other code may be in any state."""
    with suppress(OSError, AttributeError, ValueError):  # stderr may be closed
        os.write(sys.stderr.fileno(), f"regard: {message}\n".encode())
    os._exit(code)


class _Stopped(KeyboardInterrupt):
    """Raised by a signal. It is a `KeyboardInterrupt`, so that `except Exception` does not catch it."""


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into `Interrupted`. Once the request is `deferred`, signals only set it.

    Outside the main thread, where Python does not allow signal handlers, the request is never set.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def request_stop(number: int, frame: FrameType | None) -> None:
        del frame
        if request:
            os._exit(128 + number)
        request.by = signal.Signals(number)
        if request.importing:
            _exit_with_message(request.describe())
        if not request.deferred:
            raise _Stopped

    previous = {number: signal.signal(number, request_stop) for number in STOP_SIGNALS}
    try:
        yield request
        if request and not request.deferred:  # a native library ignored the exception
            raise _Stopped
    except _Stopped:
        raise Interrupted(request.describe()) from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
