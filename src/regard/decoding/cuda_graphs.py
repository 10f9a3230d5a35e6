"""Steps of a decoder on a GPU: while the shapes of its state stay the same, one recorded step is played again.

N hypotheses, V vocabulary.
"""

from typing import Any, final

from torch import Tensor

from regard.models.contracts import Decoder, Keys, State, map_state, preallocated
from regard.ops import cuda_graphs

WAIT = 2
"""Steps of one form that are taken as usual, before the next is recorded: a recording costs about two."""


@final
class GraphedDecoder:
    """`step` as the decoder's own, for a search that takes one step after another.

    What a step gives is written over by the next. A tensor that stays where it is from step to step, such as a store of
    keys and values, is read where it is; all others are copied to where the recording reads them.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.keys: Keys = None
        self.form: list[Any] = []
        self.places: list[int] = []
        self.seen = 0
        self.able = True
        """Until memory does not hold a recording."""
        self.recording: cuda_graphs.Recording | None = None

    def step(self, token_N: Tensor, state: State, keys: Keys, taken: int) -> tuple[Tensor, State]:
        """The step after so many."""
        state = preallocated(state, taken + 1)
        tensors: list[Tensor] = []
        form: list[Any] = []

        def noted(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                tensors.append(leaf)
                form.append((leaf.shape, leaf.dtype))
            else:
                form.append(leaf)
            return leaf

        map_state((token_N, state), noted)
        if keys is not self.keys or form != self.form:
            self.keys, self.form, self.seen, self.recording = keys, form, 0, None
        places = [tensor.data_ptr() for tensor in tensors]
        if self.recording is None and self.seen == WAIT and self.able:
            stays = [now == before for now, before in zip(places, self.places, strict=True)]
            try:
                self._record(token_N, state, stays)
            except RuntimeError as error:
                if not cuda_graphs.is_out_of_memory(error):
                    raise
                self.able = False
        self.seen, self.places = self.seen + 1, places
        if self.recording is None:
            return self.decoder.step(token_N, state, keys)
        found: tuple[Tensor, State] = self.recording.play(tensors)
        return found

    def _record(self, token_N: Tensor, state: State, stays: list[bool]) -> None:
        inputs: list[Tensor] = []

        def settled(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                inputs.append(leaf if stays[len(inputs)] else leaf.clone())
                return inputs[-1]
            return leaf

        token_N, state = map_state((token_N, state), settled)
        replay, given = cuda_graphs.recorder(token_N.device).record(
            lambda: self.decoder.step(token_N, state, self.keys)
        )
        self.recording = cuda_graphs.Recording(replay, inputs, given)
