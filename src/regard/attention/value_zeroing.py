"""Value zeroing: set the value vectors of some slots to zero (Mohebbi et al. 2023). The weights do not change.

B rows, S memory slots, D width, H heads.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn

_zeroed: ContextVar[dict[nn.Module, Tensor] | None] = ContextVar("zeroed", default=None)
"""The slots whose values are zero, (B, S), for each attention."""


@contextmanager
def zero_values(attentions: Collection[nn.Module], slots_BS: Tensor) -> Iterator[None]:
    """Within the block and in this thread, the values of the slots that are True in `slots_BS` are zero in each of the
    attentions that attend to S slots.
    """
    token = _zeroed.set(dict.fromkeys(attentions, slots_BS))
    try:
        yield
    finally:
        _zeroed.reset(token)


def zero_selected_values(attention: nn.Module, values_BHSD: Tensor) -> Tensor:
    """Return the values of an attention, with those that `zero_values` selects set to zero."""
    zeroed = _zeroed.get()
    slots_BS = None if zeroed is None else zeroed.get(attention)
    if slots_BS is None or slots_BS.shape[1] != values_BHSD.shape[2]:
        return values_BHSD
    return values_BHSD.masked_fill(slots_BS[:, None, :, None], 0.0)
