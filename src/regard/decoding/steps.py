"""The encoder and the steps of a search as CUDA graphs, captured once for each shape, and replayed from then on.

The graph of a step updates the state of the search in place, in static tensors. Graphs are kept for later batches of
the same shape. Without a graph, the same function of the state is computed eagerly; that is the reference.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor, nn

from regard.attention.kv_cache import compute_capacity
from regard.decoding.rules import Rule
from regard.models.contracts import Decoder, Encoder, Memory, Source, State, map_state, preallocate
from regard.ops import cuda_graphs
from regard.ops.cuda_graphs import CapturedGraph
from regard.ops.hooks import are_hooks_active
from regard.ops.reference_mode import in_reference_mode

WARMUP_STEPS = 1
"""Steps with the same shapes before a graph is captured, which initialize the kernels."""

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


def call_before_step() -> None:
    """Call the function of `call_before_steps`, if there is one."""
    before_step = _before_step.get()
    if before_step is not None:
        before_step()


def capture_unsupported_reason(
    device: torch.device, module: nn.Module, rules: Sequence[Rule] = (), *, observed: bool = False
) -> str | None:
    """Return why an encoder, or the steps of a search with a decoder, cannot be captured in a CUDA graph; None if they
    can. `observed`: the caller needs the values of each step.
    """
    if device.type != "cuda":
        return "CUDA graphs need a GPU"
    if observed:
        return "the steps are recorded"
    if are_hooks_active() or any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
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


@final
class _KeptGraphs:
    """The graphs of a module on a device, which are kept for later batches.

    Args:
        module: The encoder or decoder whose work the graphs contain.
        options: Everything besides the module and the inputs that the work depends on.
    """

    def __init__(self, module: nn.Module, options: object, device: torch.device) -> None:
        self.pool = cuda_graphs.graph_pool(device)
        self.options = options, _describe_modes(module, device)
        self.graphs: list[tuple[Any, CapturedGraph | None]] = self.pool.by_module.setdefault(module, [])

    def find(self, name: str, signature: list[Any]) -> tuple[CapturedGraph | None, bool]:
        """Return the graph for inputs with this signature if there is one, and whether the signature is known."""
        key = signature, name, self.options
        return next(((graph, True) for kept, graph in self.graphs if kept == key), (None, False))

    def keep(
        self, name: str, signature: list[Any], capture: Callable[[], CapturedGraph] | None
    ) -> CapturedGraph | None:
        """Capture a graph and keep it, or only its signature. If the graphs use too much memory, release the oldest
        ones. If the capture runs out of memory, release all of them and return None.
        """
        key = signature, name, self.options
        try:
            graph = None if capture is None else capture()
        except RuntimeError as error:
            if not cuda_graphs.is_out_of_memory(error):
                raise
            self.graphs.clear()
            return None
        self.graphs[:] = [entry for entry in self.graphs if entry[0] != key]
        self.graphs.append((key, graph))
        while len(self.graphs) > 1 and sum(map(_count_bytes, self.graphs)) > self.pool.max_kept_bytes:
            del self.graphs[0]
        return graph


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
        self.graph: CapturedGraph | None = None
        self.inputs: Any = None
        """The inputs of a beginning that was not captured."""
        self.initial: StateT | None = None
        """Its state."""
        if captures:
            self.kept = _KeptGraphs(decoder, options, device)

    def begin(self, *inputs: Any) -> StateT:
        """Return the initial state, given tensors, and tuples of tensors."""
        if not self.captures:
            return self.begin_eagerly(*inputs)
        tensors, signature = _describe(inputs)
        graph, _ = self.kept.find("begin", signature)
        if graph is None:
            self.inputs, self.initial = inputs, self.begin_eagerly(*inputs)
            return self.initial
        initial: StateT = graph.run(tensors)
        return initial

    def run(self, state: StateT) -> StateT:
        """Take one step. The next step may overwrite the returned state."""
        call_before_step()
        if self.captures:
            self.steps += 1
            if state is not self.initial:  # it has been changed, so it is not the result of the beginning
                self.inputs = None
            self.initial = None
            if self.graph is None or state is not self.graph.outputs or self.steps > self.allocated_steps:
                self.allocated_steps = compute_capacity(self.steps)
                state = preallocate(state, self.allocated_steps)
                self.graph = self._prepare_graph(state)
        if self.graph is None:
            return self.step(state)
        self.graph.replay()
        replayed: StateT = self.graph.outputs
        return replayed

    def _prepare_graph(self, state: StateT) -> CapturedGraph | None:
        """Return a graph for states of this signature, loaded with this state; None if there is none yet."""
        tensors, signature = _describe(state)
        graph, _ = self.kept.find("step", signature)
        if graph is None:
            self.steps_seen = self.steps_seen + 1 if signature == self.signature else 1
            self.signature = signature
            return self._keep("step", signature, self._capture_step, state) if self.steps_seen > WARMUP_STEPS else None
        graph.load(tensors)
        if self.inputs is not None:  # the shape occurs again
            self._keep("begin", _describe(self.inputs)[1], self._capture_begin, graph)
        return graph

    def _keep(
        self, name: str, signature: list[Any], capture: Callable[[Any], CapturedGraph], argument: Any
    ) -> CapturedGraph | None:
        """Capture a graph. If that runs out of memory, return None, and capture nothing more in this search."""
        graph = self.kept.keep(name, signature, lambda: capture(argument))
        self.captures = graph is not None
        return graph

    def _capture_step(self, state: StateT) -> CapturedGraph:
        static = _clone(state)
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

        replay, _ = self.kept.pool.capture(update)
        return CapturedGraph(replay, tensors, static)

    def _capture_begin(self, step: CapturedGraph) -> CapturedGraph:
        """Capture the beginning of a search, so that it writes the state of a captured step."""
        static, steps = _clone(self.inputs), self.allocated_steps
        tensors, _ = _describe(static)

        def write() -> None:
            initial, _ = _describe(preallocate(self.begin_eagerly(*static), steps))
            for old, new in zip(step.inputs, initial, strict=True):
                old.copy_(new)

        replay, _ = self.kept.pool.capture(write)
        return CapturedGraph(replay, tensors, step.outputs)


def run_encoder(encoder: Encoder[Any], source: Source) -> Memory:
    """Encode sources. On a GPU, they are padded to bucketed shapes, and a CUDA graph is captured if a shape occurs
    again.
    """
    rows, device = len(source.length_hint_B), source.length_hint_B.device
    is_captured = encoder.is_capturable and capture_unsupported_reason(device, encoder) is None
    padded = source.pad_to_bucket(round_up) if is_captured else None
    if padded is None:
        memory: Memory = encoder(source)
        return memory
    kept = _KeptGraphs(encoder, None, device)
    tensors, signature = _describe(padded.tensors)
    graph, is_known = kept.find("encode", signature)
    if graph is None:
        static = padded.with_tensors(_clone(padded.tensors))

        def capture() -> CapturedGraph:
            replay, memory = kept.pool.capture(lambda: encoder(static))
            return CapturedGraph(replay, list(static.tensors), memory)

        graph = kept.keep("encode", signature, capture if is_known else None)
    memory = encoder(padded) if graph is None else graph.run(tensors)
    # The outputs are copied, because any graph of the pool may overwrite them.
    copied: Memory = map_state(memory, lambda leaf: leaf[:rows].clone() if isinstance(leaf, Tensor) else leaf)
    return copied


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


def _count_bytes(entry: tuple[Any, CapturedGraph | None]) -> int:
    """Return the size of the static tensors of a graph."""
    _, graph = entry
    tensors = [] if graph is None else [*graph.inputs, *_describe(graph.outputs)[0]]
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def _describe_modes(module: nn.Module, device: torch.device) -> tuple[Any, ...]:
    """Return what a graph contains besides its inputs: addresses of weights, and modes of computation."""
    autocast = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type)
    tensors = (
        tensor for part in module.modules() for tensor in chain(part._parameters.values(), part._buffers.values())
    )
    addresses = tuple(tensor.data_ptr() for tensor in tensors if tensor is not None)
    precision = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    return module.training, precision, autocast, addresses
