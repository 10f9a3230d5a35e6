"""Multi-head attention: project, attend in each head, join, project again.

B rows, T queries, S memory slots, D width, H heads.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.attention.attention import Attended, Attention, Keys, Part, Past
from regard.attention.kv_cache import PreallocatedSteps, Steps, Store
from regard.attention.positions import rotate
from regard.ops.dot_product_attention import ScoreBias


class Packed(NamedTuple):
    """Projections of the same vectors side by side: one product in place of two or three."""

    weight_ED: Tensor
    bias_E: Tensor | None

    @classmethod
    def of(cls, *parts: nn.Module) -> "Packed | None":
        """None where one of them is no projection: it would be packed with nothing."""
        linear = [part for part in parts if isinstance(part, nn.Linear)]
        if len(linear) < len(parts):
            return None
        weights: list[Tensor] = [part.weight for part in linear]
        biases: list[Tensor] = [part.bias for part in linear if part.bias is not None]
        return cls(torch.cat(weights), torch.cat(biases) if biases else None)

    def reordered(self, rows: Tensor, block: int, blocks: Tensor | None) -> "Packed":
        """It has no rows: the same for all."""
        del rows, block, blocks
        return self


def _projected(x: Tensor, parts: tuple[nn.Module, ...], packed: Packed | None) -> tuple[Tensor, ...]:
    """What each part makes of a vector: all at once where they are packed."""
    if packed is None:
        return tuple(part(x) for part in parts)
    return nn.functional.linear(x, *packed).chunk(len(parts), dim=-1)


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
        if keys_BSD is None and values_BSD is None:
            query, key, value = _projected(query_BTD, self._own, self.packed())
        else:
            keys = query_BTD if keys_BSD is None else keys_BSD
            values = keys if values_BSD is None else values_BSD
            query, key, value = self.to_query(query_BTD), self.to_key(keys), self.to_value(values)
        if self.rotary:
            query, key = self._turn(query, 0), self._turn(key, 0)
        context_BTD, found = self.attention(query, key, value, allowed=allowed, weights=weights)
        return self.output(context_BTD), found

    def prepare(self, memory_BSD: Tensor, *, allowed: Tensor | None = None, start: int = 0) -> Keys:
        """The memory's side: keys and values, projected; its first slot stands at position `start`."""
        parts = (self.to_key, self.to_value)
        key, value = _projected(memory_BSD, parts, Packed.of(*parts))
        return self.attention.prepare(self._turn(key, start) if self.rotary else key, value, allowed)

    def read(self, query_BTD: Tensor, keys: Keys, past: Past, *, start: int = 0) -> Attended:
        """What queries, the first of which stands at `start`, read from a prepared memory, joined and projected."""
        query = self.to_query(query_BTD)
        attended = self.attention.read(self._turn(query, start) if self.rotary else query, keys, past)
        return attended._replace(context_BTD=self.output(attended.context_BTD))

    def packed(self) -> Packed | None:
        """The projections of self-attention; None where the score compares with no keys."""
        return Packed.of(*self._own)

    def extend(
        self, x_N1D: Tensor, store: Store | None, steps: Steps | PreallocatedSteps, packed: Packed | None = None
    ) -> tuple[Tensor, Store]:
        """One more step of self-attention: what it reads from those before it and itself, and the store with it."""
        query, key, value = _projected(x_N1D, self._own, packed)
        if self.rotary:
            query, key = self._turn(query, steps.start), self._turn(key, steps.start)
        score = self.attention.score
        store = steps.write(store, score.prepare(key), score.values(value))
        if self.attention.fused:
            shown = None if steps.bias_BKS is None else ScoreBias(steps.bias_BKS.unsqueeze(1), None)
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

    @property
    def _own(self) -> tuple[nn.Module, ...]:
        """What makes a vector's query, key and value."""
        return self.to_query, self.to_key, self.to_value

    def _turn(self, x_BTD: Tensor, start: int | Tensor) -> Tensor:
        x_BTHD = x_BTD.unflatten(-1, (self.attention.heads, -1))  # type: ignore[no-untyped-call]
        positions = start + torch.arange(x_BTD.shape[1], device=x_BTD.device)
        turned: Tensor = rotate(x_BTHD.transpose(1, 2), positions).transpose(1, 2).flatten(-2)
        return turned
