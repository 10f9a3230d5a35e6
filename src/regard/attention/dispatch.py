"""Which implementation an attention uses, and why not a faster one.

fused       PyTorch's fused attention, for scores equivalent to a dot product, if no weights are requested
chunked     the additive score in chunks of bounded memory (`ops/additive_score.py`)
reference   the equation
"""

from regard.attention.scopes import Scope
from regard.attention.scores import InnerProduct, Score
from regard.attention.selections import Selection
from regard.ops.dispatch import Dispatch, first_available
from regard.ops.reference_mode import in_reference_mode


def fused_unsupported_reason(score: Score, scope: Scope, select: Selection, *, is_changed: bool = False) -> str | None:
    """Return why the fused path cannot be used; None if it can. `is_changed`: an intervention changes the weights."""
    if in_reference_mode():
        return "reference mode is on"
    if is_changed:
        return "an intervention changes the weights, which this path does not store"
    if not isinstance(score, InnerProduct):
        return f"the score {type(score).__name__} is not equivalent to a dot product"
    if not select.is_softmax:
        return f"the selection {type(select).__name__} is not a softmax"
    if scope.learned:
        return f"the scope {type(scope).__name__} predicts its window, so the mask needs a gradient"
    return None


def chunked_unsupported_reason(score: Score) -> str | None:
    """Return why the chunked path cannot be used, or None if it can."""
    if in_reference_mode():
        return "reference mode is on"
    if not score.chunkable:
        return f"the score {type(score).__name__} has no hidden layer to compute in chunks"
    return None


def dispatch_attention(score: Score, scope: Scope, select: Selection, *, weights: bool) -> Dispatch:
    """Choose the implementation of an attention from its parts; no tensor is needed."""
    return first_available(
        {
            "fused": lambda: "the weights are requested" if weights else fused_unsupported_reason(score, scope, select),
            "chunked": lambda: chunked_unsupported_reason(score),
        },
        otherwise="reference",
    )
