"""Rules: what may not be said next, or is made less likely, given what has been said.

B sentences, N hypotheses, T tokens said so far, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor


class Said(NamedTuple):
    """What each hypothesis has said so far, and the number of the sentence that it answers."""

    tokens_NT: Tensor
    sentence_N: Tensor

    @property
    def steps(self) -> int:
        return self.tokens_NT.shape[1]


class ConstraintProgress(NamedTuple):
    """How much of what must be said a hypothesis has said, in tokens: now, and after each token that may come next."""

    now_N: Tensor
    then_NV: Tensor


class Rule(ABC):
    """Changes the log-probabilities of the next token."""

    only_bars: bool = True
    """Whether all that it does is to make tokens impossible."""

    @abstractmethod
    def __call__(self, log_p_NV: Tensor, said: Said) -> Tensor:
        """The log-probabilities as the rule leaves them; it may write to what it is given."""

    def progress(self, said: Said, vocabulary: int) -> ConstraintProgress | None:  # noqa: ARG002
        """Towards what the rule makes answers say, None where that is nothing: a beam keeps places for hypotheses that
        are further than others.
        """
        return None


@final
@dataclass(frozen=True)
class Never(Rule):
    """Tokens that are never said."""

    tokens: tuple[int, ...]

    def __call__(self, log_p_NV: Tensor, said: Said) -> Tensor:
        del said
        for token in self.tokens:  # few, and no list of them has to go to the device at every step
            log_p_NV[:, token] = -torch.inf
        return log_p_NV


@final
@dataclass(frozen=True)
class NotBefore(Rule):
    """A token (the end) that is not said before so many others."""

    token: int
    length: int

    def __call__(self, log_p_NV: Tensor, said: Said) -> Tensor:
        return Never((self.token,))(log_p_NV, said) if said.steps < self.length else log_p_NV


@final
@dataclass(frozen=True)
class Banned(Rule):
    """Sequences of tokens that are not said: the last token is barred where the others stand before it."""

    sequences: tuple[tuple[int, ...], ...]

    def __call__(self, log_p_NV: Tensor, said: Said) -> Tensor:
        for *before, last in self.sequences:
            if len(before) <= said.steps:
                stands_N = torch.ones_like(said.sentence_N, dtype=torch.bool)
                for token_N, token in zip(said.tokens_NT[:, said.steps - len(before) :].unbind(1), before, strict=True):
                    stands_N = stands_N & (token_N == token)
                log_p_NV[:, last].masked_fill_(stands_N, -torch.inf)
        return log_p_NV


@final
@dataclass(frozen=True)
class NoRepeat(Rule):
    """No sequence of `length` tokens is said twice."""

    length: int

    def __call__(self, log_p_NV: Tensor, said: Said) -> Tensor:
        context = self.length - 1
        if said.steps < self.length:
            return log_p_NV
        windows_NWL = said.tokens_NT.unfold(1, self.length, 1)
        same_NW = (windows_NWL[..., :context] == said.tokens_NT[:, None, said.steps - context :]).all(-1)
        # What followed the same tokens before is barred; a place that followed others bars nothing.
        bar_NV = torch.zeros_like(log_p_NV).scatter_reduce(1, windows_NWL[..., -1], same_NW.to(log_p_NV.dtype), "amax")
        return log_p_NV.masked_fill_(bar_NV > 0, -torch.inf)


@final
@dataclass(frozen=True)
class Repetition(Rule):
    """What has been said is less likely to be said again: log p times the penalty (after Keskar et al. 2019)."""

    penalty: float
    only_bars = False

    def __call__(self, log_p_NV: Tensor, said: Said) -> Tensor:
        if said.steps == 0:
            return log_p_NV
        return log_p_NV.scatter_(1, said.tokens_NT, log_p_NV.gather(1, said.tokens_NT) * self.penalty)


@final
@dataclass(frozen=True)
class Prefix(Rule):
    """Each answer begins with the given tokens of its sentence."""

    prefixes: Sequence[Sequence[int]]
    only_bars = False

    def __call__(self, log_p_NV: Tensor, said: Said) -> Tensor:
        if said.steps >= self._padded.shape[1]:
            return log_p_NV
        forced_B = self._padded[:, said.steps].to(log_p_NV.device)
        forced_N1 = forced_B[said.sentence_N].unsqueeze(1)
        tokens_V = torch.arange(log_p_NV.shape[1], device=log_p_NV.device)
        barred_NV = (forced_N1 >= 0) & (tokens_V != forced_N1)
        # What is forced is possible, however unlikely or unwelcome to other rules.
        return torch.where(forced_N1 >= 0, log_p_NV.clamp_min(-1e9), log_p_NV).masked_fill_(barred_NV, -torch.inf)

    @cached_property
    def _padded(self) -> Tensor:
        """The prefixes filled up to the longest with −1."""
        longest = max(map(len, self.prefixes), default=0)
        rows = [[*prefix, *[-1] * (longest - len(prefix))] for prefix in self.prefixes]
        return torch.tensor(rows, dtype=torch.long).view(len(rows), longest)
