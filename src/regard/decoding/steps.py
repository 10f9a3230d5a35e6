"""The steps of a search as CUDA graphs: a whole step is captured once for each shape, and replayed from then on.

A graph updates the state of the search in place, in static tensors. Graphs are kept for later batches of the same
shape. Without a graph, the same function of the state is computed eagerly; that is the reference.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar, final

import torch
from torch import Tensor

from regard.attention.kv_cache import compute_capacity
from regard.decoding.rules import Rule
from regard.models.contracts import Decoder, State, map_state, preallocate
from regard.ops import cuda_graphs
from regard.ops.hooks import are_hooks_active
from regard.ops.reference_mode import in_reference_mode

WARMUP_STEPS = 2
"""Steps with the same shapes before a graph is captured: a capture costs about two steps."""

StateT = TypeVar("StateT")

_before_step: ContextVar[Callable[[], object] | None] = ContextVar("before_step", default=None)


@contextmanager
def call_before_steps(function: Callable[[], object]) -> Iterator[None]:
    """Within the block, call a function before each step of a search in this thread. The function can stop the search
    by raising an exception.
    """
    token = _before_step.set(function)
    try:
        yield
    finally:
        _before_step.reset(token)


def capture_unsupported_reason(device: torch.device, rules: Sequence[Rule], *, observed: bool = False) -> str | None:
    """Return why the steps of a search cannot be captured in a CUDA graph; None if they can. `observed`: the caller
    needs the values of each step.
    """
    if device.type != "cuda":
        return "CUDA graphs need a GPU"
    if observed:
        return "the steps are recorded"
    if are_hooks_active():
        return "a graph calls no hooks"
    if torch.is_grad_enabled():
        return "a graph computes no gradients"
    if in_reference_mode():
        return "reference mode is on"
    unsupported = next((rule for rule in rules if not rule.is_capturable), None)
    return None if unsupported is None else f"{type(unsupported).__name__} reads values on the host"


def round_up(size: int) -> int:
    """Return the smallest 2ⁿ or 3 · 2ⁿ that is not below a size. Batches of similar sizes share graphs."""
    power = 1 << max(0, size - 1).bit_length()
    return power * 3 // 4 if power >= 4 and size <= power * 3 // 4 else power


class GraphedStep(NamedTuple):
    """A captured step, which updates its state in place."""

    key: Any
    state: Any
    tensors: list[Tensor]
    """All tensors of the state."""
    replay: Callable[[], None]

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


@final
class StepRunner(Generic[StateT]):
    """Takes the steps of a search on a batch.

    Args:
        step: A function that returns the state after a step. If it is captured, it depends on nothing but the state,
            the decoder and the options.
        decoder: The decoder that the function uses.
        options: Everything else that it depends on, to find the graphs of earlier searches.
        captures: Whether to capture steps.
    """

    def __init__(
        self,
        step: Callable[[StateT], StateT],
        decoder: Decoder,
        options: object,
        *,
        device: torch.device,
        captures: bool,
    ) -> None:
        self.step, self.decoder, self.device, self.captures = step, decoder, device, captures
        self.options = (options, _describe_modes(decoder, device)) if captures else None
        self.steps = self.allocated_steps = 0
        self.signature: list[Any] = []
        self.steps_seen = 0
        """Steps with this signature."""
        self.graph: GraphedStep | None = None

    def run(self, state: StateT) -> StateT:
        """Take one step. The next step may overwrite the returned state."""
        before_step = _before_step.get()
        if before_step is not None:
            before_step()
        if not self.captures:
            return self.step(state)
        self.steps += 1
        if self.graph is None or state is not self.graph.state or self.steps > self.allocated_steps:
            self.allocated_steps = compute_capacity(self.steps)
            state = preallocate(state, self.allocated_steps)
            self.graph = self._find_graph(state)
        if self.graph is None:
            return self.step(state)
        self.graph.replay()
        replayed: StateT = self.graph.state
        return replayed

    def _find_graph(self, state: StateT) -> GraphedStep | None:
        """Return a graph for states of this signature, with this state; None if there is none yet."""
        tensors, signature = _describe(state)
        pool = cuda_graphs.graph_pool(self.device)
        graphs: list[GraphedStep] = pool.by_module.setdefault(self.decoder, [])
        found = next((graph for graph in graphs if graph.key == (self.options, signature)), None)
        if found is not None:
            torch._foreach_copy_(found.tensors, tensors)
            return found
        self.steps_seen = self.steps_seen + 1 if signature == self.signature else 1
        self.signature = signature
        if self.steps_seen <= WARMUP_STEPS:
            return None
        try:
            graphs.append(self._capture(state, signature))
        except RuntimeError as error:
            if not cuda_graphs.is_out_of_memory(error):
                raise
            self.captures = False
            graphs.clear()
            return None
        while len(graphs) > 1 and sum(graph.bytes for graph in graphs) > pool.max_kept_bytes:
            del graphs[0]
        return graphs[-1]

    def _capture(self, state: StateT, signature: list[Any]) -> GraphedStep:
        with torch.inference_mode(mode=False):  # so that searches in any mode can write to the tensors
            static: StateT = map_state(state, lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)
        tensors, _ = _describe(static)
        storages = {tensor.untyped_storage().data_ptr() for tensor in tensors}

        def update() -> None:
            after, _ = _describe(self.step(static))
            moved = [
                (old, new.clone() if new.untyped_storage().data_ptr() in storages else new)
                for old, new in zip(tensors, after, strict=True)
                if old.data_ptr() != new.data_ptr()
            ]
            for old, new in moved:
                old.copy_(new)

        replay, _ = cuda_graphs.graph_pool(self.device).capture(update)
        return GraphedStep((self.options, signature), static, tensors, replay)


def _describe(state: State) -> tuple[list[Tensor], list[Any]]:
    """Return the tensors of a state, and its signature: their shapes and dtypes, and all other values."""
    tensors: list[Tensor] = []
    signature: list[Any] = []

    def add_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
            signature.append((leaf.shape, leaf.dtype))
        else:
            signature.append(leaf)
        return leaf

    map_state(state, add_leaf)
    return tensors, signature


def _describe_modes(decoder: Decoder, device: torch.device) -> tuple[Any, ...]:
    """Return what a captured step contains besides the state: addresses of weights, and modes of computation."""
    autocast = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type)
    addresses = tuple(tensor.data_ptr() for tensor in chain(decoder.parameters(), decoder.buffers()))
    return decoder.training, torch.get_float32_matmul_precision(), autocast, addresses
