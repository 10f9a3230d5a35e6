"""A prepared memory, the state of an attention between steps, and the result of reading the memory.

B rows, T queries, S memory slots, D width, H heads.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.arguments import check_floating, check_sequence
from regard.attention.selections import SampledPosition
from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import quantity
from regard.ops.dot_product_attention import ScoreBias


class Keys(NamedTuple):
    """A prepared memory: everything that depends only on the source, computed once."""

    prepared: Tensor
    values_BHSD: Tensor
    allowed_BTS: Tensor | None
    """The mask of the memory; None if all slots are visible."""
    lengths_B: Tensor
    score_bias: ScoreBias | None = None
    """The mask for the fused path, if that is supported and all queries share the mask."""

    def for_query(self, query: int) -> "Keys":
        """Return the memory with the mask of one of the queries."""
        if self.allowed_BTS is None or self.allowed_BTS.shape[1] == 1:
            return self
        return self._replace(allowed_BTS=self.allowed_BTS[:, query : query + 1])


class Past(NamedTuple):
    """The state of an attention between steps. What the mechanism does not use is None."""

    position_B: Tensor
    """The target position of each row."""
    weights_BHS: Tensor | None = None
    """The weights of the last step, or the sum over all steps."""
    belief_BHS: Tensor | None = None
    """The probability that each slot is the last position."""

    def positions(self, rows: int, queries: int) -> Tensor:
        """Return the positions of the next queries, (B, T): consecutive steps of a row, or the hypotheses of a
        sentence, each with its own position.
        """
        if len(self.position_B) != rows:
            return self.position_B.view(rows, queries)
        return self.position_B.unsqueeze(1) + torch.arange(queries, device=self.position_B.device)


class Attended(NamedTuple):
    """The context of each query, and the attention weights if requested."""

    context_BTD: Tensor
    weights: Tensor | None
    """(B, T, S) for a single head, (B, H, T, S) for several."""
    past: Past
    sample: SampledPosition | None = None


def check_prepared(query_BTD: Tensor, keys: object, past: object, size: int) -> None:
    """Raise an error unless a query of this size can read a prepared memory.

    The query has one row for each row of the memory, or several (the hypotheses of a sentence). This is called at each
    step, so it does not read the values of tensors.
    """
    check_sequence("query", query_BTD, size)
    check_keys(keys)
    check_past(past)
    assert isinstance(keys, Keys)
    values_BHSD = keys.values_BHSD
    check_floating(values_BHSD, "the memory is", query=query_BTD)
    rows, slots_rows = query_BTD.shape[0], values_BHSD.shape[0]
    if rows != slots_rows and (slots_rows == 0 or rows == 0 or rows % slots_rows):
        raise ConfigError(
            f"query has {quantity(rows, 'row')}, but keys has {slots_rows}. Pass the same number of rows, or a "
            "multiple of it."
        )


def check_keys(keys: object) -> None:
    if not isinstance(keys, Keys):
        raise ArgumentTypeError(f"keys must be what `prepare` returned, not {type(keys).__name__}.")


def check_past(past: object) -> None:
    if not isinstance(past, Past):
        raise ArgumentTypeError(f"past must be what `begin` or the last step returned, not {type(past).__name__}.")
