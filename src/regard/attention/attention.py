"""Attention: one final class that holds a score, a scope and a selection.

B rows, T queries, S memory slots, D width.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from regard.attention import equation
from regard.attention.mechanisms import MECHANISMS
from regard.attention.record import Recordable
from regard.attention.scopes import build_scope
from regard.attention.scores import build_score
from regard.attention.selections import build_selection
from regard.attention.settings import AttentionSettings
from regard.config import resolve
from regard.errors import ConfigError, did_you_mean

Part = str | Mapping[str, Any]


class Keys(NamedTuple):
    """A memory made ready to be attended to: what depends on the source alone, worked out once."""

    prepared: Tensor
    values_BSD: Tensor
    allowed_BTS: Tensor


class Past(NamedTuple):
    """What a mechanism remembers of the steps before: for now, at which target position a row stands."""

    position_B: Tensor


class Attended(NamedTuple):
    """What a query read, with which weights, and what the next query needs to know of it."""

    context_BTD: Tensor
    weights_BTS: Tensor
    past: Past | None


@final
class Attention(Recordable):
    """Σ_j a_j v_j with a = select(score(q, k) | scope).

    Score, scope and selection are a name or a mapping {"kind": name, options}. `forward` does all at once;
    a decoder calls `prepare` once per source and `read` once per step.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        score: Part = "additive",
        scope: Part = "global",
        select: Part = "softmax",
    ) -> None:
        super().__init__()
        settings = resolve(AttentionSettings, {"score": score, "scope": scope, "select": select}, {})
        self.score = build_score(settings.score, query_size, key_size)
        self.scope = build_scope(settings.scope)
        self.select = build_selection(settings.select)

    @classmethod
    def named(cls, name: str, query_size: int, key_size: int) -> "Attention":
        """A mechanism by its name in the literature; `regard.mechanisms()` lists them."""
        if name not in MECHANISMS:
            near = did_you_mean(name, MECHANISMS)
            raise ConfigError(f"'{name}' is no mechanism.{near} Known: {', '.join(MECHANISMS)}.")
        return cls(query_size, key_size, **MECHANISMS[name].parts)

    @classmethod
    def from_settings(cls, settings: AttentionSettings, query_size: int, key_size: int) -> "Attention":
        return cls(query_size, key_size, **settings.model_dump())

    def prepare(self, keys_BSD: Tensor, values_BSD: Tensor | None = None, allowed: Tensor | None = None) -> Keys:
        """The memory's side of the equation; `values` default to the keys."""
        allowed_BTS = equation.per_query(allowed, keys_BSD)
        keys = equation.blank_unseen(keys_BSD, allowed_BTS)
        values = keys if values_BSD is None else equation.blank_unseen(values_BSD, allowed_BTS)
        return Keys(self.score.prepare(keys), values, allowed_BTS)

    def begin(self, keys: Keys) -> Past | None:
        """The past of a decoder that has not yet taken a step; None where the mechanism needs none."""
        if not self.scope.positional:
            return None
        rows = keys.values_BSD.shape[0]
        return Past(torch.zeros(rows, dtype=torch.long, device=keys.values_BSD.device))

    def read(self, query_BTD: Tensor, keys: Keys, past: Past | None = None) -> Attended:
        """What each query reads from a prepared memory."""
        scores_BTS = self.score(query_BTD, keys.prepared)
        positions_BT = None
        if past is not None:
            steps_T = torch.arange(query_BTD.shape[1], device=query_BTD.device)
            positions_BT = past.position_B.unsqueeze(1) + steps_T
            past = Past(past.position_B + query_BTD.shape[1])
        allowed_BTS = self.scope(keys.allowed_BTS, positions_BT).expand_as(scores_BTS)
        weights_BTS = self.select(scores_BTS, allowed_BTS)
        self.keep(weights_BTS)
        return Attended(equation.pool(weights_BTS, keys.values_BSD), weights_BTS, past)

    def forward(
        self,
        query_BTD: Tensor,
        keys_BSD: Tensor,
        values_BSD: Tensor | None = None,
        *,
        allowed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """→ (context_BTD, weights_BTS); the mask is (B, S) or (B, T, S), True = may be seen."""
        keys = self.prepare(keys_BSD, values_BSD, allowed)
        attended = self.read(query_BTD, keys, self.begin(keys))
        return attended.context_BTD, attended.weights_BTS
