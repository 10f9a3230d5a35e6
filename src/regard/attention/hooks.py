"""Hooks on an attention: observe or change it at the named points of its equation.

    memory     the values of a memory, when it is prepared
    inputs     the queries, the memory and the past, before anything is computed from them
    scores     the scores, and the visible slots, which a hook can change
    weights    the weights that the context is computed from
    context    the context of each head

B rows, T queries, S memory slots, D width, H heads.
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.memory import Past, PreparedMemory
from regard.attention.scopes import Scope, ScopeInput, ScopeOutput, fold
from regard.attention.scores import Score
from regard.attention.selections import Selection
from regard.ops.hooks import hooks_of


class Reading(NamedTuple):
    """Queries that read a memory with an attention."""

    score: Score
    scope: Scope
    select: Selection
    query_BTD: Tensor
    memory: PreparedMemory
    past: Past

    def positions(self) -> Tensor:
        """Return the positions of the queries in the target, (B, T)."""
        return self.past.positions(*self.query_BTD.shape[:2])

    def restrict(self) -> ScopeOutput:
        """Evaluate the scope and combine it with the mask of the memory, with an axis for heads."""
        slots_S = torch.arange(self.memory.values_BHSD.shape[2], device=self.query_BTD.device)
        scope: ScopeOutput = self.scope(ScopeInput(self.query_BTD, self.positions(), self.memory.lengths_B, slots_S))
        allowed_BTS = fold([self.memory.allowed_BTS, scope.allowed_BTS], torch.logical_and)
        tensors = (allowed_BTS, scope.bias_BTS, scope.factor_BTS)
        return ScopeOutput(*(None if tensor is None else tensor.unsqueeze(1) for tensor in tensors))


class AttentionHook:
    """Base class of hooks, with one method for each point. By default, they change nothing."""

    changes_weights: ClassVar[bool] = False
    """Whether the hook changes visible slots, weights or context, so that the fused path cannot be used."""

    def on_memory(self, keys_BSD: Tensor, values_BSD: Tensor, values_BHSD: Tensor) -> Tensor:
        """Return the values of each head, given the keys and values of the memory."""
        del keys_BSD, values_BSD
        return values_BHSD

    def on_inputs(self, reading: Reading) -> None:
        """Observe the inputs of the equation."""

    def on_scores(self, reading: Reading, scores_BHTS: Tensor, allowed_BHTS: Tensor) -> Tensor:
        """Return the slots that are visible to each query, given those that are visible without the hook."""
        del reading, scores_BHTS
        return allowed_BHTS

    def on_weights(self, reading: Reading, weights_BHTS: Tensor, allowed_BHTS: Tensor | None) -> Tensor:
        """Return the weights, given those of the selection. `allowed_BHTS` is None on the fused path."""
        del reading, allowed_BHTS
        return weights_BHTS

    def on_context(self, reading: Reading, context_BHTD: Tensor) -> Tensor:
        """Return the contexts, given those that are computed from the weights."""
        del reading
        return context_BHTD


class AttentionHooks(tuple[AttentionHook, ...]):
    """The hooks of an attention, one after the other."""

    __slots__ = ()

    @property
    def change_weights(self) -> bool:
        return any(hook.changes_weights for hook in self)

    def on_memory(self, keys_BSD: Tensor, values_BSD: Tensor, values_BHSD: Tensor) -> Tensor:
        for hook in self:
            values_BHSD = hook.on_memory(keys_BSD, values_BSD, values_BHSD)
        return values_BHSD

    def on_inputs(self, reading: Reading) -> None:
        for hook in self:
            hook.on_inputs(reading)

    def on_scores(self, reading: Reading, scores_BHTS: Tensor, allowed_BHTS: Tensor) -> Tensor:
        for hook in self:
            allowed_BHTS = hook.on_scores(reading, scores_BHTS, allowed_BHTS)
        return allowed_BHTS

    def on_weights(self, reading: Reading, weights_BHTS: Tensor, allowed_BHTS: Tensor | None) -> Tensor:
        for hook in self:
            weights_BHTS = hook.on_weights(reading, weights_BHTS, allowed_BHTS)
        return weights_BHTS

    def on_context(self, reading: Reading, context_BHTD: Tensor) -> Tensor:
        for hook in self:
            context_BHTD = hook.on_context(reading, context_BHTD)
        return context_BHTD


_NONE = AttentionHooks()


def find_hooks(attention: nn.Module) -> AttentionHooks:
    """Return the active hooks of an attention."""
    hooks = hooks_of(attention)
    return AttentionHooks(hooks) if hooks else _NONE
