"""Selections: from scores to weights over the visible slots."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor, nn

from regard.attention import equation, settings


class Selection(nn.Module, ABC):
    """a = select(e | allowed): weights that sum to 1 over what may be seen, and are 0 elsewhere."""

    @abstractmethod
    def forward(self, scores_BTS: Tensor, allowed_BTS: Tensor) -> Tensor:
        """The weights (B, T, S)."""


class Softmax(Selection):
    """a_j = exp(e_j) / Σ_i exp(e_i): soft, differentiable, reads everything."""

    def forward(self, scores_BTS: Tensor, allowed_BTS: Tensor) -> Tensor:
        return equation.softmax(scores_BTS, allowed_BTS)


SELECTIONS: dict[str, Callable[..., Selection]] = {"softmax": Softmax}


def build_selection(choice: settings.Selection) -> Selection:
    return SELECTIONS[choice.kind](**choice.model_dump(exclude={"kind"}))
