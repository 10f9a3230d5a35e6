"""CUDA graphs: capture GPU work once and replay it. Small operations are launch-bound, and a replay is one launch."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import local
from typing import Any, NamedTuple, TypeVar, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

T = TypeVar("T")

_thread = local()


class CapturedGraph(NamedTuple):
    """A captured graph with its static input and output tensors. Each replay overwrites the outputs."""

    replay: Callable[[], None]
    inputs: list[Tensor]
    outputs: Any

    def load(self, tensors: Sequence[Tensor]) -> None:
        """Copy tensors to the static inputs."""
        pairs = zip(self.inputs, tensors, strict=True)
        changed = [(static, tensor) for static, tensor in pairs if static.data_ptr() != tensor.data_ptr()]
        if changed:
            statics, values = zip(*changed, strict=True)
            torch._foreach_copy_(statics, values)

    def run(self, tensors: Sequence[Tensor]) -> Any:
        """Copy tensors to the static inputs, replay the graph and return its outputs."""
        self.load(tensors)
        self.replay()
        return self.outputs


@final
@dataclass
class GraphPool:
    """Graphs that share one memory pool, so only one of them may be replayed at a time. Each thread has one pool per
    device, `graph_pool(device)`.
    """

    stream: Any
    memory: Any = field(default_factory=torch.cuda.graph_pool_handle)
    last_graph: Any = None
    """Keeps the memory pool alive if no caller holds a graph."""
    by_module: "WeakKeyDictionary[nn.Module, list[Any]]" = field(default_factory=WeakKeyDictionary)
    """Graphs that are replayed again later, by the module whose work they contain, the most recent one last."""
    max_kept_bytes: int = 1 << 30
    """The memory that the static tensors of the graphs of one module may use."""

    def capture(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Capture `work` → (replay, outputs). Each replay overwrites the outputs; the capture computes nothing.

        The tensors that `work` reads must keep their addresses. Run `work` once before, as a warm-up: lazy
        initialization cannot be captured.
        """
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            # torch.cuda.graph() would empty the caches of the allocator at each capture.
            graph.capture_begin(pool=self.memory, capture_error_mode="thread_local")
            try:
                outputs = work()
            except BaseException:
                with suppress(RuntimeError):  # do not hide the original error
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
        self.last_graph = graph
        return graph.replay, outputs


def graph_pool(device: torch.device) -> GraphPool:
    """Return the pool of this thread for a device."""
    pools, device = _graph_pools(), _with_index(device)
    if device not in pools:
        memory = torch.cuda.get_device_properties(device).total_memory
        pools[device] = GraphPool(torch.cuda.Stream(device), max_kept_bytes=memory // 8)  # type: ignore[no-untyped-call]
    return pools[device]


def release_graphs(device: torch.device) -> None:
    """Release the memory of this thread's graphs, as soon as no caller holds one."""
    if _graph_pools().pop(_with_index(device), None) is not None:
        torch.cuda.empty_cache()


def release_kept_graphs(device: torch.device) -> None:
    """Release the graphs that this thread keeps to replay them later, with their static tensors."""
    pool = _graph_pools().get(_with_index(device))
    if pool is not None:
        pool.by_module.clear()


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether PyTorch ran out of memory. CUDA raises `OutOfMemoryError`, except in graph capture; CPUs raise a
    `RuntimeError` whose message depends on the processor.
    """
    phrases = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, torch.OutOfMemoryError) or any(phrase in str(error) for phrase in phrases)


def _with_index(device: torch.device) -> torch.device:
    """Add the index of the current GPU to the device `cuda`, as the devices of tensors have one."""
    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


def _graph_pools() -> dict[torch.device, GraphPool]:
    pools: dict[torch.device, GraphPool] = _thread.__dict__.setdefault("graph_pools", {})
    return pools
