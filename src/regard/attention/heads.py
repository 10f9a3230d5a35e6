"""Multi-head attention: project, attend in each head, join, project again.

B rows, T queries, S memory slots, D width, H heads.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.attention.attention import Attended, Attention, Keys, Part, Past
from regard.attention.cache import RoomySteps, Steps, Store
from regard.attention.kernels import Shown
from regard.attention.positions import rotate


class Packed(NamedTuple):
    """The projections of queries, keys and values side by side, so that a step makes one product of three."""

    weight_ED: Tensor
    bias_E: Tensor | None

    def reordered(self, rows: Tensor, block: int, blocks: Tensor | None) -> "Packed":
        """It has no rows: the same for all."""
        del rows, block, blocks
        return self


@final
class MultiHeadAttention(nn.Module):
    """W_O [head_1; …; head_H], head_h = attention(W_Q q, W_K k, W_V v) (Vaswani et al. 2017), with any score.

    `forward(query)` is self-attention; with keys (and values) it is cross-attention. With `rotary`, queries and keys
    are turned by their positions (Su et al. 2021). A decoder calls `prepare` and `read` step by step.
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
        rotary: bool = False,
    ) -> None:
        super().__init__()
        self.rotary = rotary
        self.attention = Attention(
            model_size, model_size, score=score, scope=scope, select=select, heads=heads, dropout=dropout
        )
        self.to_query = nn.Linear(model_size, model_size, bias=bias)
        compared = self.attention.score.reads_keys
        self.to_key = nn.Linear(model_size, model_size, bias=bias) if compared else nn.Identity()
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
        query, key = self.to_query(query_BTD), self.to_key(keys)
        if self.rotary:
            query, key = self._turn(query, 0), self._turn(key, 0)
        context_BTD, found = self.attention(query, key, self.to_value(values), allowed=allowed, weights=weights)
        return self.output(context_BTD), found

    def prepare(self, memory_BSD: Tensor, *, allowed: Tensor | None = None, start: int = 0) -> Keys:
        """The memory's side: keys and values, projected; its first slot stands at position `start`."""
        key = self.to_key(memory_BSD)
        return self.attention.prepare(
            self._turn(key, start) if self.rotary else key, self.to_value(memory_BSD), allowed
        )

    def read(self, query_BTD: Tensor, keys: Keys, past: Past, *, start: int = 0) -> Attended:
        """What queries, the first of which stands at `start`, read from a prepared memory, joined and projected."""
        query = self.to_query(query_BTD)
        attended = self.attention.read(self._turn(query, start) if self.rotary else query, keys, past)
        return attended._replace(context_BTD=self.output(attended.context_BTD))

    def packed(self) -> Packed | None:
        """The projections packed for steps of self-attention; None where the score compares with no keys."""
        if not isinstance(self.to_key, nn.Linear):
            return None
        parts = (self.to_query, self.to_key, self.to_value)
        bias = None if self.to_query.bias is None else torch.cat([part.bias for part in parts])
        return Packed(torch.cat([part.weight for part in parts]), bias)

    def extend(
        self, x_N1D: Tensor, store: Store | None, steps: Steps | RoomySteps, packed: Packed | None = None
    ) -> tuple[Tensor, Store]:
        """One more step of self-attention: what it reads from those before it and itself, and the store with it."""
        if packed is None:
            query, key, value = self.to_query(x_N1D), self.to_key(x_N1D), self.to_value(x_N1D)
        else:
            query, key, value = nn.functional.linear(x_N1D, *packed).chunk(3, dim=-1)
        if self.rotary:
            query, key = self._turn(query, steps.start), self._turn(key, steps.start)
        score = self.attention.score
        store = steps.write(store, score.prepare(key), score.values(value))
        if self.attention.fused:
            shown = None if steps.bias_BKS is None else Shown(steps.bias_BKS.unsqueeze(1), None)
            query_BKD = query.reshape(-1, steps.block, query.shape[-1])
            context_N1D = self.attention.read_shown(query_BKD, *steps.shared(store), shown).view_as(x_N1D)
        else:
            assert isinstance(steps, Steps)
            keys_NHTD, values_NHTD = steps.apart(store)
            position_N = torch.full((len(x_N1D),), steps.start, device=x_N1D.device)
            prepared = keys_NHTD if score.reads_keys else keys_NHTD.squeeze(1)
            keys = Keys(prepared, values_NHTD, None, position_N + 1)
            context_N1D = self.attention.read(query, keys, Past(position_N)).context_BTD
        return self.output(context_N1D), store

    def _turn(self, x_BTD: Tensor, start: int | Tensor) -> Tensor:
        x_BTHD = x_BTD.unflatten(-1, (self.attention.heads, -1))  # type: ignore[no-untyped-call]
        positions = start + torch.arange(x_BTD.shape[1], device=x_BTD.device)
        turned: Tensor = rotate(x_BTHD.transpose(1, 2), positions).transpose(1, 2).flatten(-2)
        return turned
