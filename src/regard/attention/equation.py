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

from regard.arguments import check_floating, check_inputs, check_tensors, check_type
from regard.errors import ConfigError

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


SCORES: Final[dict[str, ScoreFunction]] = {"dot": dot, "scaled_dot": scaled_dot}


def attend(
    query_BTD: Tensor,
    keys_BSD: Tensor,
    values_BSD: Tensor | None = None,
    *,
    score: str | ScoreFunction = "scaled_dot",
    allowed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Soft attention with a score that has no parameters.

    Args:
        query_BTD: The queries.
        keys_BSD: The keys of the memory.
        values_BSD: The values of the memory, by default the keys. Their width may differ.
        score: "dot" or "scaled_dot", or a function (query_BTD, keys_BSD) → scores_BTS.
        allowed: A boolean mask (B, S) or (B, T, S), True where a slot is visible; by default all slots are.

    Returns:
        The contexts (B, T, D), and the attention weights (B, T, S).

    Raises:
        ConfigError: A shape, dtype or device does not match, or the memory is empty.
        ArgumentTypeError: An argument has the wrong type.

    >>> context, weights = regard.attend(query, memory, score="dot", allowed=mask)
    """
    check_type("score", score, (str, Callable), "a name or a function")
    if isinstance(score, str) and score not in SCORES:
        raise ConfigError(
            f"'{score}' is not a score without parameters. Choose one of {', '.join(SCORES)}, or use regard.Attention "
            "for the other scores."
        )
    function = SCORES[score] if isinstance(score, str) else score
    given = keys_BSD if values_BSD is None else values_BSD
    check_tensors(query=query_BTD, keys=keys_BSD, values=given)
    query_size, key_size = (tensor.shape[-1] if tensor.dim() else 0 for tensor in (query_BTD, keys_BSD))
    sizes = query_size, query_size if isinstance(score, str) else key_size, 1
    check_inputs(query_BTD, keys_BSD, values_BSD, allowed, sizes, None)
    allowed_BTS = per_query(allowed)
    keys = zero_masked_slots(keys_BSD, allowed_BTS)
    values = keys if values_BSD is None else zero_masked_slots(values_BSD, allowed_BTS)
    scores_BTS = function(query_BTD, keys)
    _check_scores(scores_BTS, (*query_BTD.shape[:2], keys_BSD.shape[1]))
    check_floating(keys, "the keys are", **{"the result of score": scores_BTS})
    weights_BTS = softmax(scores_BTS, None if allowed_BTS is None else allowed_BTS.expand_as(scores_BTS))
    return pool(weights_BTS, values), weights_BTS


def _check_scores(scores: object, expected: tuple[int, ...]) -> None:
    """Raise an error unless a score function returned a tensor (B, T, S)."""
    check_tensors(**{"the result of score": scores})
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else ()
    if shape != expected:
        raise ConfigError(f"The result of score must have the shape (rows, queries, slots) = {expected}, not {shape}.")
