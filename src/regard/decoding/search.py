"""Search: from a memory to the tokens of an answer, through the contract of `Decoder` alone; `beam.py` goes on with it.

Sentences whose search is over leave the batch, several at a time.

B sentences, K hypotheses of each, N = B K, T steps, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.record import anything_recorded
from regard.decoding.cuda_graphs import GraphedDecoder
from regard.decoding.rules import ConstraintProgress, Never, Rule, Said
from regard.models.contracts import Decoder, Keys, Memory, State, reorder


class Symbols(NamedTuple):
    """The tokens that search must know of: with which to begin and to end, and which never to say."""

    start: int
    end: int
    never: tuple[int, ...] = ()


class Hypothesis(NamedTuple):
    """An answer: its tokens without the end, the log-probability of all it says, whether it had to be cut, and by what
    it was ranked.
    """

    tokens: list[int]
    score: float
    truncated: bool
    rank: float = 0.0

    @property
    def place(self) -> tuple[bool, float]:
        """By which answers are put in order, the best first: what had to be cut comes after what ended by itself."""
        return self.truncated, -self.rank


Choose = Callable[[Tensor], Tensor]
"""From the log-probabilities (N, V) to a token for each."""


def likeliest(log_p_NV: Tensor) -> Tensor:
    return log_p_NV.argmax(-1)


@dataclass
class SearchBatch:
    """The sentences whose search goes on, by their numbers in what was given."""

    decoder: Decoder
    keys: Keys
    state: State
    token_N: Tensor
    said_NT: Tensor
    numbers_B: Tensor
    rules: Sequence[Rule]
    playback: GraphedDecoder | None = None
    """What takes the steps in the decoder's place, on a GPU."""

    @classmethod
    def begin(
        cls, decoder: Decoder, memory: Memory, symbols: Symbols, rules: Sequence[Rule], rows: Tensor, hypotheses: int
    ) -> "SearchBatch":
        keys, state = decoder.begin(memory)
        numbers_B = torch.arange(len(rows), device=rows.device)
        state = reorder(state, numbers_B.repeat_interleave(hypotheses)) if hypotheses > 1 else state
        token_N = torch.full((len(rows) * hypotheses,), symbols.start, device=rows.device)
        said_NT = token_N.new_empty(len(token_N), 0)
        # A recorded step gives no weights, and no gradient.
        plays = rows.is_cuda and not anything_recorded() and not torch.is_grad_enabled()
        playback = GraphedDecoder(decoder) if plays else None
        return cls(decoder, keys, state, token_N, said_NT, numbers_B, [Never(symbols.never), *rules], playback)

    @property
    def hypotheses(self) -> int:
        return len(self.token_N) // len(self.numbers_B)

    @property
    def said(self) -> Said:
        return Said(self.said_NT, self.numbers_B.repeat_interleave(self.hypotheses))

    def log_p(self) -> tuple[Tensor, Tensor]:
        """Of each next token: as the model has it, but where it is barred, and as the rules leave it."""
        if self.playback is None:
            logits_NV, self.state = self.decoder.step(self.token_N, self.state, self.keys)
        else:
            taken = self.said_NT.shape[1]
            logits_NV, self.state = self.playback.step(self.token_N, self.state, self.keys, taken)
        log_p_NV = _log_softmax(logits_NV.float())
        # What is barred is never said, and nobody asks how likely it was: without other rules there is nothing to keep.
        ruled_NV = log_p_NV if all(rule.only_bars for rule in self.rules) else log_p_NV.clone()
        said = self.said
        for rule in self.rules:
            ruled_NV = rule(ruled_NV, said)
        return log_p_NV, ruled_NV

    def progress(self, vocabulary: int) -> ConstraintProgress | None:
        """Towards what the answers must say; None where nothing is asked of them."""
        found = (rule.progress(self.said, vocabulary) for rule in self.rules)
        return next((progress for progress in found if progress is not None), None)

    def say(self, token_N: Tensor, from_N: Tensor | None = None) -> None:
        """Go on with these tokens, each said by the hypothesis it comes from, one of the same sentence."""
        if from_N is not None:
            self.state = reorder(self.state, from_N, block=self.hypotheses)
            self.said_NT = self.said_NT.index_select(0, from_N)
        self.token_N = token_N
        self.said_NT = torch.cat([self.said_NT, token_N.unsqueeze(1)], dim=1)

    def leave(self, rows_B: Tensor) -> Tensor:
        """Go on with some of the sentences alone → the rows of their hypotheses, as they stood."""
        offsets_K = torch.arange(self.hypotheses, device=rows_B.device)
        rows_N = (rows_B.unsqueeze(1) * self.hypotheses + offsets_K).flatten()
        self.keys = reorder(self.keys, rows_B)
        self.state = reorder(self.state, rows_N, block=self.hypotheses, blocks=rows_B)
        self.token_N, self.said_NT, self.numbers_B = self.token_N[rows_N], self.said_NT[rows_N], self.numbers_B[rows_B]
        return rows_N


def _log_softmax(logits_NV: Tensor) -> Tensor:
    """In place and piece by piece on a CPU, where fresh memory of this size costs more than the sums."""
    if logits_NV.device.type != "cpu" or logits_NV.requires_grad:
        return logits_NV.log_softmax(-1)
    for piece in torch.split(logits_NV, max(1, 2**17 // logits_NV.shape[1])):
        piece.copy_(piece.log_softmax(-1))
    return logits_NV


def greedy(
    decoder: Decoder, memory: Memory, symbols: Symbols, limits_B: Tensor, rules: Sequence[Rule] = ()
) -> list[Hypothesis]:
    """The likeliest token at each step; a row ends at END, or after `limits_B` tokens, truncated."""
    return [found for [found] in walk(decoder, memory, symbols, limits_B, likeliest, rules)]


def walk(
    decoder: Decoder,
    memory: Memory,
    symbols: Symbols,
    limits_B: Tensor,
    choose: Choose,
    rules: Sequence[Rule] = (),
    answers: int = 1,
) -> list[list[Hypothesis]]:
    """One token after another, as `choose` has it, for so many answers to each sentence."""
    found: dict[int, list[Hypothesis]] = {}
    limits_N = limits_B.repeat_interleave(answers)
    batch = SearchBatch.begin(decoder, memory, symbols, rules, limits_B, answers)
    score_N = torch.zeros(len(limits_N), dtype=torch.float64, device=limits_B.device)
    ended_N = limits_N <= 0
    cut_N = ended_N.clone()
    while True:
        over_B = ended_N.view(-1, answers).all(1)
        over = int(over_B.sum())
        if worth_leaving(over, len(over_B)):
            lengths_N = _lengths(batch.said_NT, symbols.end)
            rows_B = over_B.nonzero().squeeze(1)
            told = (batch.said_NT, lengths_N, score_N, cut_N)
            parts = (part.view(len(over_B), answers, -1)[rows_B].tolist() for part in told)
            for number, *own in zip(batch.numbers_B[rows_B].tolist(), *parts, strict=True):
                found[number] = [
                    Hypothesis(tokens[:length], score, cut, score)
                    for tokens, [length], [score], [cut] in zip(*own, strict=True)
                ]
            if over == len(over_B):
                break
            rows_N = batch.leave((~over_B).nonzero().squeeze(1))
            score_N, limits_N, ended_N, cut_N = (part[rows_N] for part in (score_N, limits_N, ended_N, cut_N))
        log_p_NV, ruled_NV = batch.log_p()
        token_N = torch.where(ended_N, symbols.end, choose(ruled_NV))
        score_N = score_N + torch.where(ended_N, 0.0, log_p_NV.gather(-1, token_N.unsqueeze(-1)).squeeze(-1))
        batch.say(token_N)
        at_limit_N = batch.said_NT.shape[1] >= limits_N
        cut_N = cut_N | (~ended_N & (token_N != symbols.end) & at_limit_N)
        ended_N = ended_N | (token_N == symbols.end) | at_limit_N
    return [found[number] for number in range(len(found))]


def worth_leaving(over: int, rows: int) -> bool:
    """Whether so many of the sentences of a batch are over that it pays to move the others together."""
    return over * 8 >= rows


def _lengths(said_NT: Tensor, end: int) -> Tensor:
    """How many tokens stand before the first END."""
    return ((said_NT == end).cumsum(1) == 0).sum(1)
