"""Streaming input: items are processed in large chunks while they arrive fast, and at once when the input pauses."""

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

PAUSE = 0.05
"""The longest time, in seconds, that an item waits for others to join its chunk."""


def read_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of up to `size` items, in order. A list ends if it is full, or `PAUSE` seconds after its first item.

    A thread reads ahead, up to `size` items. If reading fails, the items before the failure are yielded before the
    exception is raised.
    """
    ahead = queue.Queue[T | _End](size)
    # A daemon thread, because a read from an idle pipe cannot be interrupted.
    threading.Thread(target=_read, args=(items, ahead), daemon=True).start()
    while True:
        chunk: list[T] = []
        item = ahead.get()
        deadline = time.monotonic() + PAUSE
        while not isinstance(item, _End):
            chunk.append(item)
            if len(chunk) == size:
                break
            try:
                item = ahead.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
        if chunk:
            yield chunk
        if isinstance(item, _End):
            if item.failure is not None:
                raise item.failure
            return


class _End:
    """The end of the input, and the exception that caused it, if any."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure


def _read(items: Iterable[T], ahead: "queue.Queue[T | _End]") -> None:
    try:
        for item in items:
            ahead.put(item)
    except Exception as error:  # raised again where the items are used
        ahead.put(_End(error))
    else:
        ahead.put(_End())
