"""Rules of the search: mask the log-probabilities of next tokens, or lower them, given the tokens generated so far.

B sentences, N hypotheses, T tokens generated so far, C the largest number of tokens, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class Generated:
    """The tokens that each hypothesis has generated so far, and the index of its sentence."""

    tokens_NC: Tensor
    """The tokens in the first T columns."""
    sentence_N: Tensor
    step: Tensor
    """T, (1,)."""

    @cached_property
    def steps(self) -> int:
        """T as a number. On a GPU, this waits for all previous steps, and a CUDA graph cannot contain it."""
        return int(self.step)

    @property
    def tokens_NT(self) -> Tensor:
        return self.tokens_NC[:, : self.steps]

    def last(self, count: int) -> Tensor:
        """Return the last tokens of each hypothesis, (N, `count`); arbitrary tokens if there are fewer."""
        columns = self.step + torch.arange(-count, 0, device=self.step.device)
        return self.tokens_NC.index_select(1, columns.clamp_min(0))


class ConstraintProgress(NamedTuple):
    """The number of required tokens that each hypothesis contains: now, and after each possible next token."""

    now_N: Tensor
    next_NV: Tensor


class Rule(ABC):
    """Changes the log-probabilities of the next token."""

    only_masks: bool = True
    """Whether the rule only sets log-probabilities to −∞, and changes no others."""
    is_capturable: bool = False
    """Whether the rule uses only tensors of constant shapes on the device, so that a CUDA graph can contain it."""

    @abstractmethod
    def __call__(self, log_p_NV: Tensor, generated: Generated) -> Tensor:
        """Return the adjusted log-probabilities. May modify `log_p_NV` in place."""

    def progress(self, generated: Generated, vocabulary: int) -> ConstraintProgress | None:  # noqa: ARG002
        """Return the progress toward the tokens that the rule requires, or None if it requires none. A beam reserves
        slots for hypotheses with more progress than others.
        """
        return None


@final
@dataclass(frozen=True)
class ReportTokens(Rule):
    """Changes nothing. Before each step, reports the tokens of the first hypothesis."""

    report: Callable[[list[int]], object]

    def __call__(self, log_p_NV: Tensor, generated: Generated) -> Tensor:
        self.report(generated.tokens_NT[0].tolist())
        return log_p_NV


@final
@dataclass(frozen=True)
class SuppressedTokens(Rule):
    """Never generate these tokens."""

    tokens: tuple[int, ...]
    is_capturable = True

    def __call__(self, log_p_NV: Tensor, generated: Generated) -> Tensor:
        del generated
        for token in self.tokens:  # a loop over a few tokens copies no index tensor to the device at every step
            log_p_NV[:, token] = -torch.inf
        return log_p_NV


@final
@dataclass(frozen=True)
class MinLength(Rule):
    """Do not generate the end token before `length` other tokens."""

    end: int
    length: int
    is_capturable = True

    def __call__(self, log_p_NV: Tensor, generated: Generated) -> Tensor:
        log_p_NV[:, self.end].masked_fill_(generated.step < self.length, -torch.inf)
        return log_p_NV


@final
@dataclass(frozen=True)
class BannedPhrases(Rule):
    """Do not generate these sequences of tokens: mask the last token of a sequence after its other tokens."""

    sequences: tuple[tuple[int, ...], ...]
    is_capturable = True

    def __call__(self, log_p_NV: Tensor, generated: Generated) -> Tensor:
        for *prefix, last in self.sequences:
            matches_N = (generated.step >= len(prefix)).expand_as(generated.sentence_N)
            for token_N, token in zip(generated.last(len(prefix)).unbind(1), prefix, strict=True):
                matches_N = matches_N & (token_N == token)
            log_p_NV[:, last].masked_fill_(matches_N, -torch.inf)
        return log_p_NV


@final
@dataclass(frozen=True)
class NoRepeatNgram(Rule):
    """Do not generate the same n-gram of `length` tokens twice."""

    length: int
    is_capturable = True

    def __call__(self, log_p_NV: Tensor, generated: Generated) -> Tensor:
        if generated.tokens_NC.shape[1] < self.length:
            return log_p_NV
        windows_NWL = generated.tokens_NC.unfold(1, self.length, 1)
        end_W = torch.arange(self.length, generated.tokens_NC.shape[1] + 1, device=log_p_NV.device)
        same_NW = (windows_NWL[..., :-1] == generated.last(self.length - 1).unsqueeze(1)).all(-1)
        same_NW = same_NW & (end_W <= generated.step)
        # Mask each token that has followed the same context before.
        mask_NV = torch.zeros_like(log_p_NV).scatter_reduce(1, windows_NWL[..., -1], same_NW.to(log_p_NV.dtype), "amax")
        return log_p_NV.masked_fill_(mask_NV > 0, -torch.inf)


@final
@dataclass(frozen=True)
class RepetitionPenalty(Rule):
    """Multiply log p of tokens that have been generated already by the penalty (after Keskar et al. 2019)."""

    penalty: float
    only_masks = False
    is_capturable = True

    def __call__(self, log_p_NV: Tensor, generated: Generated) -> Tensor:
        columns_C = torch.arange(generated.tokens_NC.shape[1], device=log_p_NV.device)
        # The first token stands in for those that are not yet generated. Before it, nothing changes.
        tokens_NC = torch.where(columns_C < generated.step, generated.tokens_NC, generated.tokens_NC[:, :1])
        factor = torch.where(generated.step > 0, self.penalty, 1.0)
        return log_p_NV.scatter_(1, tokens_NC, log_p_NV.gather(1, tokens_NC) * factor)


@final
@dataclass(frozen=True)
class ForcedPrefix(Rule):
    """Start the hypotheses of each sentence with the sentence's prefix."""

    prefixes: Sequence[Sequence[int]]
    only_masks = False

    def __call__(self, log_p_NV: Tensor, generated: Generated) -> Tensor:
        if generated.steps >= self._padded.shape[1]:
            return log_p_NV
        forced_B = self._padded[:, generated.steps].to(log_p_NV.device)
        forced_N1 = forced_B[generated.sentence_N].unsqueeze(1)
        tokens_V = torch.arange(log_p_NV.shape[1], device=log_p_NV.device)
        masked_NV = (forced_N1 >= 0) & (tokens_V != forced_N1)
        # A forced token stays possible even if it is very unlikely or masked by another rule.
        return torch.where(forced_N1 >= 0, log_p_NV.clamp_min(-1e9), log_p_NV).masked_fill_(masked_NV, -torch.inf)

    @cached_property
    def _padded(self) -> Tensor:
        """The prefixes, padded with −1 to the longest."""
        max_length = max(map(len, self.prefixes), default=0)
        rows = [[*prefix, *[-1] * (max_length - len(prefix))] for prefix in self.prefixes]
        return torch.tensor(rows, dtype=torch.long).view(len(rows), max_length)
