"""Scopes: which slots a query may see, beside those that the memory itself allows; they compose with &.

B rows, T queries, S memory slots, D width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from regard.attention import settings
from regard.errors import ConfigError


class Situation(NamedTuple):
    """What a scope may look at: the queries, the target position of each, each row's own length, the slots."""

    query_BTD: Tensor
    positions_BT: Tensor
    lengths_B: Tensor
    slots_S: Tensor


class View(NamedTuple):
    """What a scope lets through: slots that may be seen (all where None), and a bias added to their scores."""

    allowed_BTS: Tensor | None = None
    bias_BTS: Tensor | None = None
    factor_BTS: Tensor | None = None
    """Multiplies the finished weights, which then sum to less than 1."""


class Scope(nn.Module, ABC):
    """Narrows what may be seen."""

    learned: bool = False
    """Whether it computes with the queries, so that its bias has a gradient."""
    self_only: bool = False
    """Whether it makes sense only where queries and slots are the same sequence."""

    @abstractmethod
    def forward(self, situation: Situation) -> View: ...

    def __and__(self, other: "Scope") -> "Scope":
        return AllOf([self, other])


@final
class Global(Scope):
    """Every slot that the memory allows."""

    def forward(self, situation: Situation) -> View:
        del situation
        return View()


@final
class LocalMonotonic(Scope):
    """Slots t − D … t + D: the alignment is taken to be roughly monotonic (Luong et al. 2015, local-m)."""

    def __init__(self, window: int = 5) -> None:
        super().__init__()
        self.window = window

    def forward(self, situation: Situation) -> View:
        distance_BTS = (situation.slots_S - situation.positions_BT.unsqueeze(-1)).abs()
        return View(distance_BTS <= self.window)


@final
class LocalPredictive(Scope):
    """A window round a predicted position (Luong et al. 2015, local-p).

        p = S σ(v_pᵀ tanh(W_p q)),  slots p − D … p + D,  weights times exp(−(j − p)² / 2σ²),  σ = D / 2

    S is each row's own length. In the paper the weights are left to sum to less than 1; here they are made to sum to
    1 again unless `normalize` is off, which comes to adding the logarithm of the Gaussian to the scores.
    """

    learned = True

    def __init__(self, window: int = 5, *, normalize: bool = True, query_size: int) -> None:
        super().__init__()
        self.window = window
        self.normalize = normalize
        self.inner = nn.Linear(query_size, query_size, bias=False)
        self.outer = nn.Linear(query_size, 1, bias=False)

    def center(self, situation: Situation) -> Tensor:
        """P (B, T), between 0 and the row's length."""
        share_BT = torch.sigmoid(self.outer(torch.tanh(self.inner(situation.query_BTD)))).squeeze(-1)
        return share_BT * situation.lengths_B.unsqueeze(-1)

    def forward(self, situation: Situation) -> View:
        distance_BTS = situation.slots_S - self.center(situation).unsqueeze(-1)
        allowed_BTS = distance_BTS.abs() <= self.window
        log_gauss_BTS = -(distance_BTS**2) / (2 * (self.window / 2) ** 2)
        if self.normalize:
            return View(allowed_BTS, bias_BTS=log_gauss_BTS)
        return View(allowed_BTS, factor_BTS=log_gauss_BTS.exp())


@final
class Causal(Scope):
    """Slots up to the query's own position: the future is never seen."""

    self_only = True

    def forward(self, situation: Situation) -> View:
        return View(situation.slots_S <= situation.positions_BT.unsqueeze(-1))


@final
class AllOf(Scope):
    """What every one of its scopes lets through."""

    def __init__(self, scopes: list[Scope]) -> None:
        super().__init__()
        self.scopes = nn.ModuleList(scopes)
        self.learned = any(scope.learned for scope in scopes)
        self.self_only = any(scope.self_only for scope in scopes)

    def forward(self, situation: Situation) -> View:
        views = [scope(situation) for scope in self.scopes]
        return View(
            fold([view.allowed_BTS for view in views], torch.logical_and),
            fold([view.bias_BTS for view in views], torch.add),
            fold([view.factor_BTS for view in views], torch.mul),
        )


def fold(parts: list[Tensor | None], join: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    """The parts that are there, joined; None where there are none."""
    there = [part for part in parts if part is not None]
    return reduce(join, there) if there else None


def build_scope(choice: settings.Scope, query_size: int) -> Scope:
    options: dict[str, Any] = {name: getattr(choice, name) for name in type(choice).model_fields if name != "kind"}
    match choice:
        case settings.AllOf(scopes=parts):
            return AllOf([build_scope(part, query_size) for part in parts])
        case settings.LocalPredictive():
            return LocalPredictive(**options, query_size=query_size)
        case settings.LocalMonotonic():
            return LocalMonotonic(**options)
        case settings.Causal():
            return Causal()
        case settings.GlobalScope():
            return Global()


def refuse_unless_self(scope: Scope, queries: int, slots: int) -> None:
    """A causal scope over a memory of another length has no meaning."""
    if scope.self_only and queries != slots:
        raise ConfigError(
            f"A causal scope compares positions of one sequence with itself, and here are {queries} queries and "
            f"{slots} slots. Use it in self-attention alone."
        )
