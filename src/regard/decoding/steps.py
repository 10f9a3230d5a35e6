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
        return "a CUDA graph cannot call hooks"
    if torch.is_grad_enabled():
        return "gradients are enabled, and a CUDA graph of a search does not compute them"
    if in_reference_mode():
        return "reference mode is on"
    unsupported = next((rule for rule in rules if not rule.is_capturable), None)
    return None if unsupported is None else f"{type(unsupported).__name__} reads values on the host"


def round_up(size: int) -> int:
    """Return the smallest 2ⁿ or 3 · 2ⁿ that is not below a size. Batches of similar sizes share graphs."""
    power = 1 << max(0, size - 1).bit_length()
    return power * 3 // 4 if power >= 4 and size <= power * 3 // 4 else power


class Graph(NamedTuple):
    """A captured function that writes a state to static tensors: a step, which updates its state in place, or the
    beginning of a search.
    """

    key: Any
    inputs: list[Tensor]
    state: Any
    replay: Callable[[], None]

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.inputs)

    def load(self, tensors: Sequence[Tensor]) -> None:
        """Copy tensors to the inputs."""
        changed = [index for index, old in enumerate(self.inputs) if old is not tensors[index]]
        if changed:
            torch._foreach_copy_([self.inputs[index] for index in changed], [tensors[index] for index in changed])


@final
class StepRunner(Generic[StateT]):
    """Begins a search on a batch, and takes its steps.

    Args:
        begin: A function that returns the initial state, given inputs.
        step: A function that returns the state after a step. If they are captured, both functions depend on nothing but
            their inputs, the decoder and the options.
        decoder: The decoder that the functions use.
        options: Everything else that they depend on, to find the graphs of earlier searches.
        captures: Whether to capture the functions.
    """

    def __init__(
        self,
        begin: Callable[..., StateT],
        step: Callable[[StateT], StateT],
        decoder: Decoder,
        options: object,
        *,
        device: torch.device,
        captures: bool,
    ) -> None:
        self.begin_eagerly, self.step, self.captures = begin, step, captures
        self.steps = self.allocated_steps = 0
        self.signature: list[Any] = []
        self.steps_seen = 0
        """Steps with this signature."""
        self.graph: Graph | None = None
        self.inputs: Any = None
        """The inputs of a beginning that was not captured."""
        self.initial: StateT | None = None
        """Its state."""
        if captures:
            self.options = (options, _describe_modes(decoder, device))
            self.pool = cuda_graphs.graph_pool(device)
            self.graphs: list[Graph] = self.pool.by_module.setdefault(decoder, [])

    def begin(self, *inputs: Any) -> StateT:
        """Return the initial state, given tensors, and tuples of tensors."""
        if not self.captures:
            return self.begin_eagerly(*inputs)
        tensors, signature = _describe(inputs)
        graph = self._find("begin", signature)
        if graph is None:
            self.inputs, self.initial = inputs, self.begin_eagerly(*inputs)
            return self.initial
        graph.load(tensors)
        graph.replay()
        initial: StateT = graph.state
        return initial

    def run(self, state: StateT) -> StateT:
        """Take one step. The next step may overwrite the returned state."""
        before_step = _before_step.get()
        if before_step is not None:
            before_step()
        if self.captures:
            self.steps += 1
            if state is not self.initial:  # it has been changed, so it is not the result of the beginning
                self.inputs = None
            self.initial = None
            if self.graph is None or state is not self.graph.state or self.steps > self.allocated_steps:
                self.allocated_steps = compute_capacity(self.steps)
                state = preallocate(state, self.allocated_steps)
                self.graph = self._prepare_graph(state)
        if self.graph is None:
            return self.step(state)
        self.graph.replay()
        replayed: StateT = self.graph.state
        return replayed

    def _prepare_graph(self, state: StateT) -> Graph | None:
        """Return a graph for states of this signature, loaded with this state; None if there is none yet."""
        tensors, signature = _describe(state)
        graph = self._find("step", signature)
        if graph is None:
            self.steps_seen = self.steps_seen + 1 if signature == self.signature else 1
            self.signature = signature
            return self._keep(lambda: self._capture_step(state)) if self.steps_seen > WARMUP_STEPS else None
        graph.load(tensors)
        if self.inputs is not None:
            step_graph = graph
            self._keep(lambda: self._capture_begin(step_graph))  # because the shape occurs again
        return graph

    def _find(self, name: str, signature: list[Any]) -> Graph | None:
        return next((graph for graph in self.graphs if graph.key == (name, self.options, signature)), None)

    def _keep(self, capture: Callable[[], Graph]) -> Graph | None:
        """Capture a graph and keep it. If the graphs use too much memory, release the oldest ones. If the capture runs
        out of memory, return None, and capture nothing more in this search.
        """
        try:
            self.graphs.append(capture())
        except RuntimeError as error:
            if not cuda_graphs.is_out_of_memory(error):
                raise
            self.captures = False
            self.graphs.clear()
            return None
        while len(self.graphs) > 1 and sum(graph.bytes for graph in self.graphs) > self.pool.max_kept_bytes:
            del self.graphs[0]
        return self.graphs[-1]

    def _capture_step(self, state: StateT) -> Graph:
        static = _clone(state)
        tensors, signature = _describe(static)
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

        replay, _ = self.pool.capture(update)
        return Graph(("step", self.options, signature), tensors, static, replay)

    def _capture_begin(self, step: Graph) -> Graph:
        """Capture the beginning of a search, so that it writes the state of a captured step."""
        static, steps = _clone(self.inputs), self.allocated_steps
        tensors, signature = _describe(static)

        def write() -> None:
            initial, _ = _describe(preallocate(self.begin_eagerly(*static), steps))
            for old, new in zip(step.inputs, initial, strict=True):
                old.copy_(new)

        replay, _ = self.pool.capture(write)
        return Graph(("begin", self.options, signature), tensors, step.state, replay)


def _clone(state: State) -> State:
    """Return a copy of a state. Searches in any mode can write to its tensors."""
    with torch.inference_mode(mode=False):
        return map_state(state, lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)


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
    precision = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    return decoder.training, precision, autocast, addresses
