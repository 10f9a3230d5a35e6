"""Interventions: changes of the values, the weights or the output of an attention.

An intervention acts on the weights that the context is computed from, so that everything after it depends on it. An
attention without interventions runs at full speed.

B rows, H heads, T queries, S memory slots, D width.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self, final

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention.hooks import AttentionHook, Reading
from regard.config import Settings
from regard.ops.hooks import active_hooks, use_hooks
from regard.quantities import OptionalCount, Weight


class Intervention(AttentionHook):
    """A change of an attention."""


@final
@dataclass(frozen=True, eq=False)
class ZeroValues(Intervention):
    """Set the values of the slots that are True in `slots_BS` to zero, in an attention to S slots (value zeroing,
    Mohebbi et al. 2023). The weights do not change.
    """

    slots_BS: Tensor

    def on_memory(self, keys_BSD: Tensor, values_BSD: Tensor, values_BHSD: Tensor) -> Tensor:
        del keys_BSD, values_BSD
        if self.slots_BS.shape[1] != values_BHSD.shape[2]:
            return values_BHSD
        return values_BHSD.masked_fill(self.slots_BS[:, None, :, None], 0.0)


class HeadIntervention(Settings, Intervention):
    """A change of one head or all heads of an attention, for one query or all queries."""

    changes_weights: ClassVar[bool] = True

    attention: str = Field(description="the name of the attention in the model")
    head: OptionalCount | None = Field(None, description="the head, from 0; null for all heads")

    @property
    def query(self) -> int | None:
        """The position of the query, from 0; None for all queries."""
        return None

    def choose(self, reading: Reading, heads: int) -> Tensor:
        """Return which heads and queries are changed, (B, H, T, 1)."""
        positions_BT = reading.positions()
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

    def on_weights(self, reading: Reading, weights_BHTS: Tensor, allowed_BHTS: Tensor | None) -> Tensor:
        del allowed_BHTS
        total, slots = math.fsum(self.weights), weights_BHTS.shape[-1]
        row = [weight / total for weight in self.weights[:slots]]
        row_S = weights_BHTS.new_tensor([*row, *[0.0] * (slots - len(row))])
        return torch.where(self.choose(reading, weights_BHTS.shape[1]), row_S, weights_BHTS)


@final
class UniformRow(RowIntervention):
    """Use equal weights for all visible slots."""

    kind: Literal["uniform_row"] = "uniform_row"

    def on_weights(self, reading: Reading, weights_BHTS: Tensor, allowed_BHTS: Tensor | None) -> Tensor:
        assert allowed_BHTS is not None
        visible_BHTS = allowed_BHTS.to(weights_BHTS.dtype)
        uniform_BHTS = visible_BHTS / visible_BHTS.sum(-1, keepdim=True).clamp_min(1)
        return torch.where(self.choose(reading, weights_BHTS.shape[1]), uniform_BHTS, weights_BHTS)


@final
class MaskKeys(RowIntervention):
    """Set the scores of these keys to −∞, so that the selection distributes the weight over the other keys."""

    kind: Literal["mask_keys"] = "mask_keys"
    keys: Annotated[tuple[OptionalCount, ...], Field(min_length=1)]

    def on_scores(self, reading: Reading, scores_BHTS: Tensor, allowed_BHTS: Tensor) -> Tensor:
        del scores_BHTS
        slots_S = torch.arange(allowed_BHTS.shape[-1], device=allowed_BHTS.device)
        masked_S = torch.isin(slots_S, torch.tensor(self.keys, device=slots_S.device))
        return allowed_BHTS & ~(self.choose(reading, allowed_BHTS.shape[1]) & masked_S)


@final
class AblateHead(HeadIntervention):
    """Set the output of a head to zero (Michel et al. 2019): its context, before the output projection."""

    kind: Literal["ablate_head"] = "ablate_head"

    def on_context(self, reading: Reading, context_BHTD: Tensor) -> Tensor:
        return torch.where(self.choose(reading, context_BHTD.shape[1]), 0.0, context_BHTD)


@contextmanager
def intervene(interventions: Mapping[nn.Module, Sequence[Intervention]]) -> Iterator[None]:
    """Change attentions within the block, in this thread only. The interventions replace those of an outer block; they
    act before other hooks, which observe what changed.
    """
    others = {
        module: [hook for hook in hooks if not isinstance(hook, Intervention)]
        for module, hooks in active_hooks().items()
    }
    modules = dict.fromkeys([*interventions, *others])
    changed = {module: [*interventions.get(module, ()), *others.get(module, ())] for module in modules}
    with use_hooks({module: hooks for module, hooks in changed.items() if hooks}):
        yield
