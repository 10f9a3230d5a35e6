"""Which implementation an attention uses, and why not a faster one.

fused       PyTorch's fused attention, for scores equivalent to a dot product, if no weights are requested
chunked     the additive score in chunks of bounded memory (`ops/additive_score.py`)
reference   the equation
"""

from regard.attention.scopes import Scope
from regard.attention.scores import Additive, Concat, InnerProduct, LocationAware, Score
from regard.attention.selections import Selection, Softmax
from regard.ops.dispatch import Dispatch, first_available


def fused_refusal(score: Score, scope: Scope, select: Selection) -> str | None:
    """Why the fused path cannot be used; None if it can."""
    if not isinstance(score, InnerProduct):
        return f"the score {type(score).__name__} is not equivalent to a dot product"
    if not isinstance(select, Softmax):
        return f"the selection {type(select).__name__} is not a softmax"
    if scope.learned:
        return f"the scope {type(scope).__name__} predicts its window, and the mask would need a gradient"
    return None


def chunked_refusal(score: Score) -> str | None:
    """Why the chunked path cannot be used; None if it can."""
    if not isinstance(score, (Additive, Concat, LocationAware)):
        return f"the score {type(score).__name__} has no hidden layer to compute in chunks"
    return None


def dispatch_attention(score: Score, scope: Scope, select: Selection, *, weights: bool) -> Dispatch:
    """The path of an attention, from what is known before any tensor is seen."""
    return first_available(
        {
            "fused": lambda: "its weights are requested" if weights else fused_refusal(score, scope, select),
            "chunked": lambda: chunked_refusal(score),
        },
        otherwise="reference",
    )
