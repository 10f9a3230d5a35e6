"""Greedy search over a decoder that is a lookup table, so that every result can be computed by hand."""

import math

import pytest
import torch
from torch import Tensor

from regard.decoding.search import Hypothesis, SpecialTokens, choose_most_likely, decode_stepwise
from regard.models.contracts import Decoded, Decoder, Memory, reorder, repeat_for_hypotheses

START, END, A, B = 0, 1, 2, 3
SPECIAL = SpecialTokens(START, END, suppressed=(START,))


class TableDecoder(Decoder):
    """p(next | last token) from a table; the state counts steps, and the memory is added to the logits."""

    def __init__(self, rows: dict[int, list[float]]) -> None:
        super().__init__()
        self.table = torch.full((4, 4), -1e9)
        for token, probabilities in rows.items():
            self.table[token] = torch.tensor(probabilities).log()

    def begin(self, memory: Memory) -> tuple[Tensor, Tensor]:
        return memory.summary_BD, torch.zeros(memory.summary_BD.shape[0], 1)

    def step(self, token_B: Tensor, state: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        return self.table[token_B] + repeat_for_hypotheses(keys, len(token_B)), state + 1

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        return Decoded.from_logits(self.table[tokens_BT] + memory.summary_BD.unsqueeze(1))


def memory(*bonuses: list[float]) -> Memory:
    summary = torch.tensor(bonuses)
    return Memory(summary.unsqueeze(1), torch.ones(len(bonuses), 1, dtype=torch.bool), summary)


def greedy_search(decoder: Decoder, encoded: Memory, special: SpecialTokens, limits: Tensor) -> list[Hypothesis]:
    nbest = decode_stepwise(decoder, encoded, special, limits, choose_most_likely)
    return [hypothesis for [hypothesis] in nbest]


ENDS_SOON = TableDecoder({START: [0.0, 0.1, 0.7, 0.2], A: [0.0, 0.3, 0.1, 0.6], B: [0.0, 0.8, 0.1, 0.1]})
NEVER_ENDS = TableDecoder({START: [0.0, 0.1, 0.9, 0.0], A: [0.0, 0.1, 0.9, 0.0]})


def test_chooses_the_most_likely_token_at_each_step() -> None:
    [hypothesis] = greedy_search(ENDS_SOON, memory([0.0] * 4), SPECIAL, torch.tensor([9]))
    assert hypothesis.tokens == [A, B]
    assert hypothesis.score == pytest.approx(math.log(0.7 * 0.6 * 0.8), abs=1e-5)
    assert not hypothesis.truncated


def test_a_hypothesis_that_does_not_end_is_truncated_at_the_limit_of_its_sentence() -> None:
    first, second = greedy_search(NEVER_ENDS, memory([0.0] * 4, [0.0] * 4), SPECIAL, torch.tensor([3, 5]))
    assert (first.tokens, first.truncated) == ([A] * 3, True)
    assert (second.tokens, second.truncated) == ([A] * 5, True)
    assert first.score == pytest.approx(3 * math.log(0.9), abs=1e-5)


def test_results_do_not_depend_on_the_batch() -> None:
    pair = memory([0.0] * 4, [0.0, 0.0, -9.0, 0.0])
    batched = greedy_search(ENDS_SOON, pair, SPECIAL, torch.tensor([9, 9]))
    single = [
        greedy_search(ENDS_SOON, reorder(pair, torch.tensor([row])), SPECIAL, torch.tensor([9]))[0] for row in range(2)
    ]
    assert [h.tokens for h in batched] == [h.tokens for h in single] == [[A, B], [B]]
    assert [h.score for h in batched] == pytest.approx([h.score for h in single])


def test_suppressed_tokens_are_not_generated() -> None:
    decoder = TableDecoder({START: [0.98, 0.01, 0.01, 0.0], A: [0.98, 0.02, 0.0, 0.0]})
    [hypothesis] = greedy_search(decoder, memory([0.0, 0.0, 1.0, 0.0]), SPECIAL, torch.tensor([9]))
    assert hypothesis.tokens == [A]


def test_a_limit_of_zero_returns_an_empty_hypothesis() -> None:
    [hypothesis] = greedy_search(NEVER_ENDS, memory([0.0] * 4), SPECIAL, torch.tensor([0]))
    assert (hypothesis.tokens, hypothesis.truncated) == ([], False)
