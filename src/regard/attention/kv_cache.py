"""The KV cache of a decoder: the keys and values of all previous steps, for every layer.

Beam search reorders the hypotheses of a sentence at each step. Copying their cached keys and values as well would be
slow. Instead, the K rows of a block (the hypotheses of one sentence) share a cache of T K slots that is never
reordered, and a cache indirection stores which row of the block computed each step of each row. The K queries of a
block read the shared cache, each with its own mask.

N rows in B blocks of K, T steps, S = T K slots, H heads, D width.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.attention import CachedSteps, ScoreBias, step_kernel_unsupported_reason
from regard.ops.reference_mode import in_reference_mode

MIN_CAPACITY = 32
"""The number of steps that a new cache has space for."""


def compute_capacity(steps: int) -> int:
    """Return the number of steps that are preallocated if `steps` are needed: a power of two."""
    return max(MIN_CAPACITY, 1 << (steps - 1).bit_length())


class LayerCache(NamedTuple):
    """The keys and values of one layer. The capacity is 0 before the first step, and doubles when it is full."""

    keys_BHSD: Tensor
    values_BHSD: Tensor


class CacheIndirection(NamedTuple):
    """Which row of its block computed each step of each row, including the current step.

    `bias_BKS` is the equivalent mask over the slots of a block, as a bias that is added to the scores: 0, or −∞ for a
    slot that belongs to another hypothesis. It is None if a block has one row.
    """

    origin_NT: Tensor
    block: int
    bias_BKS: Tensor | None = None

    @property
    def start(self) -> int:
        """The number of previous steps, which is the position of the current step."""
        return self.origin_NT.shape[1] - 1

    @property
    def slots(self) -> int:
        return self.origin_NT.shape[1] * self.block

    def write(self, layer: LayerCache, prepared: Tensor, values_NHTD: Tensor) -> tuple[LayerCache, ScoreBias | None]:
        """Write the slots of the current step in place, in reference mode to a new cache. Return the cache, which may
        have been reallocated, and the mask for reading it.
        """
        first = self.slots - self.block
        written = [_group_rows(tensor, self.block) for tensor in (with_heads(prepared), values_NHTD)]
        if in_reference_mode():
            pairs = zip(layer, written, strict=True)
            layer = LayerCache(*(torch.cat([cached.narrow(2, 0, first), slots], dim=2) for cached, slots in pairs))
        else:
            if self.slots > layer.values_BHSD.shape[2]:
                capacity = compute_capacity(self.origin_NT.shape[1]) * self.block
                layer = LayerCache(*(_resize(cached, 2, capacity) for cached in layer))
            for cached, slots in zip(layer, written, strict=True):
                cached.narrow(2, first, self.block).copy_(slots)
        return layer, None if self.bias_BKS is None else ScoreBias(self.bias_BKS.unsqueeze(1), None)

    def used_slots(self, layer: LayerCache) -> LayerCache:
        """Return the slots that have been written, which the rows of a block share."""
        return LayerCache(*(tensor.narrow(2, 0, self.slots) for tensor in layer))

    def gather_rows(self, layer: LayerCache) -> LayerCache:
        """Return the keys and values of each row separately, (N, H, T, D)."""
        rows, steps = self.origin_NT.shape
        if self.block == 1:
            return self.used_slots(layer)
        first_T = torch.arange(steps, device=self.origin_NT.device) * self.block
        index = (first_T + self.origin_NT).view(-1, 1, self.block * steps, 1)
        gathered = []
        for cached in layer:
            slots = cached.gather(2, index.expand(-1, cached.shape[1], -1, cached.shape[3]))
            slots_BHKTD = slots.view(*slots.shape[:2], self.block, steps, -1)
            gathered.append(slots_BHKTD.transpose(1, 2).reshape(rows, cached.shape[1], steps, -1))
        return LayerCache(*gathered)


class PreallocatedIndirection(NamedTuple):
    """The indirection of a preallocated cache. All C steps are read, and those not yet written are masked, so that no
    shape depends on the number of steps.
    """

    origin_NC: Tensor
    block: int
    start: Tensor
    """The number of previous steps, (1,)."""
    bias_BKS: Tensor | None
    """As in `CacheIndirection`; None if a kernel reads only the slots of each row."""

    def write(
        self, layer: LayerCache, prepared: Tensor, values_NHTD: Tensor
    ) -> tuple[LayerCache, ScoreBias | CachedSteps]:
        """Write the slots of the current step in place, or leave that to the kernel. Return the cache, and the mask for
        reading it.
        """
        keys_NHTD = with_heads(prepared)
        if self.bias_BKS is None:
            return layer, CachedSteps(self.origin_NC, self.start, keys_NHTD.squeeze(2), values_NHTD.squeeze(2))
        slots_K = self.start * self.block + torch.arange(self.block, device=self.start.device)
        for cached, tensor in zip(layer, (keys_NHTD, values_NHTD), strict=True):
            cached.index_copy_(2, slots_K, _group_rows(tensor, self.block))
        return layer, ScoreBias(self.bias_BKS.unsqueeze(1), None)

    def used_slots(self, layer: LayerCache) -> LayerCache:
        return layer


class KVCache(NamedTuple):
    """The caches of all layers, and which row computed each step."""

    layers: tuple[LayerCache, ...]
    origin_NT: Tensor
    block: int = 1
    fused: bool = False
    """Whether every layer reads its cache with the fused path."""

    @classmethod
    def begin(cls, layers: Iterable[LayerCache], rows: int, device: torch.device, *, fused: bool) -> "KVCache":
        """Return a cache without steps, given the empty cache of each layer."""
        return cls(tuple(layers), torch.zeros(rows, 0, dtype=torch.long, device=device), fused=fused)

    @property
    def start(self) -> int:
        """The number of steps so far."""
        return self.origin_NT.shape[1]

    @property
    def max_steps(self) -> int:
        """The number of steps in the cache after the next one."""
        return self.start + 1

    def preallocate(self, steps: int) -> "KVCache | PreallocatedKVCache":
        """Preallocate space for a total number of steps, if every layer supports it."""
        if not self.fused:
            return self
        start = torch.full((1,), self.start, device=self.origin_NT.device)
        return PreallocatedKVCache(self.layers, self.origin_NT, self.block, start).preallocate(steps)

    def next_step(self, x_N1D: Tensor) -> CacheIndirection:
        """Return the indirection of the next step, given its input."""
        index_K, index_N1 = _row_indices(self.origin_NT, self.block)
        origin_NT = torch.cat([self.origin_NT, index_N1], dim=1)
        if self.block == 1:
            return CacheIndirection(origin_NT, 1)
        return CacheIndirection(origin_NT, self.block, _mask_to_bias(origin_NT.unsqueeze(-1) != index_K, x_N1D.dtype))

    def advance(self, step: CacheIndirection, layers: list[LayerCache]) -> "KVCache":
        """Return the cache after a step."""
        return self._replace(layers=tuple(layers), origin_NT=step.origin_NT)

    def reorder(self, rows: Tensor, block: int, blocks: Tensor | None) -> "KVCache":
        """See `contracts.reorder`. Rows that move within their block leave the keys and values in place."""
        cache = self if block == self.block else self._regroup(block)
        return cache._replace(
            layers=_select_blocks(cache.layers, blocks), origin_NT=cache.origin_NT.index_select(0, rows)
        )

    def _regroup(self, block: int) -> "KVCache":
        """Return the same steps in blocks of another size."""
        rows, steps = self.origin_NT.shape
        indirection = CacheIndirection(self.origin_NT, self.block)
        layers = []
        for layer in self.layers:
            regrouped = []
            for rows_NHTD in indirection.gather_rows(layer):
                slots = rows_NHTD.view(rows // block, block, *rows_NHTD.shape[1:]).permute(0, 2, 3, 1, 4)
                capacity = (MIN_CAPACITY + steps if steps else 0) * block
                cached = rows_NHTD.new_zeros(rows // block, rows_NHTD.shape[1], capacity, rows_NHTD.shape[3])
                cached[:, :, : steps * block] = slots.flatten(2, 3)
                regrouped.append(cached)
            layers.append(LayerCache(*regrouped))
        _, index_N1 = _row_indices(self.origin_NT, block)
        return KVCache(tuple(layers), index_N1.expand(rows, steps), block, self.fused)


class PreallocatedKVCache(NamedTuple):
    """A cache with space for C steps. The tensors that a step reads and writes have the same shapes and addresses at
    every step, so a step can be captured in a CUDA graph.
    """

    layers: tuple[LayerCache, ...]
    origin_NC: Tensor
    block: int
    start: Tensor
    """The number of steps so far, (1,)."""

    @property
    def max_steps(self) -> int:
        return self.origin_NC.shape[1]

    def preallocate(self, steps: int) -> "PreallocatedKVCache":
        max_steps = compute_capacity(steps)
        slots = max_steps * self.block
        if self.max_steps == max_steps and all(cached.shape[2] == slots for layer in self.layers for cached in layer):
            return self
        layers = (LayerCache(*(_resize(cached, 2, slots) for cached in layer)) for layer in self.layers)
        return self._replace(layers=tuple(layers), origin_NC=_resize(self.origin_NC, 1, max_steps))

    def next_step(self, x_N1D: Tensor) -> PreallocatedIndirection:
        """Return the indirection of the next step, given its input."""
        index_K, index_N1 = _row_indices(self.origin_NC, self.block)
        origin_NC = self.origin_NC.index_copy(1, self.start, index_N1)
        bias_BKS = None
        if step_kernel_unsupported_reason(x_N1D.view(-1, self.block, x_N1D.shape[-1])) is not None:
            later_C1 = (torch.arange(self.max_steps, device=self.start.device) > self.start).unsqueeze(-1)
            bias_BKS = _mask_to_bias((origin_NC.unsqueeze(-1) != index_K) | later_C1, x_N1D.dtype)
        return PreallocatedIndirection(origin_NC, self.block, self.start, bias_BKS)

    def advance(self, step: PreallocatedIndirection, layers: list[LayerCache]) -> "PreallocatedKVCache":
        """Return the cache after a step."""
        return PreallocatedKVCache(tuple(layers), step.origin_NC, self.block, self.start + 1)

    def reorder(self, rows: Tensor, block: int, blocks: Tensor | None) -> "KVCache | PreallocatedKVCache":
        if block != self.block:
            steps = int(self.start)
            cache = KVCache(self.layers, self.origin_NC[:, :steps], self.block, fused=True)
            return cache.reorder(rows, block, blocks)
        return self._replace(layers=_select_blocks(self.layers, blocks), origin_NC=self.origin_NC.index_select(0, rows))


def _row_indices(origin_NT: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the rows in a block, (K,), and the index of each row in its block, (N, 1)."""
    index_K = torch.arange(block, device=origin_NT.device)
    return index_K, index_K.repeat(origin_NT.shape[0] // block).unsqueeze(1)


def _mask_to_bias(masked_NTK: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bias that is added to the scores of the slots of a block, (B, K, S): 0, or −∞ where masked."""
    _, steps, block = masked_NTK.shape
    bias = torch.zeros(masked_NTK.shape, dtype=dtype, device=masked_NTK.device)
    return bias.masked_fill_(masked_NTK, -torch.inf).view(-1, block, steps * block)


def _select_blocks(layers: tuple[LayerCache, ...], blocks: Tensor | None) -> tuple[LayerCache, ...]:
    """Select blocks by index; None keeps all of them."""
    if blocks is None:
        return layers
    return tuple(LayerCache(*(tensor.index_select(0, blocks) for tensor in layer)) for layer in layers)


def _resize(tensor: Tensor, axis: int, size: int) -> Tensor:
    """Copy to a new tensor of the given size along an axis, truncated or padded with zeros."""
    shape = list(tensor.shape)
    shape[axis] = size
    resized, copied = tensor.new_zeros(shape), min(size, tensor.shape[axis])
    resized.narrow(axis, 0, copied).copy_(tensor.narrow(axis, 0, copied))
    return resized


def _group_rows(tensor_NH1D: Tensor, block: int) -> Tensor:
    """Put the rows of a block next to each other: (N, H, 1, D) → (B, H, K, D)."""
    _, heads, _, width = tensor_NH1D.shape
    return tensor_NH1D.view(-1, block, heads, width).transpose(1, 2)


def with_heads(prepared: Tensor) -> Tensor:
    """Add an axis for heads to keys that have none."""
    return prepared.unsqueeze(1) if prepared.dim() == 3 else prepared
