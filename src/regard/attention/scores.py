"""Scores: how well a query matches a key. A score is one small class: `prepare` does the key side's work,
once per source; `forward` compares.

B rows, T queries, S memory slots, D width, A hidden width of the score.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from regard.attention import equation, settings
from regard.errors import ConfigError


class Score(nn.Module, ABC):
    """e(q, k) for every query and slot."""

    @abstractmethod
    def prepare(self, keys_BSD: Tensor) -> Tensor:
        """The part of the score that depends on the keys alone."""

    @abstractmethod
    def forward(self, query_BTD: Tensor, prepared: Tensor) -> Tensor:
        """The scores (B, T, S) against prepared keys."""


class Additive(Score):
    """e = vᵀ tanh(W q + U k) (Bahdanau et al. 2015; their W_a, U_a, v_a)."""

    def __init__(self, query_size: int, key_size: int, hidden: int | None = None) -> None:
        super().__init__()
        width = hidden or query_size
        self.query = nn.Linear(query_size, width, bias=False)
        self.key = nn.Linear(key_size, width, bias=False)
        self.v = nn.Parameter(torch.empty(width))
        nn.init.uniform_(self.v, -(width**-0.5), width**-0.5)

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        prepared: Tensor = self.key(keys_BSD)
        return prepared

    def forward(self, query_BTD: Tensor, prepared: Tensor) -> Tensor:
        hidden_BTSA = torch.tanh(self.query(query_BTD).unsqueeze(2) + prepared.unsqueeze(1))
        return hidden_BTSA @ self.v


class Dot(Score):
    """e = qᵀ k, or qᵀ k / √d where `scaled` (Luong et al. 2015; Vaswani et al. 2017)."""

    def __init__(self, query_size: int, key_size: int, *, scaled: bool = False) -> None:
        super().__init__()
        if query_size != key_size:
            raise ConfigError(
                f"A dot product needs queries and keys of one size, and they have {query_size} and {key_size}. "
                "Make the sizes equal, or take the score `general`."
            )
        self.compare = equation.scaled_dot if scaled else equation.dot

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        return keys_BSD

    def forward(self, query_BTD: Tensor, prepared: Tensor) -> Tensor:
        return self.compare(query_BTD, prepared)


class General(Score):
    """e = qᵀ W k (Luong et al. 2015)."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.key = nn.Linear(key_size, query_size, bias=False)

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        prepared: Tensor = self.key(keys_BSD)
        return prepared

    def forward(self, query_BTD: Tensor, prepared: Tensor) -> Tensor:
        return equation.dot(query_BTD, prepared)


SCORES: dict[str, Callable[..., Score]] = {
    "additive": Additive,
    "dot": Dot,
    "scaled_dot": partial(Dot, scaled=True),
    "general": General,
}


def build_score(choice: settings.Score, query_size: int, key_size: int) -> Score:
    return SCORES[choice.kind](query_size, key_size, **choice.model_dump(exclude={"kind"}))
