"""Decoder steps as CUDA graphs: while the shapes of the decoder's state stay the same, a captured step is replayed.

N hypotheses, V vocabulary.
"""

from typing import Any, final

from torch import Tensor

from regard.models.contracts import Decoder, Keys, State, map_state, preallocate
from regard.ops import cuda_graphs

WARMUP_STEPS = 2
"""Steps with the same shapes before a graph is captured: a capture costs about two steps."""


@final
class GraphedDecoder:
    """Computes the steps of a decoder, for a search that takes one step after another.

    The outputs of a step are overwritten by the next. An input at the same address at every step, such as a
    preallocated cache of keys and values, is read in place. All other inputs are copied to the inputs of the graph.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.keys: Keys = None
        self.signature: list[Any] = []
        """Shapes and dtypes of the tensors in the inputs, and all other values."""
        self.addresses: list[int] = []
        self.steps_seen = 0
        """Steps with this signature."""
        self.can_capture = True
        """Whether no capture has run out of memory."""
        self.graph: cuda_graphs.CapturedGraph | None = None

    def step(self, token_N: Tensor, state: State, keys: Keys, steps: int) -> tuple[Tensor, State]:
        """Take the next step after `steps` steps."""
        state = preallocate(state, steps + 1)
        tensors: list[Tensor] = []
        signature: list[Any] = []

        def add_leaf(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                tensors.append(leaf)
                signature.append((leaf.shape, leaf.dtype))
            else:
                signature.append(leaf)
            return leaf

        map_state((token_N, state), add_leaf)
        if keys is not self.keys or signature != self.signature:
            self.keys, self.signature, self.steps_seen, self.graph = keys, signature, 0, None
        addresses = [tensor.data_ptr() for tensor in tensors]
        if self.graph is None and self.steps_seen == WARMUP_STEPS and self.can_capture:
            in_place = [now == before for now, before in zip(addresses, self.addresses, strict=True)]
            try:
                self._capture(token_N, state, in_place)
            except RuntimeError as error:
                if not cuda_graphs.is_out_of_memory(error):
                    raise
                self.can_capture = False
        self.steps_seen, self.addresses = self.steps_seen + 1, addresses
        if self.graph is None:
            return self.decoder.step(token_N, state, keys)
        output: tuple[Tensor, State] = self.graph.run(tensors)
        return output

    def _capture(self, token_N: Tensor, state: State, in_place: list[bool]) -> None:
        inputs: list[Tensor] = []

        def add_input(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                inputs.append(leaf if in_place[len(inputs)] else leaf.clone())
                return inputs[-1]
            return leaf

        token_N, state = map_state((token_N, state), add_input)
        replay, output = cuda_graphs.graph_pool(token_N.device).capture(
            lambda: self.decoder.step(token_N, state, self.keys)
        )
        self.graph = cuda_graphs.CapturedGraph(replay, inputs, output)
