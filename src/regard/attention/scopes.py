"""Scopes: which slots are visible to a query, in addition to the mask of the memory. Combine scopes with &.

B rows, T queries, S memory slots, D width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import reduce
from typing import Annotated, NamedTuple, final

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention import settings
from regard.attention.mechanisms import MECHANISMS, Mechanism, add_mechanism
from regard.errors import ConfigError
from regard.ops.cost import Cost
from regard.quantities import Length


class ScopeInput(NamedTuple):
    """The queries, their positions in the target, the length of each row of the memory, and the slot indices."""

    query_BTD: Tensor
    positions_BT: Tensor
    lengths_B: Tensor
    slots_S: Tensor


class ScopeOutput(NamedTuple):
    """A mask of the visible slots (None if all are visible), a bias for the scores, and a factor for the weights."""

    allowed_BTS: Tensor | None = None
    bias_BTS: Tensor | None = None
    """Added to the scores."""
    factor_BTS: Tensor | None = None
    """The normalized weights are multiplied by it, so that they sum to less than 1."""

    def visible(self, scores: Tensor) -> Tensor:
        """Return the mask in the shape of the scores."""
        allowed = torch.ones_like(scores, dtype=torch.bool) if self.allowed_BTS is None else self.allowed_BTS
        return allowed.expand_as(scores)

    def add_bias(self, scores: Tensor) -> Tensor:
        return scores if self.bias_BTS is None else scores + self.bias_BTS

    def scale(self, weights: Tensor) -> Tensor:
        return weights if self.factor_BTS is None else weights * self.factor_BTS


class Scope(nn.Module, ABC):
    """Restricts which slots are visible."""

    is_global: bool = False
    """Whether every slot is visible, so that the scope needs no computation."""
    learned: bool = False
    """Whether the bias or the factor depends on the queries, so that it needs a gradient."""
    self_only: bool = False
    """Whether the scope is defined only for self-attention."""
    uses_length: bool = False
    """Whether the scope depends on the length of the memory, which is not known while the memory grows."""

    def visible_weights(self, queries: Cost, slots: Cost) -> Cost:
        """Return the largest number of weights that are not masked; by default, one for each query and slot."""
        return queries * slots

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, inputs: ScopeInput) -> ScopeOutput: ...

    def __and__(self, other: "Scope") -> "Scope":
        return AllOf([self, other])


@final
class Global(Scope):
    """Every slot that the mask of the memory allows."""

    is_global = True

    def forward(self, inputs: ScopeInput) -> ScopeOutput:
        del inputs
        return ScopeOutput()


@final
class LocalMonotonic(Scope):
    """Slots t − D … t + D, assuming a roughly monotonic alignment (Luong et al. 2015, local-m)."""

    def __init__(
        self, window: Annotated[Length, Field(description="D: slots t − D to t + D are visible to query t")] = 5
    ) -> None:
        super().__init__()
        self.window = window

    def visible_weights(self, queries: Cost, slots: Cost) -> Cost:
        del slots
        return (2 * self.window + 1) * queries

    def forward(self, inputs: ScopeInput) -> ScopeOutput:
        distance_BTS = (inputs.slots_S - inputs.positions_BT.unsqueeze(-1)).abs()
        return ScopeOutput(distance_BTS <= self.window)


@final
class LocalPredictive(Scope):
    """A window around a predicted slot (Luong et al. 2015, local-p).

        p = S sigmoid(v_pᵀ tanh(W_p q)),  slots p − D … p + D,  weights times exp(−(j − p)² / 2σ²),  σ = D / 2

    S is the length of each row. The weights sum to less than 1, as in the paper: the context is larger if the window is
    centered on the slots that the score selects, and this is what p learns from. `normalize=True` normalizes the
    weights again, which is equivalent to adding the logarithm of the Gaussian to the scores. Then a score that selects
    one slot outweighs the Gaussian, and p has no gradient.

    The learned parameter is √d v_p, where d is the width of the queries. Adam changes each parameter by about the
    learning rate, however small its gradient is. If v_p is the parameter, each of the d terms of v_pᵀ tanh(…) changes
    by about as much. This saturates the sigmoid in the first steps of training, when the gradient of p is mostly noise,
    and the window stays at one end of the row. The paper uses SGD, for which v_p can be the parameter: `scaled=False`.
    """

    learned = True
    uses_length = True

    def __init__(
        self,
        window: Annotated[
            Length, Field(description="D: slots p − D to p + D are visible, weighted by a Gaussian with σ = D/2")
        ] = 10,
        *,
        normalize: Annotated[
            bool, Field(description="normalize the weights again, so that they sum to 1; the paper does not")
        ] = False,
        scaled: Annotated[
            bool,
            Field(
                description="learn √d v_p instead of v_p (d: width of the query), so that Adam does not saturate the "
                "sigmoid early in training"
            ),
        ] = True,
        query_size: int,
    ) -> None:
        super().__init__()
        self.window = window
        self.normalize = normalize
        self.scale = query_size**-0.5 if scaled else 1.0
        self.inner = nn.Linear(query_size, query_size, bias=False)
        self.outer = nn.Linear(query_size, 1, bias=False)

    def visible_weights(self, queries: Cost, slots: Cost) -> Cost:
        del slots
        return (2 * self.window + 1) * queries

    def center(self, inputs: ScopeInput) -> Tensor:
        """Predict the slot p (B, T), a number between 0 and the length of the row."""
        logit_BT = self.outer(torch.tanh(self.inner(inputs.query_BTD))).squeeze(-1)
        # bfloat16 cannot represent all integers above 256, so it would round slots.
        wide_BT = logit_BT.to(torch.promote_types(logit_BT.dtype, torch.float32))
        return torch.sigmoid(self.scale * wide_BT) * inputs.lengths_B.unsqueeze(-1)

    def forward(self, inputs: ScopeInput) -> ScopeOutput:
        distance_BTS = inputs.slots_S - self.center(inputs).unsqueeze(-1)
        allowed_BTS = distance_BTS.abs() <= self.window
        log_gauss_BTS = -(distance_BTS**2) / (2 * (self.window / 2) ** 2)
        if self.normalize:
            return ScopeOutput(allowed_BTS, bias_BTS=log_gauss_BTS)
        return ScopeOutput(allowed_BTS, factor_BTS=log_gauss_BTS.exp())


@final
class Causal(Scope):
    """Slots up to the query's own position; later slots are masked. If `strict`, its own slot is masked, too."""

    self_only = True

    def __init__(
        self, strict: Annotated[bool, Field(description="mask the query's own slot as well as later ones")] = False
    ) -> None:
        super().__init__()
        self.strict = strict

    def visible_weights(self, queries: Cost, slots: Cost) -> Cost:
        return 0.5 * queries * slots + (-0.5 if self.strict else 0.5) * queries

    def forward(self, inputs: ScopeInput) -> ScopeOutput:
        positions_BT1 = inputs.positions_BT.unsqueeze(-1)
        return ScopeOutput(inputs.slots_S < positions_BT1 if self.strict else inputs.slots_S <= positions_BT1)


@final
class AllOf(Scope):
    """The intersection of several scopes."""

    def __init__(self, scopes: list[Scope]) -> None:
        super().__init__()
        self.scopes = nn.ModuleList(scopes)
        self.learned = any(scope.learned for scope in scopes)
        self.self_only = any(scope.self_only for scope in scopes)
        self.uses_length = any(scope.uses_length for scope in scopes)
        self.is_global = all(scope.is_global for scope in scopes)

    def visible_weights(self, queries: Cost, slots: Cost) -> Cost:
        """Return the number of the scope that restricts long memories most."""
        numbers = [scope.visible_weights(queries, slots) for scope in self._scopes()]
        return min(numbers, key=lambda number: number(1e6, 1e6))

    def _scopes(self) -> list[Scope]:
        return [scope for scope in self.scopes if isinstance(scope, Scope)]

    def forward(self, inputs: ScopeInput) -> ScopeOutput:
        outputs = [scope(inputs) for scope in self.scopes]
        return ScopeOutput(
            fold([output.allowed_BTS for output in outputs], torch.logical_and),
            fold([output.bias_BTS for output in outputs], torch.add),
            fold([output.factor_BTS for output in outputs], torch.mul),
        )


def fold(tensors: list[Tensor | None], combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    """Combine the tensors that are not None; return None if there are none."""
    present = [tensor for tensor in tensors if tensor is not None]
    return reduce(combine, present) if present else None


def register_scope(name: str, scope: Callable[..., Scope]) -> None:
    """Register a scope: a subclass of `Scope`, or a function that builds one.

    It is called with `query_size` if it has a parameter of this name. Its other parameters are options.
    """
    registry = settings.Scope.registry
    registry.register(settings.Scope, name, scope)
    if name in registry.plugins:
        citation = f"registered by {registry.plugins[name]}"
        add_mechanism(Mechanism(name, MECHANISMS["bahdanau"].equation, citation, "additive", scope=name))


def _build_all_of(scopes: Annotated[tuple[settings.Scope, ...], Field(min_length=1)], query_size: int) -> AllOf:
    return AllOf([scope.build_part(query_size=query_size) for scope in scopes])


def check_self_attention(scope: Scope, queries: int, slots: int) -> None:
    """Raise an error for a causal scope if queries and slots cannot be the same sequence."""
    if scope.self_only and queries != slots:
        raise ConfigError(
            f"A causal scope needs self-attention: it compares positions within one sequence, but there are {queries} "
            f"queries and {slots} slots. Use another scope."
        )


register_scope("global", Global)
register_scope("local_m", LocalMonotonic)
register_scope("local_p", LocalPredictive)
register_scope("causal", Causal)
register_scope("all_of", _build_all_of)
