"""A prepared memory, the state of an attention between steps, and the result of reading the memory.

B rows, T queries, S memory slots, D width, H heads.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.selections import SampledSlot
from regard.ops.attention import ScoreBias


def repeat_rows(tensor: Tensor, count: int) -> Tensor:
    """Repeat each row, as `repeat_interleave` does, which cannot be exported to ONNX with a variable count."""
    return tensor.unsqueeze(1).expand(-1, count, *tensor.shape[1:]).flatten(0, 1)


class PreparedMemory(NamedTuple):
    """Everything that depends only on the source, computed once."""

    prepared: Tensor
    """The part of the scores that depends only on the keys."""
    values_BHSD: Tensor
    allowed_BTS: Tensor | None
    """The mask of the memory; None if all slots are visible."""
    lengths_B: Tensor
    score_bias: ScoreBias | None = None
    """The mask for the fused path, if that is supported and all queries share the mask."""
    zeroed: bool = True
    """Whether masked slots are zero."""

    def for_query(self, query: int) -> "PreparedMemory":
        """Return the memory with the mask of one of the queries."""
        if self.allowed_BTS is None or self.allowed_BTS.shape[1] == 1:
            return self
        return self._replace(allowed_BTS=self.allowed_BTS[:, query : query + 1])

    def repeat(self, hypotheses: int) -> "PreparedMemory":
        """Return the memory with a row for each hypothesis of a sentence."""
        prepared, values, allowed, lengths = (
            None if tensor is None else repeat_rows(tensor, hypotheses) for tensor in self[:4]
        )
        return PreparedMemory(prepared, values, allowed, lengths, zeroed=self.zeroed)  # type: ignore[arg-type] # only the mask is optional


class Past(NamedTuple):
    """The state of an attention between steps. What the mechanism does not use is None."""

    position_B: Tensor
    """The target position of each row."""
    weights_BHS: Tensor | None = None
    """The weights of the last step, or the sum over all steps."""
    belief_BHS: Tensor | None = None
    """The probability that each slot was read last."""

    def positions(self, rows: int, queries: int) -> Tensor:
        """Return the positions of the next queries, (B, T): consecutive steps of a row, or the hypotheses of a
        sentence, each with its own position.
        """
        if self.position_B.shape[0] != rows:
            return self.position_B.view(rows, queries)
        return self.position_B.unsqueeze(1) + torch.arange(queries, device=self.position_B.device)


class Attended(NamedTuple):
    """The context of each query, and the attention weights unless a fused kernel computed the context."""

    context_BTD: Tensor
    weights: Tensor | None
    """(B, T, S) for a single head, (B, H, T, S) for several."""
    past: Past
    sample: SampledSlot | None = None

    def one_query_per_row(self) -> "Attended":
        """Return the result with a row for each query: (B, T, D) → (B T, 1, D)."""
        weights = None if self.weights is None else self.weights.movedim(-2, 1).flatten(0, 1).unsqueeze(-2)
        return Attended(self.context_BTD.flatten(0, 1).unsqueeze(1), weights, self.past)
