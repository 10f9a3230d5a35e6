"""Beam search against brute force over all sequences, and what every strategy promises.

V vocabulary: START, END and some letters.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from regard.decoding.beam import BeamOptions, BeamStep, _by_progress, beam, best_of
from regard.decoding.constraints import RequiredPhrases
from regard.decoding.rules import Banned, NoRepeat, NotBefore, Prefix, Repetition, Rule, Said
from regard.decoding.sampling import Draw
from regard.decoding.search import Hypothesis, Symbols, greedy, likeliest, walk
from regard.models.contracts import Decoded, Decoder, Memory, repeat_for_hypotheses
from regard.models.ensemble import EnsembleDecoder

START, END = 0, 1
SYMBOLS = Symbols(START, END, never=(START,))


class Random(Decoder):
    """p(next | all that was said, the sentence), drawn at random once for each of them: nothing can be foreseen."""

    def __init__(self, vocabulary: int, seed: int, sharpness: float = 1.5) -> None:
        super().__init__()
        self.vocabulary, self.seed, self.sharpness = vocabulary, seed, sharpness

    def logits(self, sentence: int, said: Sequence[int]) -> Tensor:
        key = hash((self.seed, sentence, *said)) % 2**31
        return self.sharpness * torch.randn(self.vocabulary, generator=torch.Generator().manual_seed(key))

    def begin(self, memory: Memory) -> tuple[Tensor, Tensor]:
        return memory.summary_BD, torch.zeros(len(memory.summary_BD), 0, dtype=torch.long)

    def step(self, token_B: Tensor, state: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        said = torch.cat([state, token_B.unsqueeze(1)], dim=1)
        sentences = repeat_for_hypotheses(keys, len(token_B))[:, 0].long().tolist()
        rows = [self.logits(n, tokens) for n, tokens in zip(sentences, said.tolist(), strict=True)]
        return torch.stack(rows), said

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        raise NotImplementedError


def contains(tokens: Sequence[int], phrase: Sequence[int]) -> bool:
    return any(list(tokens[first : first + len(phrase)]) == list(phrase) for first in range(len(tokens)))


def memory(*sentences: int) -> Memory:
    summary = torch.tensor([[float(number)] for number in sentences])
    return Memory(summary.unsqueeze(1), torch.ones(len(sentences), 1, dtype=torch.bool), summary)


def log_p(decoder: Random, sentence: int, tokens: Sequence[int]) -> float:
    """Of an answer, END included."""
    total, said = 0.0, [START]
    for token in (*tokens, END):
        total += float(decoder.logits(sentence, said).log_softmax(-1)[token])
        said.append(token)
    return total


def brute_force(
    decoder: Random, sentence: int, limit: int, alpha: float, phrases: Sequence[Sequence[int]] = ()
) -> list[tuple[float, tuple[int, ...]]]:
    """Every answer that ends within the limit and contains the phrases, the best first."""
    letters = range(2, decoder.vocabulary)
    answers = [tokens for size in range(limit) for tokens in itertools.product(letters, repeat=size)]
    answers = [tokens for tokens in answers if all(contains(tokens, phrase) for phrase in phrases)]
    penalty = {size: ((5 + size) / 6) ** alpha for size in range(1, limit + 1)}
    return sorted(((log_p(decoder, sentence, t) / penalty[len(t) + 1], t) for t in answers), reverse=True)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.integers(3, 6),
    limit=st.integers(1, 5),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
    nbest=st.integers(1, 3),
)
def test_a_beam_wide_enough_finds_the_best_of_all_sequences(
    seed: int, vocabulary: int, limit: int, alpha: float, nbest: int
) -> None:
    if vocabulary == 6 and limit == 5:
        limit = 4  # 4⁴ sequences are enough
    decoder = Random(vocabulary, seed)
    wide = (vocabulary - 1) ** limit
    expected = brute_force(decoder, 7, limit, alpha)[:nbest]
    options = BeamOptions(max(wide, nbest), nbest, alpha)
    [found] = beam(decoder, memory(7), SYMBOLS, torch.tensor([limit]), options)
    whole = [answer for answer in found if not answer.truncated]
    assert [tuple(answer.tokens) for answer in whole] == [tokens for _, tokens in expected]
    assert [answer.rank for answer in whole] == pytest.approx([rank for rank, _ in expected], abs=1e-4)
    for answer in whole:
        assert answer.score == pytest.approx(log_p(decoder, 7, answer.tokens), abs=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_stopping_early_changes_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, limits = Random(6, seed), torch.tensor([9, 9, 9])
    early = beam(decoder, memory(1, 2, 3), SYMBOLS, limits, BeamOptions(3, 2))

    def never(ledger: object, best_BG: NDArray[Any]) -> NDArray[Any]:
        del ledger
        return np.zeros(len(best_BG), dtype=bool)

    monkeypatch.setattr("regard.decoding.beam._Ledger._decided", never)
    late = beam(decoder, memory(1, 2, 3), SYMBOLS, limits, BeamOptions(3, 2))
    assert [[answer.tokens for answer in answers] for answers in early] == [
        [answer.tokens for answer in answers] for answers in late
    ]


@pytest.mark.parametrize("seed", range(5))
def test_batch_mates_and_who_leaves_first_change_nothing(seed: int) -> None:
    decoder, limits = Random(6, seed), torch.tensor([3, 8, 5, 8])
    together = beam(decoder, memory(1, 2, 3, 4), SYMBOLS, limits, BeamOptions(4, 3))
    for row in range(4):
        alone = beam(decoder, memory(row + 1), SYMBOLS, limits[row : row + 1], BeamOptions(4, 3))
        assert [answer.tokens for answer in alone[0]] == [answer.tokens for answer in together[row]]
    walked = walk(decoder, memory(1, 2, 3, 4), SYMBOLS, limits, likeliest)
    for row in range(4):
        [found] = greedy(decoder, memory(row + 1), SYMBOLS, limits[row : row + 1])
        assert found.tokens == walked[row][0].tokens


def test_sentences_that_are_over_and_wait_to_leave_change_nothing() -> None:
    """Of many sentences the first to be over stay in the batch for a while; their answers are those they have alone."""
    decoder, limits = Random(6, 2), torch.arange(25) % 9
    numbers = range(25)
    history: list[BeamStep] = []
    together = beam(decoder, memory(*numbers), SYMBOLS, limits, BeamOptions(3, 3, history=history))
    walked = walk(decoder, memory(*numbers), SYMBOLS, limits, likeliest)
    for row in numbers:
        own = limits[row : row + 1]
        [alone] = beam(decoder, memory(row), SYMBOLS, own, BeamOptions(3, 3))
        assert [(a.tokens, a.truncated) for a in together[row]] == [(a.tokens, a.truncated) for a in alone]
        assert [a.tokens for a in walked[row]] == [
            a.tokens for [a] in walk(decoder, memory(row), SYMBOLS, own, likeliest)
        ]
        steps = sum(row in step.sentences for step in history)
        assert steps <= int(limits[row])


def test_nbest_are_sorted_and_distinct() -> None:
    for answers in beam(Random(6, 3), memory(1, 2, 3), SYMBOLS, torch.tensor([6, 6, 6]), BeamOptions(6, 6)):
        ranks = [answer.rank for answer in answers if not answer.truncated]
        assert ranks == sorted(ranks, reverse=True)
        assert len({tuple(answer.tokens) for answer in answers}) == len(answers) == 6


def test_a_wider_beam_ranks_no_worse_than_greedy_search() -> None:
    for seed in range(10):
        decoder = Random(5, seed, sharpness=3.0)
        [narrow] = greedy(decoder, memory(1), SYMBOLS, torch.tensor([8]))
        [[wide]] = beam(decoder, memory(1), SYMBOLS, torch.tensor([8]), BeamOptions(8, 1, length_penalty=0.0))
        assert narrow.truncated or wide.rank >= narrow.score - 1e-5


def test_groups_say_different_things() -> None:
    decoder = Random(8, 1, sharpness=0.7)
    limits = torch.tensor([6])
    plain: list[BeamStep] = []
    diverse: list[BeamStep] = []
    alike = beam(decoder, memory(1), SYMBOLS, limits, BeamOptions(4, 4, history=plain))
    beam(decoder, memory(1), SYMBOLS, limits, BeamOptions(4, 4, groups=4, diversity=50.0, history=diverse))
    for step in diverse:
        assert len(set(step.tokens_BK[0])) == 4
    assert any(len(set(step.tokens_BK[0])) < 4 for step in plain)
    assert beam(decoder, memory(1), SYMBOLS, limits, BeamOptions(4, 4, groups=1, diversity=50.0)) == alike


def test_the_history_leads_from_the_start_to_what_went_on() -> None:
    history: list[BeamStep] = []
    beam(Random(6, 3), memory(1, 2), SYMBOLS, torch.tensor([5, 5]), BeamOptions(3, 1, history=history))
    assert history[0].sentences == [0, 1]
    for step in history:
        assert all(len(tokens) == 3 for tokens in step.tokens_BK)
        assert all(0 <= parent < 3 for parents in step.parents_BK for parent in parents)


def under(rule: Rule, decoder: Random, sentences: int, limit: int, width: int) -> list[list[Hypothesis]]:
    limits = torch.full((sentences,), limit)
    given_memory = memory(*range(sentences))
    if width == 1:
        return walk(decoder, given_memory, SYMBOLS, limits, likeliest, [rule])
    return beam(decoder, given_memory, SYMBOLS, limits, BeamOptions(width, width), [rule])


@pytest.mark.parametrize("width", [1, 4])
def test_rules_are_kept_by_every_strategy(width: int) -> None:
    decoder = Random(5, 11, sharpness=2.5)
    for answers in under(Banned(((2,), (3, 4))), decoder, 6, 8, width):
        assert all(not contains(answer.tokens, (2,)) and not contains(answer.tokens, (3, 4)) for answer in answers)
    for answers in under(NoRepeat(2), decoder, 6, 12, width):
        for answer in answers:
            pairs = list(itertools.pairwise(answer.tokens))
            assert len(set(pairs)) == len(pairs)
    for answers in under(NotBefore(END, 3), decoder, 6, 8, width):
        assert all(len(answer.tokens) >= 3 for answer in answers)
    prefixes = [[4, 4, 2], [], [3], [2, 2], [4], [3, 3]]
    for prefix, answers in zip(prefixes, under(Prefix(prefixes), decoder, 6, 8, width), strict=True):
        assert all(answer.tokens[: len(prefix)] == prefix for answer in answers)
    phrases = [[(4, 4, 2), (3, 3)], [], [(2, 2, 2, 2)], [(3,)], [(4, 2), (2, 4)], [(3, 4, 3, 4, 3)]]
    for own, answers in zip(phrases, under(RequiredPhrases(phrases, [8] * 6, END), decoder, 6, 8, width), strict=True):
        for answer in answers:
            assert all(contains(answer.tokens, phrase) for phrase in own)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.integers(3, 5),
    limit=st.integers(2, 5),
    alpha=st.sampled_from([0.0, 1.0]),
    data=st.data(),
)
def test_a_beam_wide_enough_finds_the_best_of_all_sequences_with_the_phrase(
    seed: int, vocabulary: int, limit: int, alpha: float, data: st.DataObject
) -> None:
    decoder = Random(vocabulary, seed)
    letters = st.integers(2, vocabulary - 1)
    phrase = data.draw(st.lists(letters, min_size=1, max_size=limit - 1))
    options = BeamOptions((vocabulary - 1) ** (limit - 1), 3, alpha)
    rule = RequiredPhrases([[phrase]], [limit], END)
    [found] = beam(decoder, memory(7), SYMBOLS, torch.tensor([limit]), options, [rule])
    expected = brute_force(decoder, 7, limit, alpha, [phrase])[:3]
    whole = [answer for answer in found if not answer.truncated]
    assert [tuple(answer.tokens) for answer in whole] == [tokens for _, tokens in expected]
    assert [answer.rank for answer in whole] == pytest.approx([rank for rank, _ in expected], abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), width=st.integers(1, 6), groups=st.sampled_from([1, 2]), data=st.data())
def test_every_phrase_is_said_whatever_the_beam_and_however_short_the_room(
    seed: int, width: int, groups: int, data: st.DataObject
) -> None:
    phrase = st.lists(st.integers(2, 5), min_size=1, max_size=3)
    phrases = data.draw(st.lists(st.lists(phrase, max_size=3), min_size=2, max_size=4))
    limits = [1 + sum(map(len, own)) + data.draw(st.integers(0, 3)) for own in phrases]
    given_memory, rule = memory(*range(len(phrases))), RequiredPhrases(phrases, limits, END)
    if width == 1:
        found = walk(Random(6, seed), given_memory, SYMBOLS, torch.tensor(limits), likeliest, [rule])
    else:
        options = BeamOptions(width * groups, width, groups=groups)
        found = beam(Random(6, seed), given_memory, SYMBOLS, torch.tensor(limits), options, [rule])
    for own, answers in zip(phrases, found, strict=True):
        assert answers
        assert all(contains(answer.tokens, each) for answer in answers for each in own)


def test_places_in_the_beam_go_round_the_banks() -> None:
    """Banks 0, 1 and 2 have three candidates, two and one: the best of each, then the second, then the third."""
    wanted = torch.tensor([[-1.0, -2.0, -3.0, -9.0, -8.0, -20.0, -torch.inf]])
    progress = torch.tensor([[0, 0, 0, 1, 1, 2, 2]])
    assert _by_progress(wanted, progress).tolist() == [[5, 4, 0, 3, 1, 2, 6]]


def test_places_kept_for_phrases_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow beam that keeps places for hypotheses with more of the phrases finds likelier answers than one that is
    made to say them in the end.
    """

    def mean() -> float:
        phrases = [[(2, 3), (5, 4)]] * 40
        rule = RequiredPhrases(phrases, [12] * 40, END)
        limits = torch.full((40,), 12)
        options = BeamOptions(6, 1, length_penalty=0.0)
        found = beam(Random(12, 3, sharpness=2.0), memory(*range(40)), SYMBOLS, limits, options, [rule])
        return sum(answers[0].score for answers in found) / 40

    with_places = mean()
    monkeypatch.setattr("regard.decoding.search.Batch.progress", lambda *_: None)
    assert with_places > mean() + 1.0


def test_a_penalty_on_repetition_ranks_but_does_not_score() -> None:
    decoder = Random(5, 4, sharpness=2.0)
    limits = torch.tensor([8, 8, 8])
    found = beam(decoder, memory(1, 2, 3), SYMBOLS, limits, BeamOptions(4, 4, length_penalty=0.0), [Repetition(1.7)])
    penalized = 0
    for sentence, answers in zip((1, 2, 3), found, strict=True):
        whole = [answer for answer in answers if not answer.truncated]
        assert [answer.rank for answer in whole] == sorted((answer.rank for answer in whole), reverse=True)
        for answer in whole:
            ruled, said = 0.0, [START]
            for token in (*answer.tokens, END):
                log_p_V = decoder.logits(sentence, said).log_softmax(-1)
                ruled += float(log_p_V[token]) * (1.7 if token in said[1:] else 1.0)
                said.append(token)
            assert answer.score == pytest.approx(log_p(decoder, sentence, answer.tokens), abs=1e-4)
            assert answer.rank == pytest.approx(ruled, abs=1e-4)
            penalized += answer.rank < answer.score - 1e-3
    assert penalized


@pytest.mark.parametrize("vocabulary", [7, 200, 4096, 5000])
def test_the_best_of_long_rows_are_the_best(vocabulary: int) -> None:
    rows = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(0))
    rows[1, -1], rows[2, ::3] = 9.0, -torch.inf
    count = min(6, vocabulary)
    torch.testing.assert_close(rows.gather(1, best_of(rows, 6)), rows.topk(count, dim=-1).values)


def test_repetition_makes_what_was_said_less_likely() -> None:
    log_p_NV = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    said = Said(torch.tensor([[3, 3]]), torch.tensor([0]))
    found = Repetition(2.0)(log_p_NV, said)
    torch.testing.assert_close(found.exp(), torch.tensor([[0.1, 0.2, 0.3, 0.16]]))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, 0.25, 0.15, 0.1]),
        ({"temperature": 0.5}, [0.25 / 0.345, 0.0625 / 0.345, 0.0225 / 0.345, 0.01 / 0.345]),
        ({"top_k": 2}, [0.5, 0.25, 0.0, 0.0]),
        ({"top_p": 0.7}, [0.5, 0.25, 0.0, 0.0]),
        ({"top_p": 0.4}, [0.5, 0.0, 0.0, 0.0]),
        ({"min_p": 0.25}, [0.5, 0.25, 0.15, 0.0]),
        ({"top_k": 3, "min_p": 0.4}, [0.5, 0.25, 0.0, 0.0]),
    ],
)
def test_drawing_keeps_what_it_says_it_keeps(options: dict[str, float], expected: list[float]) -> None:
    draw = Draw(torch.Generator().manual_seed(0), **options)  # type: ignore[arg-type]
    log_p_NV = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
    torch.testing.assert_close(draw.kept(log_p_NV), torch.tensor([expected]))


def test_drawn_tokens_come_as_often_as_they_are_likely() -> None:
    draw = Draw(torch.Generator().manual_seed(0))
    drawn = draw(torch.tensor([[0.6, 0.3, 0.1]]).log().expand(20000, -1))
    shares = torch.bincount(drawn, minlength=3) / 20000
    torch.testing.assert_close(shares, torch.tensor([0.6, 0.3, 0.1]), atol=0.015, rtol=0)


def test_several_answers_are_drawn_for_each_sentence_the_same_for_the_same_seed() -> None:
    def drawn(seed: int) -> list[list[Hypothesis]]:
        draw = Draw(torch.Generator().manual_seed(seed))
        return walk(Random(6, 5), memory(1, 2), SYMBOLS, torch.tensor([7, 4]), draw, answers=5)

    first = drawn(0)
    assert [len(answers) for answers in first] == [5, 5]
    assert first == drawn(0)
    assert first != drawn(1)
    assert len({tuple(answer.tokens) for answer in first[0]}) > 1
    for sentence, answers in zip((1, 2), first, strict=True):
        for answer in answers:
            if not answer.truncated:
                assert answer.score == pytest.approx(log_p(Random(6, 5), sentence, answer.tokens), abs=1e-4)


def test_an_ensemble_of_one_is_the_one_and_of_two_their_mean() -> None:
    one, other = Random(6, 1), Random(6, 2)
    limits = torch.tensor([6, 6])
    alone = beam(one, memory(1, 2), SYMBOLS, limits, BeamOptions(3, 3))
    both = (memory(1, 2),)
    assert beam(EnsembleDecoder([one]), both, SYMBOLS, limits, BeamOptions(3, 3)) == alone  # type: ignore[arg-type]
    pair = EnsembleDecoder([one, other])
    keys, state = pair.begin((memory(1), memory(1)))
    logits, _ = pair.step(torch.tensor([START]), state, keys)
    mean = (one.logits(1, [START]).softmax(-1) + other.logits(1, [START]).softmax(-1)) / 2
    torch.testing.assert_close(logits[0].exp(), mean)
    assert math.isclose(float(logits[0].exp().sum()), 1.0, rel_tol=1e-5)
