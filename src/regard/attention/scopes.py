"""Scopes: which slots a query may see, beside those that the memory itself allows.

T queries, S memory slots. Query t of a call that starts at target position p stands at position p + t.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.attention import settings


class Scope(nn.Module, ABC):
    """Narrows what may be seen."""

    @property
    @abstractmethod
    def positional(self) -> bool:
        """Whether it needs to know at which target position a query stands."""

    @abstractmethod
    def forward(self, allowed_BTS: Tensor, positions_BT: Tensor | None) -> Tensor:
        """The slots that remain visible, given those that the memory allows."""


class Global(Scope):
    """Every slot that the memory allows."""

    @property
    def positional(self) -> bool:
        return False

    def forward(self, allowed_BTS: Tensor, positions_BT: Tensor | None) -> Tensor:
        del positions_BT
        return allowed_BTS


class LocalMonotonic(Scope):
    """Slots t − D … t + D: the alignment is taken to be roughly monotonic (Luong et al. 2015, local-m)."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    @property
    def positional(self) -> bool:
        return True

    def forward(self, allowed_BTS: Tensor, positions_BT: Tensor | None) -> Tensor:
        assert positions_BT is not None
        slots_S = torch.arange(allowed_BTS.shape[-1], device=allowed_BTS.device)
        distance_BTS = (slots_S - positions_BT.unsqueeze(-1)).abs()
        return allowed_BTS & (distance_BTS <= self.window)


SCOPES: dict[str, Callable[..., Scope]] = {"global": Global, "local_m": LocalMonotonic}


def build_scope(choice: settings.Scope) -> Scope:
    return SCOPES[choice.kind](**choice.model_dump(exclude={"kind"}))
