"""Search: from a memory to the tokens of an answer, through the contract of `Decoder` alone.

B rows, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.models.contracts import Decoder, Memory


class Symbols(NamedTuple):
    """The tokens that search must know of: with which to begin and to end, and which never to say."""

    start: int
    end: int
    never: tuple[int, ...] = ()


class Hypothesis(NamedTuple):
    """An answer: its tokens without the end, the log-probability of all it says, whether it had to be cut."""

    tokens: list[int]
    score: float
    truncated: bool


def greedy(decoder: Decoder, memory: Memory, symbols: Symbols, limits_B: Tensor) -> list[Hypothesis]:
    """The likeliest token at each step; a row ends at END, or after `limits_B` tokens, truncated."""
    keys, state = decoder.begin(memory)
    rows = limits_B.shape[0]
    token_B = torch.full((rows,), symbols.start, device=limits_B.device)
    running_B = limits_B > 0
    ended_B = torch.zeros_like(running_B)
    score_B = torch.zeros(rows, dtype=torch.float64, device=limits_B.device)
    never = torch.tensor(symbols.never, dtype=torch.long, device=limits_B.device)
    said: list[Tensor] = []
    while bool(running_B.any()):
        logits_BV, state = decoder.step(token_B, state, keys)
        log_p_BV = logits_BV.float().log_softmax(-1)
        likeliest_B = log_p_BV.index_fill(-1, never, -torch.inf).argmax(-1)
        token_B = torch.where(running_B, likeliest_B, symbols.end)
        score_B += torch.where(running_B, log_p_BV.gather(-1, token_B.unsqueeze(-1)).squeeze(-1), 0.0)
        said.append(token_B)
        ended_B = ended_B | (running_B & (token_B == symbols.end))
        running_B = running_B & ~ended_B & (len(said) < limits_B)
    answers = torch.stack(said, 1).tolist() if said else [[] for _ in range(rows)]
    return [
        Hypothesis(answer[: answer.index(symbols.end)] if symbols.end in answer else answer, score, not ended)
        for answer, score, ended in zip(answers, score_B.tolist(), ended_B.tolist(), strict=True)
    ]
