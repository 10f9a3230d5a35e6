"""CUDA graphs of training steps: gradients, captured once for each shape of batch, and the optimizer's update."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from regard.data.batching import Batch
from regard.models.seq2seq import Seq2Seq
from regard.ops import cuda_graphs
from regard.ops.layers import Linear
from regard.training.objective import LossModule, Objective
from regard.training.optim import gradient_of

Shape = tuple[tuple[int, ...], ...]
"""The shapes of all tensors of a batch."""

MAX_GRAPHS = 256
"""The maximum number of shapes that are captured. Any further shape is computed eagerly."""


@final
class GraphedGradient:
    """Computes the gradients of batches, and returns their losses.

    A shape is computed eagerly when it is first seen, captured when it is seen again, and replayed from then on. In
    bfloat16, the weights of all `Linear` layers are cast once per batch; autocast casts them once per product.
    """

    def __init__(self, model: Seq2Seq, objective: Objective) -> None:
        self.objective = objective
        self.graphs: dict[tuple[Shape, bool], cuda_graphs.CapturedGraph | None] = {}
        """By shape, and whether the gradient is written or added."""
        self._adds = False
        self._loss = LossModule(model)
        parameters = {name: value for name, value in self._loss.named_parameters() if value.requires_grad}
        names = _linear_weights(self._loss) & parameters.keys() if objective.bfloat16 else set()
        self._cast = {name: parameters[name].detach().bfloat16().requires_grad_() for name in sorted(names)}
        self._cast_from = [parameters[name].detach() for name in self._cast]
        self._parameters = list(parameters.values())
        self._leaves = [self._cast.get(name, parameter) for name, parameter in parameters.items()]

    def zero_grad(self) -> None:
        """Replace the gradients by those of the next batch, instead of adding to them."""
        self._adds = False

    def __call__(self, batch: Batch, scale: float) -> Tensor:
        """Compute the gradient of `scale` times the loss of a batch, and return that loss."""
        key = tuple(tuple(tensor.shape) for tensor in batch.tensors), self._adds
        graph = self.graphs.get(key)
        if graph is None and key in self.graphs and sum(map(bool, self.graphs.values())) < MAX_GRAPHS:
            graph = self._capture(batch)
        self.graphs[key] = graph
        if graph is None:
            loss = self._backward(batch, scale)
        else:
            scale_ = torch.full((), scale, device=batch.target.tokens_BT.device)
            loss = graph.run([*batch.tensors, scale_]).clone()
        self._adds = True
        return loss

    def _backward(self, batch: Batch, scale: Tensor | float) -> Tensor:
        if self._cast:
            torch._foreach_copy_([weight.detach() for weight in self._cast.values()], self._cast_from)
        loss: Tensor = functional_call(self._loss, self._cast, (self.objective, batch)) * scale
        self._store(torch.autograd.grad(loss, self._leaves, allow_unused=True))
        return loss.detach()

    def _store(self, grads: tuple[Tensor | None, ...]) -> None:
        """Write gradients to the parameters, or add them."""
        pairs = list(zip(self._parameters, grads, strict=True))
        used = [(gradient_of(parameter), grad) for parameter, grad in pairs if grad is not None]
        # One kernel copies many tensors of equal dtype; tensors of different dtypes are copied one by one.
        for dtype in dict.fromkeys(grad.dtype for _, grad in used):
            targets = [target for target, grad in used if grad.dtype == dtype]
            values = [grad for _, grad in used if grad.dtype == dtype]
            if self._adds:
                torch._foreach_add_(
                    targets, [grad.to(target.dtype) for target, grad in zip(targets, values, strict=True)]
                )
            else:
                torch._foreach_copy_(targets, values)
        if not self._adds:
            for parameter, grad in pairs:
                if grad is None and parameter.grad is not None:
                    parameter.grad.zero_()

    def _capture(self, batch: Batch) -> cuda_graphs.CapturedGraph:
        static = batch.clone()
        device = static.target.tokens_BT.device
        scale = torch.ones((), device=device)
        before = [parameter.grad for parameter in self._parameters]
        replay, loss = cuda_graphs.graph_pool(device).capture(lambda: self._backward(static, scale))
        after = [parameter.grad for parameter in self._parameters]
        assert all(a is b for a, b in zip(before, after, strict=True)), "a gradient must keep its address"
        return cuda_graphs.CapturedGraph(replay, [*static.tensors, scale], loss)


def _linear_weights(module: nn.Module) -> set[str]:
    """Return the names of the parameters of all `Linear` layers."""
    layers = ((name, layer) for name, layer in module.named_modules() if isinstance(layer, Linear))
    return {f"{name}.{parameter}" for name, layer in layers for parameter, _ in layer.named_parameters()}


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
