"""Steps of training on a GPU, recorded and played again: gradients once for each shape of batch, and the update."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from regard.data.batching import Batch
from regard.models.contracts import Padded
from regard.models.seq2seq import Seq2Seq
from regard.ops import cuda_graphs
from regard.training.objective import Objective, leave_gradient

Shape = tuple[int, int, int]
"""Rows, and the widths of both sides."""

MOST_SHAPES = 256
"""So many are recorded; the rest, which are rare, are worked out as usual."""


@final
@dataclass
class GraphedGradient:
    """Leaves the gradient of batches on a model as `leave_gradient` does.

    A shape is worked out as usual when it is first seen, and recorded when it is seen again, up to so many shapes.
    """

    model: Seq2Seq
    objective: Objective
    seen: dict[Shape, cuda_graphs.Recording | None] = field(default_factory=dict)
    gradients: list[Tensor] = field(default_factory=list)

    def begin(self) -> None:
        """Leave no gradient on the model, and all of them where they are."""
        if not self.gradients:
            self.gradients = self._gradients()
        if self.gradients:
            torch._foreach_zero_(self.gradients)

    def __call__(self, batch: Batch, tokens: int) -> Tensor:
        shape = (*batch.source.tokens_BT.shape, batch.target.tokens_BT.shape[1])
        recording = self.seen.get(shape)
        if recording is None and shape in self.seen and sum(map(bool, self.seen.values())) < MOST_SHAPES:
            recording = self._record(batch)
        self.seen[shape] = recording
        if recording is None:
            return leave_gradient(self.model, batch, self.objective, 1 / tokens)
        share = torch.full((), 1 / tokens, device=batch.source.tokens_BT.device)
        loss: Tensor = recording.play([*batch.source, *batch.target, share])
        return loss.clone()

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def _record(self, batch: Batch) -> cuda_graphs.Recording:
        source, target = (Padded(*(tensor.clone() for tensor in side)) for side in batch[:2])
        own = Batch(source, target, batch.ids, batch.tokens)
        device = source.tokens_BT.device
        share = torch.ones((), device=device)
        before = self._gradients()
        replay, loss = cuda_graphs.recorder(device).record(
            lambda: leave_gradient(self.model, own, self.objective, share)
        )
        assert len(before) == len(self._gradients()), "a gradient that is made while recording lies elsewhere each time"
        return cuda_graphs.Recording(replay, [*source, *target, share], loss)


@final
@dataclass
class GraphedUpdate:
    """Steps of an optimizer, recorded once it has taken one; the gradients must stay where they are."""

    optimizer: torch.optim.Optimizer
    replay: Callable[[], None] | None = None
    begun: bool = False

    def __call__(self) -> None:
        if self.replay is None and self.begun:
            device = self.optimizer.param_groups[0]["params"][0].device
            self.replay, _ = cuda_graphs.recorder(device).record(self.optimizer.step)
        if self.replay is None:
            self.optimizer.step()
        else:
            self.replay()
        self.begun = True
