"""Multi-head attention: project, attend in each head, join, project again.

B rows, T queries, S memory slots, D width, H heads.
"""

from typing import final

from torch import Tensor, nn

from regard.attention.attention import Attention, Part


@final
class MultiHeadAttention(nn.Module):
    """W_O [head_1; …; head_H], head_h = attention(W_Q q, W_K k, W_V v) (Vaswani et al. 2017), with any score.

    `forward(query)` is self-attention; with keys (and values) it is cross-attention.
    """

    def __init__(
        self,
        model_size: int,
        heads: int = 8,
        *,
        score: Part = "scaled_dot",
        scope: Part = "global",
        select: Part = "softmax",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.attention = Attention(
            model_size, model_size, score=score, scope=scope, select=select, heads=heads, dropout=dropout
        )
        self.to_query = nn.Linear(model_size, model_size, bias=bias)
        self.to_key = nn.Linear(model_size, model_size, bias=bias)
        self.to_value = nn.Linear(model_size, model_size, bias=bias)
        self.output = nn.Linear(model_size, model_size, bias=bias)

    def forward(
        self,
        query_BTD: Tensor,
        keys_BSD: Tensor | None = None,
        values_BSD: Tensor | None = None,
        *,
        allowed: Tensor | None = None,
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """→ (output_BTD, weights_BHTS where asked for)."""
        keys = query_BTD if keys_BSD is None else keys_BSD
        values = keys if values_BSD is None else values_BSD
        context_BTD, found = self.attention(
            self.to_query(query_BTD), self.to_key(keys), self.to_value(values), allowed=allowed, weights=weights
        )
        return self.output(context_BTD), found
