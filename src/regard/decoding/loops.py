"""Loops of greedy search: detect predictions that repeat a cycle of tokens, and decode them without the loop.

Greedy search can repeat itself until the length limit (Holtzman et al. 2020). A sentence is decoded again only if its
prediction loops, so the guard adds no operation to the steps of the search.

N hypotheses, T tokens generated so far, V vocabulary.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from regard.decoding.rules import Generated, Rule
from regard.decoding.search import Hypothesis

MAX_PERIOD = 8
"""The length of the longest cycle that is a loop if it repeats."""

MAX_REPEATS = 3
"""A cycle that occurs up to this number of times in a row is not a loop."""

MIN_LOOP = 16
"""The minimum number of tokens of a loop. Long numbers repeat the digit 0, for example."""

MIN_LOOP_AT_LIMIT = 8
"""The same for a loop in which the hypothesis was truncated at the length limit."""

_REPEATED = re.compile(rf"(.{{1,{MAX_PERIOD}}}?)\1{{{MAX_REPEATS},}}", re.DOTALL)


def has_loop(hypothesis: Hypothesis, source_tokens: Sequence[str]) -> bool:
    """Whether a hypothesis repeats a cycle of tokens. If the source repeats one, too, the repetition is not a loop."""
    tokens = hypothesis.tokens
    min_loop = MIN_LOOP_AT_LIMIT if hypothesis.truncated else MIN_LOOP
    # Most predictions have too few repeated tokens. This is much faster to compute than the search below.
    if (len(tokens) - len(set(tokens))) * (MAX_REPEATS + 1) < min_loop * MAX_REPEATS:
        return False
    # A character for each token: regular expressions find repetitions faster than a loop over tokens.
    for match in _REPEATED.finditer("".join(map(chr, tokens))):
        at_limit = hypothesis.truncated and len(tokens) - match.end() < len(match[1])
        if match.end() - match.start() >= (MIN_LOOP_AT_LIMIT if at_limit else MIN_LOOP):
            return not _repeats(source_tokens)
    return False


def _repeats(tokens: Sequence[str]) -> bool:
    ids = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    return _REPEATED.search("".join(chr(ids[token]) for token in tokens)) is not None


@final
@dataclass(frozen=True)
class NoLoops(Rule):
    """Do not generate a cycle of up to `MAX_PERIOD` tokens more than `MAX_REPEATS` times in a row."""

    def __call__(self, log_p_NV: Tensor, generated: Generated) -> Tensor:
        for period in range(1, MAX_PERIOD + 1):
            length = (MAX_REPEATS + 1) * period - 1  # the next token would complete one repetition too many
            if generated.steps < length:
                break
            recent_NL = generated.tokens_NT[:, generated.steps - length :]
            repeats_N1 = (recent_NL[:, period:] == recent_NL[:, :-period]).all(1, keepdim=True)
            next_N1 = recent_NL[:, -period].unsqueeze(1)
            log_p_NV.scatter_(1, next_N1, log_p_NV.gather(1, next_N1).masked_fill(repeats_N1, -torch.inf))
        return log_p_NV
