"""CUDA graphs of training steps: gradients, captured once for each shape of batch, and the optimizer's update."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from regard.data.batching import Batch
from regard.models.seq2seq import Seq2Seq
from regard.ops import cuda_graphs
from regard.training.objective import Objective

Shape = tuple[tuple[int, ...], ...]
"""The shapes of all tensors of a batch."""

MAX_GRAPHS = 256
"""The maximum number of shapes that are captured. Any further shape is computed eagerly."""


@final
@dataclass
class GraphedGradient:
    """Adds the gradients of batches to a model's parameters, and returns their losses.

    A shape is computed eagerly when it is first seen, captured when it is seen again, and replayed from then on.
    """

    model: Seq2Seq
    objective: Objective
    graphs: dict[Shape, cuda_graphs.CapturedGraph | None] = field(default_factory=dict)
    gradients: list[Tensor] = field(default_factory=list)

    def zero_grad(self) -> None:
        """Set all gradients to zero. They stay at their addresses, which the graphs refer to."""
        if not self.gradients:
            self.gradients = self._gradients()
        if self.gradients:
            torch._foreach_zero_(self.gradients)

    def __call__(self, batch: Batch, scale: float) -> Tensor:
        """Add the gradient of `scale` times the loss of a batch, and return that loss."""
        shape = tuple(tuple(tensor.shape) for tensor in batch.tensors)
        graph = self.graphs.get(shape)
        if graph is None and shape in self.graphs and sum(map(bool, self.graphs.values())) < MAX_GRAPHS:
            graph = self._capture(batch)
        self.graphs[shape] = graph
        if graph is None:
            return self._backward(batch, scale)
        scale_ = torch.full((), scale, device=batch.target.tokens_BT.device)
        loss: Tensor = graph.run([*batch.tensors, scale_])
        return loss.clone()

    def _backward(self, batch: Batch, scale: Tensor | float) -> Tensor:
        loss = self.objective(self.model, batch) * scale
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def _capture(self, batch: Batch) -> cuda_graphs.CapturedGraph:
        static = batch.clone()
        device = static.target.tokens_BT.device
        scale = torch.ones((), device=device)
        before = self._gradients()
        replay, loss = cuda_graphs.graph_pool(device).capture(lambda: self._backward(static, scale))
        assert len(before) == len(self._gradients()), "a gradient allocated during capture has no fixed address"
        return cuda_graphs.CapturedGraph(replay, [*static.tensors, scale], loss)


@final
@dataclass
class GraphedUpdate:
    """Steps of an optimizer, captured after the first one. The gradients must stay at their addresses."""

    optimizer: torch.optim.Optimizer
    replay: Callable[[], None] | None = None
    stepped: bool = False

    def __call__(self) -> None:
        if self.replay is None and self.stepped:
            device = self.optimizer.param_groups[0]["params"][0].device
            self.replay, _ = cuda_graphs.graph_pool(device).capture(self.optimizer.step)
        if self.replay is None:
            self.optimizer.step()
        else:
            self.replay()
        self.stepped = True
