"""Fast paths. Each may refuse, with the reason as text; none may differ from the equation.

    fused       PyTorch's fused attention: for scores that are dot products in disguise, when no weights are asked for
    chunked     the additive score in bounded pieces (`additive.py`): taken by itself when the whole would be large
    reference   the equation, written out

B rows, T queries, S memory slots, D width, H heads.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.scopes import Scope
from regard.attention.scores import Additive, Concat, InnerProduct, LocationAware, Score
from regard.attention.selections import Selection, Softmax

WIDEST = 256
"""The width of a head up to which PyTorch's fused gradient is taken on a GPU: a recurrent decoder has one head of all
its width, and that gradient took two thirds of its step.
"""


class Plan(NamedTuple):
    """The path that an attention takes, and why it takes no faster one."""

    path: str
    refused: dict[str, str]


def fused_refusal(score: Score, scope: Scope, select: Selection) -> str | None:
    """Why the fused path cannot serve, or None if it can."""
    if not isinstance(score, InnerProduct):
        return f"the score {type(score).__name__} is no dot product in disguise"
    if not isinstance(select, Softmax):
        return f"the selection {type(select).__name__} is no softmax"
    if scope.learned:
        return f"the scope {type(scope).__name__} predicts its window, and the mask would need a gradient"
    return None


def chunked_refusal(score: Score) -> str | None:
    """Why the chunked path cannot serve, or None if it can."""
    if not isinstance(score, (Additive, Concat, LocationAware)):
        return f"the score {type(score).__name__} has no hidden layer to work out in pieces"
    return None


def plan(score: Score, scope: Scope, select: Selection, *, weights: bool) -> Plan:
    """The path for an attention, from what is known before any tensor is seen."""
    refused = {"fused": "its weights are asked for" if weights else fused_refusal(score, scope, select)}
    if refused["fused"] is None:
        return Plan("fused", {})
    refused["chunked"] = chunked_refusal(score)
    told = {path: reason for path, reason in refused.items() if reason is not None}
    return Plan("chunked" if refused["chunked"] is None else "reference", told)


class Shown(NamedTuple):
    """A mask as the fused path takes it: what is added to the scores, and which queries see anything at all."""

    bias: Tensor
    seen: Tensor | None

    @classmethod
    def of(cls, allowed: Tensor, dtype: torch.dtype) -> "Shown":
        # A softmax over nothing is NaN: a query that may see nothing is shown everything, and told nothing of it.
        seen = allowed.any(-1, keepdim=True)
        bias = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
        return cls(bias.masked_fill_(~allowed & seen, -torch.inf), seen)


def by_products(
    query_BHTD: Tensor, keys_BHSD: Tensor, values_BHSD: Tensor, bias: Tensor | None, dropout: float
) -> Tensor:
    """Σ_j softmax_j(qᵀ k_j + bias_j) v_j, written out → (B, H, T, D)."""
    scores_BHTS = torch.matmul(query_BHTD, keys_BHSD.transpose(-1, -2))
    scores_BHTS = scores_BHTS if bias is None else scores_BHTS + bias
    weights_BHTS = nn.functional.dropout(scores_BHTS.softmax(-1), dropout)
    return torch.matmul(weights_BHTS.to(values_BHSD.dtype), values_BHSD)


def fused(
    score: Score, query_BTD: Tensor, prepared_BHSD: Tensor, values_BHSD: Tensor, shown: Shown | None, dropout: float
) -> Tensor:
    """Σ_j softmax_j(f q'ᵀ k'_j) v_j → (B, H, T, D), by one kernel without the weights ever lying in memory; where that
    is slow, by two products.
    """
    assert isinstance(score, InnerProduct)
    bias, seen = (None, None) if shown is None else shown
    query_BHTD = score.query(query_BTD)
    attend: Callable[..., Tensor] = partial(
        nn.functional.scaled_dot_product_attention, dropout_p=dropout, scale=score.factor
    )
    if query_BHTD.is_cpu and query_BHTD.dtype == torch.bfloat16 and torch.is_grad_enabled():
        # On a CPU the gradient of the fused kernel takes ten times as long in bfloat16.
        wide = (part.float() for part in (query_BHTD, prepared_BHSD, values_BHSD))
        with torch.autocast("cpu", enabled=False):
            context_BHTD = attend(*wide, None if bias is None else bias.float()).to(torch.bfloat16)
    elif query_BHTD.is_cuda and max(query_BHTD.shape[-1], values_BHSD.shape[-1]) > WIDEST:
        context_BHTD = by_products(query_BHTD * score.factor, prepared_BHSD, values_BHSD, bias, dropout)
    else:
        context_BHTD = attend(query_BHTD, prepared_BHSD, values_BHSD, bias)
    return context_BHTD if seen is None else torch.where(seen, context_BHTD, 0.0)
