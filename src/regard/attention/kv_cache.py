"""The steps that a decoder has taken: the keys and values of every layer, which stay where they were written.

At each step of a beam the hypotheses of a sentence change places, and all that they have said would have to be copied
with them. Instead the K rows of a block share one store of T K slots, and each row knows which of its block took each
of its steps: the store is read by K queries, each through a mask of its own.

N rows in B blocks of K, T steps, S = T K slots, H heads, D width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

ROOM = 32


class Store(NamedTuple):
    """Keys and values of one layer, with room for more steps behind them, doubled when it is used up."""

    keys_BHSD: Tensor
    values_BHSD: Tensor

    def moved(self, rows: Tensor) -> "Store":
        return Store(*(part.index_select(0, rows) for part in self))


class Steps(NamedTuple):
    """Which row of its block took each step of each row, the one being taken included; and, where a block has more than
    one row, the same as what is added to the scores of all slots: 0, or −∞ for a slot of another's past.
    """

    origin_NT: Tensor
    block: int
    bias_BKS: Tensor | None = None

    @property
    def start(self) -> int:
        """How many steps were taken before."""
        return self.origin_NT.shape[1] - 1

    @property
    def slots(self) -> int:
        return self.origin_NT.shape[1] * self.block

    def write(self, store: Store | None, prepared: Tensor, values_NHTD: Tensor) -> Store:
        """The store with the slots of this step, written in place: the store before must not be used again."""
        parts = (_with_heads(prepared), values_NHTD)
        if store is None:
            store = Store(*(part.new_zeros(_roomy(part, self.block)) for part in parts))
        elif self.slots > store.values_BHSD.shape[2]:
            store = Store(*(torch.cat([part, torch.zeros_like(part)], dim=2) for part in store))
        for kept, part in zip(store, parts, strict=True):
            kept.narrow(2, self.slots - self.block, self.block).copy_(_in_blocks(part, self.block))
        return store

    def shared(self, store: Store) -> Store:
        """What the rows of a block read together."""
        return Store(*(part.narrow(2, 0, self.slots) for part in store))

    def apart(self, store: Store) -> Store:
        """What each row reads, for itself: (N, H, T, D)."""
        rows, steps = self.origin_NT.shape
        if self.block == 1:
            return self.shared(store)
        first_T = torch.arange(steps, device=self.origin_NT.device) * self.block
        index = (first_T + self.origin_NT).view(-1, 1, self.block * steps, 1)
        found = []
        for part in store:
            own = part.gather(2, index.expand(-1, part.shape[1], -1, part.shape[3]))
            own_BHKTD = own.view(*own.shape[:2], self.block, steps, -1)
            found.append(own_BHKTD.transpose(1, 2).reshape(rows, part.shape[1], steps, -1))
        return Store(*found)


class PreallocatedSteps(NamedTuple):
    """Steps in a store whose room is all read, what was never written there being masked, so that no shape tells how
    many were taken.
    """

    origin_NC: Tensor
    block: int
    start: Tensor
    """How many steps were taken before, (1,)."""
    slots_K: Tensor
    bias_BKS: Tensor

    def write(self, store: Store | None, prepared: Tensor, values_NHTD: Tensor) -> Store:
        """The slots of this step, written in place."""
        assert store is not None
        for kept, part in zip(store, (_with_heads(prepared), values_NHTD), strict=True):
            kept.index_copy_(2, self.slots_K, _in_blocks(part, self.block))
        return store

    def shared(self, store: Store) -> Store:
        return store


class Cache(NamedTuple):
    """The stores of all layers, and whose steps lie in them."""

    stores: tuple[Store, ...]
    origin_NT: Tensor
    block: int = 1
    fused: bool = False
    """Whether every layer reads its store by the fused path."""

    @classmethod
    def begin(cls, rows: int, device: torch.device, *, fused: bool) -> "Cache":
        return cls((), torch.zeros(rows, 0, dtype=torch.long, device=device), fused=fused)

    @property
    def start(self) -> int:
        """How many steps were taken."""
        return self.origin_NT.shape[1]

    @property
    def room(self) -> int:
        """The most steps that may have been taken after the next."""
        return self.start + 1

    def preallocated(self, steps: int) -> "Cache | PreallocatedCache":
        """The same with room for so many steps in all, where all layers can do with it."""
        if not self.fused or not self.stores:
            return self
        start = torch.full((1,), self.start, device=self.origin_NT.device)
        return PreallocatedCache(self.stores, self.origin_NT, self.block, start).preallocated(steps)

    def taking(self, dtype: torch.dtype) -> Steps:
        """The steps so far and one more."""
        own_K, own_N1 = _own(self.origin_NT, self.block)
        origin_NT = torch.cat([self.origin_NT, own_N1], dim=1)
        if self.block == 1:
            return Steps(origin_NT, 1)
        return Steps(origin_NT, self.block, _bias_of(origin_NT.unsqueeze(-1) != own_K, dtype))

    def after(self, steps: Steps, stores: list[Store]) -> "Cache":
        return self._replace(stores=tuple(stores), origin_NT=steps.origin_NT)

    def reordered(self, rows: Tensor, block: int, blocks: Tensor | None) -> "Cache":
        """As `contracts.reorder` has it: rows that move within their block leave the stores where they are."""
        cache = self if block == self.block else self._regrouped(block)
        return cache._replace(stores=_moved(cache.stores, blocks), origin_NT=cache.origin_NT.index_select(0, rows))

    def _regrouped(self, block: int) -> "Cache":
        """The same steps in blocks of another size."""
        rows, steps = self.origin_NT.shape
        taken = Steps(self.origin_NT, self.block)
        stores = []
        for store in self.stores:
            parts = []
            for part in taken.apart(store):
                apart = part.view(-1, block, *part.shape[1:]).permute(0, 2, 3, 1, 4)
                preallocated = part.new_zeros(rows // block, part.shape[1], (ROOM + steps) * block, part.shape[3])
                preallocated[:, :, : steps * block] = apart.flatten(2, 3)
                parts.append(preallocated)
            stores.append(Store(*parts))
        _, own_N1 = _own(self.origin_NT, block)
        return Cache(tuple(stores), own_N1.expand(rows, steps), block, self.fused)


class PreallocatedCache(NamedTuple):
    """A cache with room for C steps, of which so many were taken: what a step reads and writes has the same shape and
    place at all of them.
    """

    stores: tuple[Store, ...]
    origin_NC: Tensor
    block: int
    start: Tensor
    """How many steps were taken, (1,)."""

    @property
    def room(self) -> int:
        return self.origin_NC.shape[1]

    def preallocated(self, steps: int) -> "PreallocatedCache":
        room = max(ROOM, 1 << (steps - 1).bit_length())
        slots = room * self.block
        if self.room == room and all(part.shape[2] == slots for store in self.stores for part in store):
            return self
        stores = (Store(*(_to_width(part, 2, slots) for part in store)) for store in self.stores)
        return self._replace(stores=tuple(stores), origin_NC=_to_width(self.origin_NC, 1, room))

    def taking(self, dtype: torch.dtype) -> PreallocatedSteps:
        """The steps so far and one more."""
        own_K, own_N1 = _own(self.origin_NC, self.block)
        origin_NC = self.origin_NC.index_copy(1, self.start, own_N1)
        later_C1 = (torch.arange(self.room, device=self.start.device) > self.start).unsqueeze(-1)
        bias_BKS = _bias_of((origin_NC.unsqueeze(-1) != own_K) | later_C1, dtype)
        return PreallocatedSteps(origin_NC, self.block, self.start, self.start * self.block + own_K, bias_BKS)

    def after(self, steps: PreallocatedSteps, stores: list[Store]) -> "PreallocatedCache":
        return PreallocatedCache(tuple(stores), steps.origin_NC, self.block, self.start + 1)

    def reordered(self, rows: Tensor, block: int, blocks: Tensor | None) -> "Cache | PreallocatedCache":
        if block != self.block:
            taken = int(self.start)
            exact = Cache(self.stores, self.origin_NC[:, :taken], self.block, fused=True)
            return exact.reordered(rows, block, blocks)
        return self._replace(stores=_moved(self.stores, blocks), origin_NC=self.origin_NC.index_select(0, rows))


def _own(origin_NT: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """The numbers of the rows of a block, and that of each row in its own."""
    own_K = torch.arange(block, device=origin_NT.device)
    return own_K, own_K.repeat(len(origin_NT) // block).unsqueeze(1)


def _bias_of(hidden_NTK: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of a block's slots, (B, K, S): 0, or −∞ where one is hidden from a row."""
    _, steps, block = hidden_NTK.shape
    bias = torch.zeros(hidden_NTK.shape, dtype=dtype, device=hidden_NTK.device)
    return bias.masked_fill_(hidden_NTK, -torch.inf).view(-1, block, steps * block)


def _moved(stores: tuple[Store, ...], blocks: Tensor | None) -> tuple[Store, ...]:
    """The stores of other blocks; None where all stay."""
    return stores if blocks is None else tuple(store.moved(blocks) for store in stores)


def _to_width(part: Tensor, axis: int, width: int) -> Tensor:
    """Cut or filled up with zeros to a width along an axis, in memory of its own."""
    size = list(part.shape)
    size[axis] = width
    wide, kept = part.new_zeros(size), min(width, part.shape[axis])
    wide.narrow(axis, 0, kept).copy_(part.narrow(axis, 0, kept))
    return wide


def _in_blocks(part_NH1D: Tensor, block: int) -> Tensor:
    """What the rows of a block write, next to each other: (B, H, K, D)."""
    _, heads, _, width = part_NH1D.shape
    return part_NH1D.view(-1, block, heads, width).transpose(1, 2)


def _with_heads(prepared: Tensor) -> Tensor:
    """Keys that were not cut into heads are of one."""
    return prepared.unsqueeze(1) if prepared.dim() == 3 else prepared


def _roomy(part: Tensor, block: int) -> tuple[int, ...]:
    rows, heads, _, width = part.shape
    return rows // block, heads, ROOM * block, width
