"""Signals: the first asks for an orderly stop, the second ends at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """Whether somebody has asked the run to stop, and by which signal."""

    by: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.by is not None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """SIGINT and SIGTERM become a request that the loop looks at after each step."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, frame: FrameType | None) -> None:
        del frame
        if request:
            os._exit(128 + number)
        request.by = signal.Signals(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
