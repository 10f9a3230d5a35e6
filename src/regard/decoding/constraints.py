"""Phrases that an answer must contain.

B sentences, N hypotheses, T tokens said so far, P phrases of a sentence, L their length, A = P L tokens, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from regard.decoding.rules import ConstraintProgress, Rule, Said

NOTHING = -1
"""Stands where a phrase is shorter than others, and equals no token."""


class _Standing(NamedTuple):
    """Of each phrase of each hypothesis: its tokens, its length, whether it is missing, and whether what has been said
    ends with its first n tokens, n = 0 … L − 1.
    """

    tokens_NPL: Tensor
    length_NP: Tensor
    missing_NP: Tensor
    begun_NPL: Tensor


@final
@dataclass(frozen=True)
class RequiredPhrases(Rule):
    """Each answer contains the given sequences of its sentence. It may not end before; and no token is said after which
    the room that is left is too small for what is missing, of which the phrase furthest begun counts as begun.

    With one phrase nothing else is ruled out. Of several that could overlap, some overlaps are, where room is short.
    """

    sequences: Sequence[Sequence[Sequence[int]]]
    limits: Sequence[int]
    end: int
    only_bars = False

    def __call__(self, log_p_NV: Tensor, said: Said) -> Tensor:
        progress = self.progress(said, log_p_NV.shape[1])
        if progress is None:
            return log_p_NV
        _, lengths_BP, limits_B = (part.to(log_p_NV.device) for part in self._padded)
        total_N = lengths_BP.sum(1)[said.sentence_N]
        left_N = (limits_B[said.sentence_N] - 2 - said.steps).clamp_min(0)
        barred_NV = (total_N - left_N).unsqueeze(1) > progress.then_NV
        # Where room is short, what must be said is possible, however unlikely or unwelcome to other rules.
        short_N1 = barred_NV.any(1, keepdim=True)
        barred_NV[:, self.end] = progress.now_N < total_N
        return torch.where(short_N1, log_p_NV.clamp_min(-1e9), log_p_NV).masked_fill(barred_NV, -torch.inf)

    def progress(self, said: Said, vocabulary: int) -> ConstraintProgress | None:
        """Tokens of the phrases said, and of those missing that of the one furthest begun."""
        if not any(self.sequences):
            return None
        tokens_NPL, length_NP, missing_NP, begun_NPL = self._standing(said)
        size_L = torch.arange(tokens_NPL.shape[2], device=tokens_NPL.device)
        met_N = (length_NP * ~missing_NP).sum(1)
        now_N = met_N + (begun_NPL * size_L * missing_NP.unsqueeze(-1)).amax((1, 2))
        token_NA = tokens_NPL.flatten(1)
        # How much of each phrase stands at the end once a token of any has been said: (N, A, P).
        goes_on = begun_NPL.unsqueeze(1) & (tokens_NPL.unsqueeze(1) == token_NA[..., None, None])
        after_NAP = (goes_on * (size_L + 1)).amax(-1) * missing_NP.unsqueeze(1)
        done_NAP = missing_NP.unsqueeze(1) & (after_NAP == length_NP.unsqueeze(1))
        said_NA = (done_NAP * length_NP.unsqueeze(1)).sum(-1) + (after_NAP * ~done_NAP).amax(-1)
        then_NV = met_N.unsqueeze(1).repeat(1, vocabulary)
        there_NA = torch.where(token_NA == NOTHING, 0, met_N.unsqueeze(1) + said_NA)
        then_NV.scatter_reduce_(1, token_NA.clamp_min(0), there_NA, "amax")
        return ConstraintProgress(now_N, then_NV)

    def _standing(self, said: Said) -> _Standing:
        tokens_BPL, lengths_BP, _ = (part.to(said.tokens_NT.device) for part in self._padded)
        tokens_NPL, length_NP = tokens_BPL[said.sentence_N], lengths_BP[said.sentence_N]
        longest = tokens_NPL.shape[2]
        before = said.tokens_NT.new_full((len(said.tokens_NT), longest), NOTHING - 1)
        padded_NX = torch.cat([before, said.tokens_NT, before], dim=1)
        # A window at each place of what has been said, and of each phrase whether it stands there.
        same = padded_NX.unfold(1, longest, 1).unsqueeze(1) == tokens_NPL.unsqueeze(2)
        shorter_NP1L = (tokens_NPL == NOTHING).unsqueeze(2)
        missing_NP = ~(same | shorter_NP1L).all(-1).any(-1) & (length_NP > 0)
        begun = [torch.ones_like(missing_NP)]
        end = longest + said.steps
        for size in range(1, longest):
            begun.append((padded_NX[:, None, end - size : end] == tokens_NPL[..., :size]).all(-1))
        return _Standing(tokens_NPL, length_NP, missing_NP, torch.stack(begun, dim=-1))

    @cached_property
    def _padded(self) -> tuple[Tensor, Tensor, Tensor]:
        """The phrases filled up to the longest, (B, P, L), their lengths, and the limits."""
        most = max(map(len, self.sequences))
        longest = max(len(phrase) for own in self.sequences for phrase in own)
        tokens_BPL = torch.full((len(self.sequences), most, longest), NOTHING)
        for row, own in enumerate(self.sequences):
            for place, phrase in enumerate(own):
                tokens_BPL[row, place, : len(phrase)] = torch.tensor(phrase)
        return tokens_BPL, (tokens_BPL != NOTHING).sum(-1), torch.tensor(self.limits)
