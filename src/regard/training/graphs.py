"""The work of a step, recorded on a GPU once for each shape of batch and played again: what a small model spends its
time on is not the arithmetic but its telling, thousands of times a step.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from regard.data.batching import Batch
from regard.models.contracts import Padded
from regard.models.seq2seq import Seq2Seq
from regard.training.losses import Objective, leave_gradient

Shape = tuple[int, int, int]
"""Rows, and the widths of both sides."""


class Recording(NamedTuple):
    """The work of a shape, with the tensors that it reads and the loss that it leaves."""

    graph: Any
    batch: Batch
    share: Tensor
    loss: Tensor

    def play(self, batch: Batch, tokens: int) -> Tensor:
        for own, given in zip(self.batch[:2], batch[:2], strict=True):
            own.tokens_BT.copy_(given.tokens_BT)
            own.lengths_B.copy_(given.lengths_B)
        self.share.fill_(1 / tokens)
        self.graph.replay()
        return self.loss.clone()


@final
@dataclass
class Recorder:
    """Leaves the gradient of batches on a model as `leave_gradient` does, to the bit.

    A shape is worked out as usual when it is first seen, which also makes ready all that it needs, and recorded when
    it is seen again. All recordings work in one piece of memory, since no two are played at a time.
    """

    model: Seq2Seq
    objective: Objective
    seen: dict[Shape, Recording | None] = field(default_factory=dict)
    stream: Any = field(default_factory=torch.cuda.Stream)
    memory: Any = field(default_factory=torch.cuda.graph_pool_handle)

    def __call__(self, batch: Batch, tokens: int) -> Tensor:
        shape = (*batch.source.tokens_BT.shape, batch.target.tokens_BT.shape[1])
        if shape not in self.seen:
            self.seen[shape] = None
            return leave_gradient(self.model, batch, self.objective, 1 / tokens)
        recording = self.seen[shape] or self._record(batch)
        self.seen[shape] = recording
        return recording.play(batch, tokens)

    def _record(self, batch: Batch) -> Recording:
        source, target = (Padded(*(tensor.clone() for tensor in side)) for side in batch[:2])
        own = Batch(source, target, batch.ids, batch.tokens)
        share = torch.ones((), device=batch.source.tokens_BT.device)
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            # Not torch.cuda.graph(): it empties all caches for each recording, and there are dozens.
            graph.capture_begin(pool=self.memory, capture_error_mode="thread_local")
            try:
                loss = leave_gradient(self.model, own, self.objective, share)
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self.stream)
        return Recording(graph, own, share, loss)
