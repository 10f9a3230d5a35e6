"""The one equation, in plain tensor code; this file defines the truth that every fast path is held to.

    e_j = score(q, k_j)        what matches
    a   = select(e | scope)    who is seen, and how much
    c   = Σ_j a_j v_j          what is read

B rows, T queries, S memory slots, D width. Masks are True where a slot may be seen, and called `allowed`.
"""

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from regard.errors import ArgumentTypeError, ConfigError

ScoreFunction = Callable[[Tensor, Tensor], Tensor]


def dot(query_BTD: Tensor, keys_BSD: Tensor) -> Tensor:
    """E = qᵀ k (Luong et al. 2015)."""
    return query_BTD @ keys_BSD.transpose(-1, -2)


def scaled_dot(query_BTD: Tensor, keys_BSD: Tensor) -> Tensor:
    """E = qᵀ k / √d (Vaswani et al. 2017)."""
    return dot(query_BTD, keys_BSD) / math.sqrt(query_BTD.shape[-1])


def softmax(scores_BTS: Tensor, allowed_BTS: Tensor | None) -> Tensor:
    """The weights of the visible slots; a query that may see nothing gets zeros, never NaN."""
    if allowed_BTS is None:
        return scores_BTS.softmax(-1)
    lowest = torch.finfo(scores_BTS.dtype).min
    return scores_BTS.masked_fill(~allowed_BTS, lowest).softmax(-1).masked_fill(~allowed_BTS, 0.0)


def pool(weights_BTS: Tensor, values_BSD: Tensor) -> Tensor:
    """C = Σ_j a_j v_j."""
    return weights_BTS @ values_BSD


def blank_unseen(slots_BSD: Tensor, allowed_BTS: Tensor | None) -> Tensor:
    """The slots with those that no query may see set to zero: what lies there (even NaN) cannot matter."""
    if allowed_BTS is None:
        return slots_BSD
    return slots_BSD.masked_fill(~allowed_BTS.any(-2).unsqueeze(-1), 0.0)


def per_query(allowed: Tensor | None) -> Tensor | None:
    """A mask for slots (B, S) or for queries and slots (B, T, S), as (B, T or 1, S); None where all may be seen."""
    if allowed is None:
        return None
    return allowed.unsqueeze(1) if allowed.dim() == 2 else allowed


def check_tensors(**arguments: object) -> None:
    """Raise unless every argument is a tensor, naming the first that is not."""
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            raise ArgumentTypeError(f"{name} must be a tensor, not {type(value).__name__}.")


def check_memory(keys_BSD: Tensor) -> None:
    """Raise for a memory without slots: there is nothing to attend to."""
    if keys_BSD.shape[1] == 0:
        raise ConfigError(
            f"keys have the shape {tuple(keys_BSD.shape)}: the memory is empty, so there is nothing to attend to. "
            "Give at least one slot for each row, and mask the slots that must not be seen with `allowed`."
        )


def check_mask(allowed: Tensor | None, query_BTD: Tensor, keys_BSD: Tensor) -> None:
    """Refuse a mask of another type or shape than (B, S) or (B, T, S), naming both."""
    if allowed is None:
        return
    check_tensors(allowed=allowed)
    if allowed.dtype != torch.bool:
        raise ConfigError(f"A mask must be boolean, True = may be seen; this one is {allowed.dtype}.")
    rows, queries, slots = *query_BTD.shape[:2], keys_BSD.shape[1]
    if tuple(allowed.shape) not in {(rows, slots), (rows, 1, slots), (rows, queries, slots)}:
        raise ConfigError(
            f"A mask for {rows} rows of {queries} queries over {slots} slots has the shape {(rows, slots)} or "
            f"{(rows, queries, slots)}; this one has {tuple(allowed.shape)}."
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

    `values` default to the keys; `allowed` is (B, S) or (B, T, S), True where a slot may be seen; `score`
    is a name in `SCORES` or any function of (query_BTD, keys_BSD) → scores_BTS.
    """
    if isinstance(score, str) and score not in SCORES:
        raise ConfigError(
            f"'{score}' is no score without parameters; those are {', '.join(SCORES)}. "
            "For the others build a regard.Attention."
        )
    function = SCORES[score] if isinstance(score, str) else score
    check_tensors(query=query_BTD, keys=keys_BSD, values=keys_BSD if values_BSD is None else values_BSD)
    check_memory(keys_BSD)
    check_mask(allowed, query_BTD, keys_BSD)
    visible = per_query(allowed)
    keys = blank_unseen(keys_BSD, visible)
    values = keys if values_BSD is None else blank_unseen(values_BSD, visible)
    scores_BTS = function(query_BTD, keys)
    weights_BTS = softmax(scores_BTS, None if visible is None else visible.expand_as(scores_BTS))
    return pool(weights_BTS, values), weights_BTS
