"""Work that is recorded on a GPU once and played again: most of what small operations take is the telling, and a
recording is told all at once.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import local
from typing import Any, NamedTuple, TypeVar, final

import torch
from torch import Tensor

T = TypeVar("T")

_own = local()


class Recording(NamedTuple):
    """What plays some work, the tensors that it reads, and what it gives: tensors that each playing fills anew."""

    replay: Callable[[], None]
    inputs: list[Tensor]
    given: Any

    def play(self, tensors: Sequence[Tensor]) -> Any:
        """What the work gives for other tensors in place of those it reads."""
        for own, tensor in zip(self.inputs, tensors, strict=True):
            if own.data_ptr() != tensor.data_ptr():
                own.copy_(tensor)
        self.replay()
        return self.given


@final
@dataclass
class Recorder:
    """Where recordings are made. They share one piece of memory, so no two may be played at a time: a thread has one
    recorder for each device, `recorder(device)`.
    """

    stream: Any
    memory: Any = field(default_factory=torch.cuda.graph_pool_handle)
    last: Any = None
    """Held so that the memory stays while nobody else holds a recording."""

    def record(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """What plays the work again, and what the work gave: tensors that each playing fills anew.

        Nothing is worked out yet. All that the work reads must stay where it is, and the work must have been done once
        before, so that what it sets up at first is there.
        """
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            # Not by torch.cuda.graph(), which empties all caches each time.
            graph.capture_begin(pool=self.memory, capture_error_mode="thread_local")
            try:
                given = work()
            except BaseException:
                with suppress(RuntimeError):  # it is the work's own failure that must be told
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
        self.last = graph
        return graph.replay, given


def recorder(device: torch.device) -> Recorder:
    """That of this thread for a device."""
    known = _recorders()
    if device not in known:
        known[device] = Recorder(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
    return known[device]


def forget(device: torch.device) -> None:
    """Give the memory of this thread's recordings back, as soon as nobody else holds one."""
    if _recorders().pop(device, None) is not None:
        torch.cuda.empty_cache()


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether PyTorch ran out of memory. CUDA raises `OutOfMemoryError`, except in graph capture; CPUs raise a
    `RuntimeError` whose message depends on the processor.
    """
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, torch.OutOfMemoryError) or any(each in str(error) for each in words)


def _recorders() -> dict[torch.device, Recorder]:
    found: dict[torch.device, Recorder] = _own.__dict__.setdefault("recorders", {})
    return found
