"""The attention equation: the reference implementation that every fast path must match.

    e_j = score(q, k_j)        how well the query matches each key
    a   = select(e | scope)    the weights of the visible slots
    c   = Σ_j a_j v_j          the context

B rows, T queries, S memory slots, D width. Masks are called `allowed`, and are True where a slot is visible.
"""

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from regard.errors import ArgumentTypeError, ConfigError

ScoreFunction = Callable[[Tensor, Tensor], Tensor]


def dot(query_BTD: Tensor, keys_BSD: Tensor) -> Tensor:
    """Return qᵀ k (Luong et al. 2015)."""
    return query_BTD @ keys_BSD.transpose(-1, -2)


def scaled_dot(query_BTD: Tensor, keys_BSD: Tensor) -> Tensor:
    """Return qᵀ k / √d (Vaswani et al. 2017)."""
    return dot(query_BTD, keys_BSD) / math.sqrt(query_BTD.shape[-1])


def softmax(scores_BTS: Tensor, allowed_BTS: Tensor | None) -> Tensor:
    """Softmax over the visible slots. A query without visible slots gets zeros, never NaN."""
    if allowed_BTS is None:
        return scores_BTS.softmax(-1)
    lowest = torch.finfo(scores_BTS.dtype).min
    return scores_BTS.masked_fill(~allowed_BTS, lowest).softmax(-1).masked_fill(~allowed_BTS, 0.0)


def pool(weights_BTS: Tensor, values_BSD: Tensor) -> Tensor:
    """Return the context Σ_j a_j v_j."""
    return weights_BTS @ values_BSD


def zero_masked_slots(slots_BSD: Tensor, allowed_BTS: Tensor | None) -> Tensor:
    """Set the slots that are masked for all queries to zero, so that their content (even NaN) has no effect."""
    if allowed_BTS is None:
        return slots_BSD
    return slots_BSD.masked_fill(~allowed_BTS.any(-2).unsqueeze(-1), 0.0)


def per_query(allowed: Tensor | None) -> Tensor | None:
    """Convert a mask (B, S) or (B, T, S) to (B, T or 1, S). None means that all slots are visible."""
    if allowed is None:
        return None
    return allowed.unsqueeze(1) if allowed.dim() == 2 else allowed


def check_tensors(**arguments: object) -> None:
    """Raise an error that names the first argument that is not a tensor."""
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            raise ArgumentTypeError(f"{name} must be a tensor, not {type(value).__name__}.")


def check_memory(keys_BSD: Tensor) -> None:
    """Raise an error if the memory has no slots."""
    if keys_BSD.shape[1] == 0:
        raise ConfigError(
            f"keys have the shape {tuple(keys_BSD.shape)}: the memory is empty, so there is nothing to attend to. "
            "Pass at least one slot per row, and mask slots with `allowed`."
        )


def check_mask(allowed: Tensor | None, query_BTD: Tensor, keys_BSD: Tensor) -> None:
    """Raise an error unless the mask is boolean and of shape (B, S) or (B, T, S)."""
    if allowed is None:
        return
    check_tensors(allowed=allowed)
    if allowed.dtype != torch.bool:
        raise ConfigError(f"allowed must be a boolean tensor (True = visible), not {allowed.dtype}.")
    rows, queries, slots = *query_BTD.shape[:2], keys_BSD.shape[1]
    if tuple(allowed.shape) not in {(rows, slots), (rows, 1, slots), (rows, queries, slots)}:
        raise ConfigError(
            f"allowed must have the shape {(rows, slots)} or {(rows, queries, slots)} for {rows} rows of {queries} "
            f"queries over {slots} slots, not {tuple(allowed.shape)}."
        )


SCORES: Final[dict[str, ScoreFunction]] = {"dot": dot, "scaled_dot": scaled_dot}


def attend(
    query_BTD: Tensor,
    keys_BSD: Tensor,
    values_BSD: Tensor | None = None,
    *,
    score: str | ScoreFunction = "scaled_dot",
    allowed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Soft attention with a score that has no parameters → (context_BTD, weights_BTS).

    `values` default to the keys. `allowed` is (B, S) or (B, T, S), True where a slot is visible. `score` is a name in
    `SCORES`, or any function (query_BTD, keys_BSD) → scores_BTS.
    """
    if isinstance(score, str) and score not in SCORES:
        raise ConfigError(
            f"'{score}' is not a score without parameters. Choose one of {', '.join(SCORES)}, or use regard.Attention "
            "for the other scores."
        )
    function = SCORES[score] if isinstance(score, str) else score
    check_tensors(query=query_BTD, keys=keys_BSD, values=keys_BSD if values_BSD is None else values_BSD)
    check_memory(keys_BSD)
    check_mask(allowed, query_BTD, keys_BSD)
    allowed_BTS = per_query(allowed)
    keys = zero_masked_slots(keys_BSD, allowed_BTS)
    values = keys if values_BSD is None else zero_masked_slots(values_BSD, allowed_BTS)
    scores_BTS = function(query_BTD, keys)
    weights_BTS = softmax(scores_BTS, None if allowed_BTS is None else allowed_BTS.expand_as(scores_BTS))
    return pool(weights_BTS, values), weights_BTS
