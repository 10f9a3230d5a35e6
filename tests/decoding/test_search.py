"""Greedy search over a decoder that is a table, where every answer can be worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from regard.decoding.search import Symbols, greedy
from regard.models.contracts import Decoded, Decoder, Memory, reorder, repeat_for_hypotheses

START, END, A, B = 0, 1, 2, 3
SYMBOLS = Symbols(START, END, never=(START,))


class Table(Decoder):
    """p(next | last token) by look-up; the state counts steps, the memory is a bonus for each token."""

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
        return Decoded(self.table[tokens_BT] + memory.summary_BD.unsqueeze(1))


def memory(*bonuses: list[float]) -> Memory:
    summary = torch.tensor(bonuses)
    return Memory(summary.unsqueeze(1), torch.ones(len(bonuses), 1, dtype=torch.bool), summary)


ABOUT_TO_END = Table({START: [0.0, 0.1, 0.7, 0.2], A: [0.0, 0.3, 0.1, 0.6], B: [0.0, 0.8, 0.1, 0.1]})
FOREVER = Table({START: [0.0, 0.1, 0.9, 0.0], A: [0.0, 0.1, 0.9, 0.0]})


def test_takes_the_likeliest_token_at_each_step() -> None:
    [found] = greedy(ABOUT_TO_END, memory([0.0] * 4), SYMBOLS, torch.tensor([9]))
    assert found.tokens == [A, B]
    assert found.score == pytest.approx(math.log(0.7 * 0.6 * 0.8), abs=1e-5)
    assert not found.truncated


def test_an_answer_without_end_is_cut_at_its_own_limit() -> None:
    first, second = greedy(FOREVER, memory([0.0] * 4, [0.0] * 4), SYMBOLS, torch.tensor([3, 5]))
    assert (first.tokens, first.truncated) == ([A] * 3, True)
    assert (second.tokens, second.truncated) == ([A] * 5, True)
    assert first.score == pytest.approx(3 * math.log(0.9), abs=1e-5)


def test_batch_mates_change_nothing() -> None:
    mates = memory([0.0] * 4, [0.0, 0.0, -9.0, 0.0])
    found = greedy(ABOUT_TO_END, mates, SYMBOLS, torch.tensor([9, 9]))
    alone = [
        greedy(ABOUT_TO_END, reorder(mates, torch.tensor([row])), SYMBOLS, torch.tensor([9]))[0] for row in range(2)
    ]
    assert [answer.tokens for answer in found] == [answer.tokens for answer in alone] == [[A, B], [B]]
    assert [answer.score for answer in found] == pytest.approx([answer.score for answer in alone])


def test_what_must_never_be_said_is_never_said() -> None:
    tempted = Table({START: [0.98, 0.01, 0.01, 0.0], A: [0.98, 0.02, 0.0, 0.0]})
    [found] = greedy(tempted, memory([0.0, 0.0, 1.0, 0.0]), SYMBOLS, torch.tensor([9]))
    assert found.tokens == [A]


def test_no_room_gives_an_empty_answer() -> None:
    [found] = greedy(FOREVER, memory([0.0] * 4), SYMBOLS, torch.tensor([0]))
    assert found.tokens == []
