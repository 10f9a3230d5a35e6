"""Multi-head attention: project, attend in each head, join, project again.

B rows, T queries, S memory slots, D width, H heads.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.attention.attention import Attended, Attention, Keys, Part, Past
from regard.attention.positions import rotate


class Cache(NamedTuple):
    """Keys and values of the steps so far, with room for more behind them: a step writes one slot and copies nothing,
    until the room is used up and doubled.
    """

    prepared: Tensor
    values_BHSD: Tensor
    used: int

    @classmethod
    def begin(cls, first: Keys, room: int = 32) -> "Cache":
        return cls(_with_room(first.prepared, room), _with_room(first.values_BHSD, room), first.values_BHSD.shape[2])

    def extended(self, new: Keys) -> "Cache":
        """With the slot of one more step. The tensors are written to: the cache before must not be used again."""
        prepared, values, used = self
        if used == values.shape[2]:
            prepared, values = _with_room(prepared, used), _with_room(values, used)
        prepared.narrow(prepared.dim() - 2, used, 1).copy_(new.prepared)
        values.narrow(2, used, 1).copy_(new.values_BHSD)
        return Cache(prepared, values, used + 1)

    @property
    def keys(self) -> Keys:
        """What may be read: all that has been written."""
        prepared = self.prepared.narrow(self.prepared.dim() - 2, 0, self.used)
        lengths_B = torch.full((len(prepared),), self.used, device=prepared.device)
        return Keys(prepared, self.values_BHSD.narrow(2, 0, self.used), None, lengths_B)


def _with_room(x: Tensor, room: int) -> Tensor:
    shape = list(x.shape)
    shape[-2] = room
    return torch.cat([x, x.new_zeros(shape)], dim=-2)


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

    def _turn(self, x_BTD: Tensor, start: int) -> Tensor:
        x_BTHD = x_BTD.unflatten(-1, (self.attention.heads, -1))  # type: ignore[no-untyped-call]
        positions = torch.arange(start, start + x_BTD.shape[1], device=x_BTD.device)
        turned: Tensor = rotate(x_BTHD.transpose(1, 2), positions).transpose(1, 2).flatten(-2)
        return turned
