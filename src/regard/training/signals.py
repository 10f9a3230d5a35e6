"""Signals: the first SIGINT or SIGTERM requests an orderly stop, the second one exits immediately."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """Whether a stop of the run has been requested, and by which signal."""

    by: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.by is not None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a stop request, which the training loop checks after each step.

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

    previous = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
