"""Interventions: changes of the values, the weights or the output of an attention.

An intervention acts on the weights that the context is computed from, so that everything after it depends on it. An
attention without interventions runs at full speed.

B rows, H heads, T queries, S memory slots, D width.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, final

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.config import Settings
from regard.quantities import OptionalCount, Weight


class Intervention:
    """A change of an attention. By default, every step of the equation stays as it is.

    Masks, weights and contexts are given with the position of each query.
    """

    changes_weights: ClassVar[bool] = True
    """Whether the weights are changed or read, which the fused path does not store."""

    def replace_values(self, values_BHSD: Tensor) -> Tensor:
        """Return the values, given those of the memory."""
        return values_BHSD

    def mask_slots(self, allowed_BHTS: Tensor, positions_BT: Tensor) -> Tensor:
        """Return the slots that are visible to each query, given those that are visible without the intervention."""
        del positions_BT
        return allowed_BHTS

    def replace_weights(self, weights_BHTS: Tensor, allowed_BHTS: Tensor, positions_BT: Tensor) -> Tensor:
        """Return the weights, given those of the selection."""
        del allowed_BHTS, positions_BT
        return weights_BHTS

    def replace_context(self, context_BHTD: Tensor, positions_BT: Tensor) -> Tensor:
        """Return the contexts, given those that are computed from the weights."""
        del positions_BT
        return context_BHTD


@final
@dataclass(frozen=True, eq=False)
class ZeroValues(Intervention):
    """Set the values of the slots that are True in `slots_BS` to zero, in an attention to S slots (value zeroing,
    Mohebbi et al. 2023). The weights do not change.
    """

    changes_weights: ClassVar[bool] = False
    slots_BS: Tensor

    def replace_values(self, values_BHSD: Tensor) -> Tensor:
        if self.slots_BS.shape[1] != values_BHSD.shape[2]:
            return values_BHSD
        return values_BHSD.masked_fill(self.slots_BS[:, None, :, None], 0.0)


class HeadIntervention(Settings, Intervention):
    """A change of one head or all heads of an attention, for one query or all queries."""

    attention: str = Field(description="the name of the attention in the model")
    head: OptionalCount | None = Field(None, description="the head, from 0; null for all heads")

    @property
    def query(self) -> int | None:
        """The position of the query, from 0; None for all queries."""
        return None

    def choose(self, heads: int, positions_BT: Tensor) -> Tensor:
        """Return which heads and queries are changed, (B, H, T, 1)."""
        heads_H = torch.arange(heads, device=positions_BT.device)
        chosen_H = torch.ones_like(heads_H, dtype=torch.bool) if self.head is None else heads_H == self.head
        chosen_BT = torch.ones_like(positions_BT, dtype=torch.bool)
        if self.query is not None:
            chosen_BT = positions_BT == self.query
        return (chosen_H.view(1, -1, 1) & chosen_BT.unsqueeze(1)).unsqueeze(-1)


class RowIntervention(HeadIntervention):
    """A change of the weights of one query or of all queries."""

    step: OptionalCount | None = Field(
        None, description="the target step, or in the encoder the source position, from 0; null for all"
    )

    @property
    def query(self) -> int | None:
        return self.step


@final
class SetRow(RowIntervention):
    """Use these weights, normalized to a sum of 1, in place of those of the model. Slots without a weight get 0."""

    kind: Literal["set_row"] = "set_row"
    weights: Annotated[tuple[Weight, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_sum(self) -> Self:
        if not 0 < sum(self.weights) < math.inf:
            raise ValueError(f"weights: their sum is {sum(self.weights)}, so they cannot be normalized to a sum of 1.")
        return self

    def replace_weights(self, weights_BHTS: Tensor, allowed_BHTS: Tensor, positions_BT: Tensor) -> Tensor:
        del allowed_BHTS
        total, slots = math.fsum(self.weights), weights_BHTS.shape[-1]
        row = [weight / total for weight in self.weights[:slots]]
        row_S = weights_BHTS.new_tensor([*row, *[0.0] * (slots - len(row))])
        return torch.where(self.choose(weights_BHTS.shape[1], positions_BT), row_S, weights_BHTS)


@final
class UniformRow(RowIntervention):
    """Use equal weights for all visible slots."""

    kind: Literal["uniform_row"] = "uniform_row"

    def replace_weights(self, weights_BHTS: Tensor, allowed_BHTS: Tensor, positions_BT: Tensor) -> Tensor:
        visible_BHTS = allowed_BHTS.to(weights_BHTS.dtype)
        uniform_BHTS = visible_BHTS / visible_BHTS.sum(-1, keepdim=True).clamp_min(1)
        return torch.where(self.choose(weights_BHTS.shape[1], positions_BT), uniform_BHTS, weights_BHTS)


@final
class MaskKeys(RowIntervention):
    """Set the scores of these keys to −∞, so that the selection distributes the weight over the other keys."""

    kind: Literal["mask_keys"] = "mask_keys"
    keys: Annotated[tuple[OptionalCount, ...], Field(min_length=1)]

    def mask_slots(self, allowed_BHTS: Tensor, positions_BT: Tensor) -> Tensor:
        slots_S = torch.arange(allowed_BHTS.shape[-1], device=allowed_BHTS.device)
        masked_S = torch.isin(slots_S, torch.tensor(self.keys, device=slots_S.device))
        return allowed_BHTS & ~(self.choose(allowed_BHTS.shape[1], positions_BT) & masked_S)


@final
class AblateHead(HeadIntervention):
    """Set the output of a head to zero (Michel et al. 2019): its context, before the output projection."""

    kind: Literal["ablate_head"] = "ablate_head"

    def replace_context(self, context_BHTD: Tensor, positions_BT: Tensor) -> Tensor:
        return torch.where(self.choose(context_BHTD.shape[1], positions_BT), 0.0, context_BHTD)


class ActiveInterventions(NamedTuple):
    """The interventions on an attention, and the positions of the queries that it reads the memory with."""

    interventions: Sequence[Intervention]
    positions_BT: Tensor

    def mask_slots(self, allowed_BHTS: Tensor) -> Tensor:
        """Return the slots that are visible to each query."""
        for each in self.interventions:
            allowed_BHTS = each.mask_slots(allowed_BHTS, self.positions_BT)
        return allowed_BHTS

    def replace_weights(self, weights_BHTS: Tensor, allowed_BHTS: Tensor) -> Tensor:
        """Return the weights that the context is computed from."""
        for each in self.interventions:
            weights_BHTS = each.replace_weights(weights_BHTS, allowed_BHTS, self.positions_BT)
        return weights_BHTS

    def replace_context(self, context_BHTD: Tensor) -> Tensor:
        """Return the contexts of all heads."""
        for each in self.interventions:
            context_BHTD = each.replace_context(context_BHTD, self.positions_BT)
        return context_BHTD


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


def replace_values(attention: nn.Module, values_BHSD: Tensor) -> Tensor:
    """Return the values of an attention, changed by its interventions."""
    for each in find_interventions(attention):
        values_BHSD = each.replace_values(values_BHSD)
    return values_BHSD


def changes_weights(attention: nn.Module) -> bool:
    """Whether an intervention changes or reads the weights of an attention."""
    return any(each.changes_weights for each in find_interventions(attention))
