"""Merge the work of concurrent requests into batches, which one thread computes with one model.

A batch starts as soon as the thread is free, and either the batch is full or a short time has passed since its first
item arrived. If the previous batch had one item, there is probably one client, and an item does not wait for others.
Items that are equal are computed once. An item that no request waits for is removed from the queue, and a batch without
any other items is stopped.
"""

import asyncio
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar, final

from regard.decoding.steps import call_before_steps
from regard.errors import RegardError
from regard.formatting import quantity
from regard.serving.errors import RequestError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")

_RETRY_AFTER: Final = 1


class Item(NamedTuple):
    """What is computed: a value that identifies it, the input of the model, and its number of tokens."""

    identity: Hashable
    source: Any
    tokens: int


@final
@dataclass(eq=False)
class _Entry(Generic[K, T]):
    """An item that waits or is computed, and the number of requests that wait for its result."""

    kind: K
    item: Item
    arrival: float
    result: "asyncio.Future[T]"
    waiting: int = 0


class _AbandonedError(Exception):
    """No request waits for any item of the batch."""


class BatchLimits(NamedTuple):
    """The size of a batch, and of the queue.

    Attributes:
        tokens: The number of tokens of a batch. A single item may have more.
        items: The maximum number of items of a batch.
        wait: The longest time, in seconds, that an item waits for others while the thread is free.
        queue: The maximum number of items that wait.
    """

    tokens: int = 512
    items: int = 512
    wait: float = 0.005
    queue: int = 1_000


@final
class Batcher(Generic[K, T]):
    """A queue of items, and the thread that computes them.

    Args:
        compute: Computes the items of a batch, which are all of the same kind. It is called in the thread.
        limits: The size of a batch, and of the queue.
        report: Receives the number of items of each batch.
    """

    def __init__(
        self,
        compute: Callable[[K, Sequence[Any]], Sequence[T]],
        limits: BatchLimits,
        report: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._compute, self._limits, self._report = compute, limits, report
        self._waiting: dict[tuple[K, Hashable], _Entry[K, T]] = {}
        self._running: dict[tuple[K, Hashable], _Entry[K, T]] = {}
        self._changed = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._task: asyncio.Task[None] | None = None
        self._last_size = 0

    @property
    def queued(self) -> int:
        """The number of items that wait for a batch."""
        return len(self._waiting)

    async def submit(self, kind: K, items: Sequence[Item]) -> list[T]:
        """Return the result of each item. Raise RequestError(503) if the queue is full."""
        keys = [(kind, item.identity) for item in items]
        added = {key for key in keys if key not in self._waiting and key not in self._running}
        if self._waiting and len(self._waiting) + len(added) > self._limits.queue:
            raise RequestError(
                503,
                f"The server is busy: {quantity(len(self._waiting), 'text')} are waiting. Try again later.",
                retry_after=_RETRY_AFTER,
            )
        loop = asyncio.get_running_loop()
        entries = []
        for key, item in zip(keys, items, strict=True):
            entry = self._waiting.get(key) or self._running.get(key)
            if entry is None:
                entry = self._waiting[key] = _Entry(kind, item, loop.time(), loop.create_future())
            entry.waiting += 1
            entries.append((key, entry))
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            return [await asyncio.shield(entry.result) for _, entry in entries]
        finally:
            for key, entry in entries:
                entry.waiting -= 1
                if not entry.waiting and self._waiting.get(key) is entry:
                    del self._waiting[key]
            self._changed.set()

    async def run(self, work: Callable[..., R], *arguments: Any) -> R:
        """Call a function in the thread, between two batches. If the caller is cancelled, a search in it stops."""
        abandoned = threading.Event()

        def call() -> R:
            with call_before_steps(_raise_if(abandoned)):
                return work(*arguments)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        finally:
            abandoned.set()

    async def finish(self) -> None:
        """Wait until all items are computed. Requests that were accepted before may still submit some."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        """Compute batches until nothing waits. The thread ends with the batcher."""
        while self._waiting:
            await self._wait_for_more()
            batch = self._take()
            if batch:
                await self._compute_batch(batch)
        self._task = None

    async def _wait_for_more(self) -> None:
        """Wait until a batch is full, or its first item has waited long enough."""
        clock = asyncio.get_running_loop().time
        while (first := next(iter(self._waiting.values()), None)) is not None and not self._is_full():
            remaining = first.arrival + self._limits.wait - clock()
            if remaining <= 0 or len(self._waiting) == self._last_size == 1:
                return
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), remaining)

    def _is_full(self) -> bool:
        waiting = self._waiting.values()
        return len(waiting) >= self._limits.items or sum(entry.item.tokens for entry in waiting) >= self._limits.tokens

    def _take(self) -> "list[_Entry[K, T]]":
        """Remove the next batch from the queue: the oldest item, and others of its kind in the order of arrival."""
        batch: list[_Entry[K, T]] = []
        tokens = 0
        for key, entry in list(self._waiting.items()):
            if batch and entry.kind != batch[0].kind:
                continue
            if batch and (tokens + entry.item.tokens > self._limits.tokens or len(batch) == self._limits.items):
                break
            tokens += entry.item.tokens
            batch.append(entry)
            self._running[key] = self._waiting.pop(key)
        return batch

    async def _compute_batch(self, batch: "Sequence[_Entry[K, T]]") -> None:
        """Compute a batch. If it fails, compute its items one by one, so that an item cannot make others fail."""

        def stop_if_abandoned() -> None:
            if not any(entry.waiting for entry in batch):
                raise _AbandonedError

        def call() -> Sequence[T]:
            with call_before_steps(stop_if_abandoned):
                stop_if_abandoned()
                return self._compute(batch[0].kind, [entry.item.source for entry in batch])

        self._last_size = len(batch)
        self._report(len(batch))
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except _AbandonedError:
            for entry in batch:
                self._finish(entry)
                if entry.waiting:  # a request has joined the batch after the last check
                    self._waiting[entry.kind, entry.item.identity] = entry
                else:
                    entry.result.cancel()
        except Exception as error:
            if len(batch) > 1 and isinstance(error, RegardError):
                for entry in batch:
                    await self._compute_batch([entry])
                return
            for entry in batch:
                self._finish(entry)
                entry.result.set_exception(error)
                entry.result.exception()  # those who wait report it, if there are any
        else:
            for entry, result in zip(batch, results, strict=True):
                self._finish(entry)
                entry.result.set_result(result)

    def _finish(self, entry: "_Entry[K, T]") -> None:
        del self._running[entry.kind, entry.item.identity]


def _raise_if(event: threading.Event) -> Callable[[], None]:
    def check() -> None:
        if event.is_set():
            raise _AbandonedError

    return check
