"""Multi-head attention: project, attend in each head, concatenate, project.

B rows, T queries, S memory slots, D width, H heads.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.arguments import check_flag, check_floating, check_integer, check_sequence
from regard.attention.attention import Attention, Part, Role
from regard.attention.hooks import Reading, find_hooks
from regard.attention.kv_cache import CacheIndirection, LayerCache, PreallocatedIndirection, with_heads
from regard.attention.memory import Attended, Past, PreparedMemory
from regard.attention.positions import rotate_heads
from regard.ops.layers import Linear, linear
from regard.ops.packing import unpack


class PackedProjection(NamedTuple):
    """Several projections of the same input, concatenated: one matrix product instead of two or three."""

    weight_ED: Tensor
    bias_E: Tensor | None

    @classmethod
    def of(cls, *projections: nn.Module) -> "PackedProjection | None":
        """Concatenate projections; return None if one of them is not an `nn.Linear`."""
        linear = [projection for projection in projections if isinstance(projection, nn.Linear)]
        if len(linear) < len(projections):
            return None
        weights: list[Tensor] = [projection.weight for projection in linear]
        biases: list[Tensor] = [projection.bias for projection in linear if projection.bias is not None]
        return cls(torch.cat(weights), torch.cat(biases) if biases else None)

    def reorder(self, rows: Tensor, block: int, blocks: Tensor | None) -> "PackedProjection":
        """Return it unchanged: all rows share the weights."""
        del rows, block, blocks
        return self


def _project(x: Tensor, projections: tuple[nn.Module, ...], packed: PackedProjection | None) -> tuple[Tensor, ...]:
    """Apply each projection, with one matrix product if they are packed."""
    if packed is None:
        return tuple(projection(x) for projection in projections)
    return unpack(linear(x, *packed), len(projections))


def _check_start(start: int | Tensor) -> None:
    if not isinstance(start, Tensor):
        check_integer("start", start, minimum=0)


@final
class MultiHeadAttention(nn.Module):
    """W_O [head_1; …; head_H], head_h = attention(W_Q q, W_K k, W_V v) (Vaswani et al. 2017), with any score.

    `forward(query)` is self-attention; with keys (and values) it is cross-attention. A decoder calls `prepare` and
    `read` step by step.

    Args:
        model_size: The width of queries, keys, values and outputs.
        heads: The number of heads, which must divide the size.
        score: A name, or a mapping {"kind": name, options}; as for `Attention`.
        scope: The same for the scope.
        select: The same for the selection.
        dropout: The dropout probability of the weights.
        bias: Whether the projections have biases.
        rotary: Whether to rotate queries and keys according to their positions (Su et al. 2021).
        role: `encoder-self`, `decoder-self` or `cross`; labels recorded weights.

    Raises:
        ConfigError: A name is unknown, or a value is out of range or does not match the others.
        ArgumentTypeError: An argument has the wrong type.

    >>> attention = regard.MultiHeadAttention(512, heads=8)
    >>> output, weights = attention(x, weights=True)
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
        role: Role = "cross",
    ) -> None:
        super().__init__()
        check_integer("model_size", model_size)
        self.rotary = check_flag("rotary", rotary)
        check_flag("bias", bias)
        self.attention = Attention(
            model_size, model_size, score=score, scope=scope, select=select, heads=heads, dropout=dropout, role=role
        )
        self.to_query = Linear(model_size, model_size, bias=bias)
        reads_keys = self.attention.score.reads_keys
        self.to_key = Linear(model_size, model_size, bias=bias) if reads_keys else nn.Identity()
        self.to_value = Linear(model_size, model_size, bias=bias)
        self.output = Linear(model_size, model_size, bias=bias)

    def forward(
        self,
        query_BTD: Tensor,
        keys_BSD: Tensor | None = None,
        values_BSD: Tensor | None = None,
        *,
        allowed: Tensor | None = None,
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to a memory, or to the queries themselves.

        With the selection `hard`, train with `prepare` and `read` instead, which also returns the sampled slots: the
        scores are trained by their `surrogate` loss.

        Args:
            query_BTD: The queries.
            keys_BSD: The keys of the memory, by default the queries (self-attention).
            values_BSD: The values of the memory, by default the keys.
            allowed: A boolean mask (B, S) or (B, T, S), True where a slot is visible; by default all slots are.
            weights: Whether to return the weights. Without them, the fastest path that supports the mechanism is used.

        Returns:
            The outputs (B, T, D), and the weights (B, H, T, S), or None if they are not requested.

        Raises:
            ConfigError: A shape, dtype or device does not match, or the memory is empty.
            ArgumentTypeError: An argument is not a tensor.
        """
        self._check_input("query", query_BTD)
        check_flag("weights", weights)
        for name, tensor in (("keys", keys_BSD), ("values", values_BSD)):
            if tensor is not None:
                self._check_input(name, tensor)
        if keys_BSD is None and values_BSD is None:
            query, key, value = _project(query_BTD, self._projections, self.packed())
        else:
            keys = query_BTD if keys_BSD is None else keys_BSD
            values = keys if values_BSD is None else values_BSD
            query, key, value = self.to_query(query_BTD), self.to_key(keys), self.to_value(values)
        if self.rotary:
            query, key = self._rotate(query, 0), self._rotate(key, 0)
        context_BTD, attention_weights = self.attention(query, key, value, allowed=allowed, weights=weights)
        return self.output(context_BTD), attention_weights

    def prepare(self, memory_BSD: Tensor, *, allowed: Tensor | None = None, start: int = 0) -> PreparedMemory:
        """Project the memory to keys and values. Its first slot has position `start`."""
        self._check_input("memory", memory_BSD)
        _check_start(start)
        projections = (self.to_key, self.to_value)
        key, value = _project(memory_BSD, projections, PackedProjection.of(*projections))
        return self.attention.prepare(self._rotate(key, start) if self.rotary else key, value, allowed)

    def _check_input(self, name: str, tensor: Tensor) -> None:
        """Raise an error that names the argument, its shape, dtype or device, and the expected one."""
        check_sequence(name, tensor, self.attention.query_size)
        check_floating(self.to_query.weight, "the module is", **{name: tensor})

    def read(
        self, query_BTD: Tensor, keys: PreparedMemory, past: Past, *, start: int = 0, weights: bool = False
    ) -> Attended:
        """Attend to a prepared memory. The first query has position `start`. The weights are returned if requested."""
        self._check_input("query", query_BTD)
        _check_start(start)
        query = self.to_query(query_BTD)
        query = self._rotate(query, start) if self.rotary else query
        attended = self.attention.read(query, keys, past, weights=weights)
        return attended._replace(context_BTD=self.output(attended.context_BTD))

    def packed(self) -> PackedProjection | None:
        """Return the packed projections of self-attention, or None if the score does not read keys."""
        return PackedProjection.of(*self._projections)

    def empty_cache(self, rows: int) -> LayerCache:
        """Return the cache of causal self-attention before the first step."""
        empty_N0D = self.to_query.weight.new_empty(rows, 0, self.attention.query_size)
        score = self.attention.score
        return LayerCache(with_heads(score.prepare(self.to_key(empty_N0D))), score.values(self.to_value(empty_N0D)))

    def extend(
        self,
        x_N1D: Tensor,
        layer: LayerCache,
        step: CacheIndirection | PreallocatedIndirection,
        packed: PackedProjection | None = None,
    ) -> tuple[Tensor, LayerCache]:
        """One step of causal self-attention → (output_N1D, cache with the keys and values of this step)."""
        query, key, value = _project(x_N1D, self._projections, packed)
        if self.rotary:
            query, key = self._rotate(query, step.start), self._rotate(key, step.start)
        attention, score = self.attention, self.attention.score
        layer, mask = step.write(layer, score.prepare(key), score.values(value))
        if attention.fused:
            query_BKD = query.reshape(-1, step.block, query.shape[-1])
            context_N1D = attention.read_fused(query_BKD, *step.used_slots(layer), mask).view_as(x_N1D)
            hooks = find_hooks(attention)
            if hooks:
                past, memory = self._gather(layer, step)
                reading = Reading(score, attention.scope, attention.select, query, memory, past)
                attention.observe_fused(reading, None, hooks)
        else:
            past, memory = self._gather(layer, step)
            context_N1D = attention.read(query, memory, past).context_BTD
        return self.output(context_N1D), layer

    def _gather(
        self, layer: LayerCache, step: CacheIndirection | PreallocatedIndirection
    ) -> tuple[Past, PreparedMemory]:
        """Return the cached steps as a memory for each row."""
        assert isinstance(step, CacheIndirection)
        keys_NHTD, values_NHTD = step.gather_rows(layer)
        position_N = torch.full((step.origin_NT.shape[0],), step.start, device=keys_NHTD.device)
        prepared = keys_NHTD if self.attention.score.reads_keys else keys_NHTD.squeeze(1)
        return Past(position_N), PreparedMemory(prepared, values_NHTD, None, position_N + 1)

    @property
    def _projections(self) -> tuple[nn.Module, ...]:
        """The projections to query, key and value."""
        return self.to_query, self.to_key, self.to_value

    def _rotate(self, x_BTD: Tensor, start: int | Tensor) -> Tensor:
        return rotate_heads(x_BTD, self.attention.heads, start)
