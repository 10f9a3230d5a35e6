"""A tape: the states of a recurrent network as a memory of its own attention, which grows by one slot at each step.

B rows, S slots, D width, H heads.
"""

from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.attention import Attention
from regard.attention.hooks import find_hooks
from regard.attention.kv_cache import compute_capacity, with_heads
from regard.attention.memory import Past, PreparedMemory
from regard.ops.reference_mode import in_reference_mode

EARLIER = {"kind": "causal", "strict": True}
"""The scope of an attention to a tape: a query reads earlier steps only, not its own."""


@final
class SlotBuffer:
    """Space for the slots of a tape. Slots are appended in place, so that the memories of all steps share it: copies
    would take O(T²) space in training.
    """

    def __init__(self, memory_BHSD: Tensor, dtype: torch.dtype) -> None:
        rows, heads, self.length, width = memory_BHSD.shape
        capacity = compute_capacity(self.length + 1)
        self.slots_BHCD = memory_BHSD.new_zeros((rows, heads, capacity, width), dtype=dtype)
        self.slots_BHCD[:, :, : self.length] = memory_BHSD.detach()

    def can_append(self, memory_BHSD: Tensor, slot_BH1D: Tensor) -> bool:
        """Whether a memory is the last one that was returned, and there is space for a slot."""
        is_last = memory_BHSD.data_ptr() == self.slots_BHCD.data_ptr() and memory_BHSD.shape[2] == self.length
        return is_last and self.length < self.slots_BHCD.shape[2] and slot_BH1D.dtype == self.slots_BHCD.dtype

    def append(self, slot_BH1D: Tensor) -> Tensor:
        """Write the last slot, and return the memory with an empty slot after it."""
        self.slots_BHCD[:, :, self.length - 1 : self.length] = slot_BH1D
        self.length += 1
        # To autograd, `data` is a separate tensor, so later writes in place do not invalidate it.
        return self.slots_BHCD.data[:, :, : self.length]


class Append(torch.autograd.Function):
    """Write the last slot of a memory, which is empty, and append an empty slot. Empty slots are never read, and their
    gradient is meaningless.
    """

    @staticmethod
    def forward(ctx: Any, memory_BHSD: Tensor, slot_BH1D: Tensor, buffer: SlotBuffer) -> Tensor:
        del ctx, memory_BHSD
        return buffer.append(slot_BH1D)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        del ctx
        return gradients[0][:, :, :-1], gradients[0][:, :, -2:-1], None


class Tape(NamedTuple):
    """The slots of the steps so far, and an empty one for the current step, so that step t has t + 1 slots, as in the
    masked self-attention of a Transformer. The key of a slot is the first part of its value.
    """

    prepared_BHSD: Tensor
    """The part of the scores that depends only on the keys."""
    values_BHSD: Tensor
    visible_BS: Tensor
    position_B: Tensor
    """The number of steps so far."""
    is_preallocated: bool = False
    """Whether there is space for further slots, which are masked and are written in place, so that no shape changes."""
    buffers: tuple[SlotBuffer | None, SlotBuffer | None] = (None, None)
    """The space that the prepared keys and the values are in, unless it is preallocated."""

    @classmethod
    def begin(cls, attention: Attention, value_size: int, rows: int, like: Tensor) -> "Tape":
        """Return a tape without steps."""
        empty_B1D = like.new_zeros(rows, 1, value_size)
        prepared, values_BHSD = _prepare(attention, empty_B1D)
        visible_BS = torch.zeros(rows, 1, dtype=torch.bool, device=like.device)
        position_B = torch.zeros(rows, dtype=torch.long, device=like.device)
        return cls(prepared.detach(), values_BHSD.detach(), visible_BS, position_B)

    def read(self, attention: Attention, query_BD: Tensor) -> Tensor:
        """Attend to the steps so far, each row with its query. The result for a row without steps is zero."""
        hooks = find_hooks(attention)
        if hooks:
            values_BSD = self.values_BHSD.transpose(1, 2).flatten(-2)
            hooks.on_memory(values_BSD[..., : attention.key_size], values_BSD, self.values_BHSD)
        prepared = self.prepared_BHSD if attention.score.reads_keys else self.prepared_BHSD.squeeze(1)
        memory = PreparedMemory(prepared, self.values_BHSD, self.visible_BS.unsqueeze(1), self.position_B)
        # If values are wider than keys, PyTorch's fused attention copies the keys, so compute the weights instead.
        is_wider = self.values_BHSD.shape[-1] > self.prepared_BHSD.shape[-1]
        past = Past(self.position_B)
        return attention.read(query_BD.unsqueeze(1), memory, past, weights=is_wider).context_BTD.squeeze(1)

    @property
    def has_steps_B1(self) -> Tensor:
        """Whether a row can read any step."""
        return self.visible_BS.any(1, keepdim=True)

    def write(self, attention: Attention, value_BD: Tensor) -> "Tape":
        """Write the slot of the current step."""
        slot = _prepare(attention, value_BD.unsqueeze(1))
        if self.is_preallocated:
            index = self.position_B[:1]
            for memory, tensor in zip((self.prepared_BHSD, self.values_BHSD), slot, strict=True):
                memory.index_copy_(2, index, tensor.to(memory.dtype))
            self.visible_BS.index_fill_(1, index, True)
            return self._replace(position_B=self.position_B + 1)
        keys_buffer, values_buffer = self.buffers
        prepared, keys_buffer = _append(self.prepared_BHSD, slot[0], keys_buffer)
        values, values_buffer = _append(self.values_BHSD, slot[1], values_buffer)
        visible_BS = pad(pad(self.visible_BS[:, :-1], (0, 1), value=True), (0, 1))
        return Tape(prepared, values, visible_BS, self.position_B + 1, buffers=(keys_buffer, values_buffer))

    def hide_last(self, written_B1: Tensor) -> "Tape":
        """Hide the slot of the last step, except in the rows `written_B1`: only they read an input at that step."""
        before_BS = pad(self.visible_BS[:, :-2], (0, 2))
        return self._replace(visible_BS=self.visible_BS & (written_B1 | before_BS))

    def preallocate(self, steps: int) -> "Tape":
        """Return the tape with space for `steps` steps in total. A tape without steps is returned unchanged."""
        written = self.visible_BS.shape[1] - 1
        if not self.is_preallocated and written == 0:
            return self
        missing = compute_capacity(steps) - self.visible_BS.shape[1]
        if missing <= 0:
            return self
        prepared, values = (pad(memory, (0, 0, 0, missing)) for memory in (self.prepared_BHSD, self.values_BHSD))
        return Tape(prepared, values, pad(self.visible_BS, (0, missing)), self.position_B, is_preallocated=True)


def _append(memory_BHSD: Tensor, slot_BH1D: Tensor, buffer: SlotBuffer | None) -> tuple[Tensor, SlotBuffer | None]:
    """Append a slot in place if the memory is in a buffer with space for it, else in a new buffer. In reference mode,
    there is no buffer.
    """
    if in_reference_mode():
        return torch.cat([memory_BHSD[:, :, :-1], slot_BH1D, torch.zeros_like(slot_BH1D)], dim=2), None
    if buffer is None or not buffer.can_append(memory_BHSD, slot_BH1D):
        buffer = SlotBuffer(memory_BHSD, slot_BH1D.dtype)
    memory: Tensor = Append.apply(memory_BHSD, slot_BH1D, buffer)  # type: ignore[no-untyped-call]
    return memory, buffer


def _prepare(attention: Attention, value_B1D: Tensor) -> tuple[Tensor, Tensor]:
    """Return the prepared key and the value of a slot, each with an axis for heads."""
    prepared = attention.score.prepare(value_B1D[..., : attention.key_size])
    return with_heads(prepared), attention.score.values(value_B1D)
