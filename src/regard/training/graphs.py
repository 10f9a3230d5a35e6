"""Steps of training on a GPU, recorded and played again: gradients once for each shape of batch, and the update."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor

from regard import graphs
from regard.data.batching import Batch
from regard.models.contracts import Padded
from regard.models.seq2seq import Seq2Seq
from regard.training.losses import Objective, leave_gradient

Shape = tuple[int, int, int]
"""Rows, and the widths of both sides."""

MOST_SHAPES = 256
"""So many are recorded; the rest, which are rare, are worked out as usual."""


class Recording(NamedTuple):
    """What plays the work of a shape, the tensors that it reads, and the loss that it leaves."""

    replay: Callable[[], None]
    batch: Batch
    share: Tensor
    loss: Tensor

    def play(self, batch: Batch, tokens: int) -> Tensor:
        for own, given in zip(self.batch[:2], batch[:2], strict=True):
            own.tokens_BT.copy_(given.tokens_BT)
            own.lengths_B.copy_(given.lengths_B)
        self.share.fill_(1 / tokens)
        self.replay()
        return self.loss.clone()


@final
@dataclass
class RecordedGradient:
    """Leaves the gradient of batches on a model as `leave_gradient` does.

    A shape is worked out as usual when it is first seen, and recorded when it is seen again, up to so many shapes.
    """

    model: Seq2Seq
    objective: Objective
    seen: dict[Shape, Recording | None] = field(default_factory=dict)
    gradients: list[Tensor] = field(default_factory=list)
    recorded: int = 0

    def begin(self) -> None:
        """Leave no gradient on the model, and all of them where they are."""
        if not self.gradients:
            self.gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        if self.gradients:
            torch._foreach_zero_(self.gradients)

    def __call__(self, batch: Batch, tokens: int) -> Tensor:
        shape = (*batch.source.tokens_BT.shape, batch.target.tokens_BT.shape[1])
        if shape not in self.seen:
            self.seen[shape] = None
            return leave_gradient(self.model, batch, self.objective, 1 / tokens)
        recording = self.seen[shape]
        if recording is None:
            if self.recorded == MOST_SHAPES:
                return leave_gradient(self.model, batch, self.objective, 1 / tokens)
            recording = self.seen[shape] = self._record(batch)
            self.recorded += 1
        return recording.play(batch, tokens)

    def _record(self, batch: Batch) -> Recording:
        source, target = (Padded(*(tensor.clone() for tensor in side)) for side in batch[:2])
        own = Batch(source, target, batch.ids, batch.tokens)
        device = source.tokens_BT.device
        share = torch.ones((), device=device)
        replay, loss = graphs.recorder(device).record(lambda: leave_gradient(self.model, own, self.objective, share))
        had = len(self.gradients)
        assert had == sum(parameter.grad is not None for parameter in self.model.parameters()), "a gradient has come up"
        return Recording(replay, own, share, loss)


@final
@dataclass
class RecordedUpdate:
    """Steps of an optimiser, recorded once it has taken one; the gradients must stay where they are."""

    optimizer: torch.optim.Optimizer
    replay: Callable[[], None] | None = None
    begun: bool = False

    def __call__(self) -> None:
        if self.replay is None and self.begun:
            device = self.optimizer.param_groups[0]["params"][0].device
            self.replay, _ = graphs.recorder(device).record(self.optimizer.step)
        if self.replay is None:
            self.optimizer.step()
        else:
            self.replay()
        self.begun = True
