"""Interventions: changes of the weights or of the output of an attention, for some heads and queries.

An intervention acts on the weights that the context is computed from, so that everything after it depends on it. An
attention without interventions runs at full speed.

B rows, H heads, T queries, S memory slots, D width.
"""

import math
from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Literal, NamedTuple, Self, final

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, model_validator
from torch import Tensor, nn

from regard.config import Settings


class Intervention(Settings, ABC):
    """A change of an attention, for one head or all heads."""

    attention: str = Field(description="the name of the attention in the model")
    head: NonNegativeInt | None = Field(None, description="the head, from 0; null for all heads")

    @property
    def query(self) -> int | None:
        """The position of the query, from 0; None for all queries."""
        return None

    def mask_slots(self, allowed_BHTS: Tensor, chosen_BHT1: Tensor) -> Tensor:
        """Return the slots that are visible to each query, given those that are visible without the intervention."""
        del chosen_BHT1
        return allowed_BHTS

    def replace_weights(self, weights_BHTS: Tensor, allowed_BHTS: Tensor, chosen_BHT1: Tensor) -> Tensor:
        """Return the weights, given those of the selection."""
        del allowed_BHTS, chosen_BHT1
        return weights_BHTS

    def replace_context(self, context_BHTD: Tensor, chosen_BHT1: Tensor) -> Tensor:
        """Return the contexts, given those that are computed from the weights."""
        del chosen_BHT1
        return context_BHTD


class RowIntervention(Intervention, ABC):
    """A change of the weights of one query or of all queries."""

    step: NonNegativeInt | None = Field(
        None, description="the target step, or in the encoder the source position, from 0; null for all"
    )

    @property
    def query(self) -> int | None:
        return self.step


@final
class SetRow(RowIntervention):
    """Use these weights, normalized to a sum of 1, in place of those of the model. Slots without a weight get 0."""

    kind: Literal["set_row"] = "set_row"
    weights: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_sum(self) -> Self:
        if not 0 < sum(self.weights) < math.inf:
            raise ValueError(f"weights: their sum is {sum(self.weights)}, so they cannot be normalized to a sum of 1.")
        return self

    def replace_weights(self, weights_BHTS: Tensor, allowed_BHTS: Tensor, chosen_BHT1: Tensor) -> Tensor:
        del allowed_BHTS
        total, slots = math.fsum(self.weights), weights_BHTS.shape[-1]
        row = [weight / total for weight in self.weights[:slots]]
        row_S = weights_BHTS.new_tensor([*row, *[0.0] * (slots - len(row))])
        return torch.where(chosen_BHT1, row_S, weights_BHTS)


@final
class UniformRow(RowIntervention):
    """Use equal weights for all visible slots."""

    kind: Literal["uniform_row"] = "uniform_row"

    def replace_weights(self, weights_BHTS: Tensor, allowed_BHTS: Tensor, chosen_BHT1: Tensor) -> Tensor:
        visible_BHTS = allowed_BHTS.to(weights_BHTS.dtype)
        uniform_BHTS = visible_BHTS / visible_BHTS.sum(-1, keepdim=True).clamp_min(1)
        return torch.where(chosen_BHT1, uniform_BHTS, weights_BHTS)


@final
class MaskKeys(RowIntervention):
    """Set the scores of these keys to −∞, so that the selection distributes the weight over the other keys."""

    kind: Literal["mask_keys"] = "mask_keys"
    keys: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]

    def mask_slots(self, allowed_BHTS: Tensor, chosen_BHT1: Tensor) -> Tensor:
        slots_S = torch.arange(allowed_BHTS.shape[-1], device=allowed_BHTS.device)
        masked_S = torch.isin(slots_S, torch.tensor(self.keys, device=slots_S.device))
        return allowed_BHTS & ~(chosen_BHT1 & masked_S)


@final
class AblateHead(Intervention):
    """Set the output of a head to zero (Michel et al. 2019): its context, before the output projection."""

    kind: Literal["ablate_head"] = "ablate_head"

    def replace_context(self, context_BHTD: Tensor, chosen_BHT1: Tensor) -> Tensor:
        return torch.where(chosen_BHT1, 0.0, context_BHTD)


class ActiveInterventions(NamedTuple):
    """The interventions on an attention, and the positions of the queries that it reads the memory with."""

    interventions: Sequence[Intervention]
    positions_BT: Tensor

    def mask_slots(self, allowed_BHTS: Tensor) -> Tensor:
        """Return the slots that are visible to each query."""
        for each in self.interventions:
            allowed_BHTS = each.mask_slots(allowed_BHTS, self._choose(each, allowed_BHTS.shape[1]))
        return allowed_BHTS

    def replace_weights(self, weights_BHTS: Tensor, allowed_BHTS: Tensor) -> Tensor:
        """Return the weights that the context is computed from."""
        for each in self.interventions:
            chosen_BHT1 = self._choose(each, weights_BHTS.shape[1])
            weights_BHTS = each.replace_weights(weights_BHTS, allowed_BHTS, chosen_BHT1)
        return weights_BHTS

    def replace_context(self, context_BHTD: Tensor) -> Tensor:
        """Return the contexts of all heads."""
        for each in self.interventions:
            context_BHTD = each.replace_context(context_BHTD, self._choose(each, context_BHTD.shape[1]))
        return context_BHTD

    def _choose(self, intervention: Intervention, heads: int) -> Tensor:
        """Return which heads and queries an intervention changes, (B, H, T, 1)."""
        positions_BT = self.positions_BT
        heads_H = torch.arange(heads, device=positions_BT.device)
        chosen_H = torch.ones_like(heads_H, dtype=torch.bool)
        chosen_BT = torch.ones_like(positions_BT, dtype=torch.bool)
        if intervention.head is not None:
            chosen_H = heads_H == intervention.head
        if intervention.query is not None:
            chosen_BT = positions_BT == intervention.query
        return (chosen_H.view(1, -1, 1) & chosen_BT.unsqueeze(1)).unsqueeze(-1)


_active: ContextVar[Mapping[nn.Module, Sequence[Intervention]] | None] = ContextVar("interventions", default=None)


def is_intervening() -> bool:
    """Whether any attention has interventions."""
    return _active.get() is not None


@contextmanager
def intervene(interventions: Mapping[nn.Module, Sequence[Intervention]]) -> Iterator[None]:
    """Change attentions within the block, in this thread only. The interventions replace those of an outer block."""
    token = _active.set(interventions or None)
    try:
        yield
    finally:
        _active.reset(token)


def find_interventions(attention: nn.Module) -> Sequence[Intervention]:
    """Return the interventions on an attention that are active."""
    active = _active.get()
    return () if active is None else active.get(attention, ())
