"""Beam search against brute force over all sequences, and properties of every search strategy.

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
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.decoding.beam import BeamCandidate, BeamStep, _order_by_bank, beam_search, blockwise_topk
from regard.decoding.constraints import RequiredPhrases
from regard.decoding.rules import (
    BannedPhrases,
    ForcedPrefix,
    Generated,
    MinLength,
    NoRepeatNgram,
    RepetitionPenalty,
    Rule,
)
from regard.decoding.search import (
    Hypothesis,
    Sampler,
    SpecialTokens,
    choose_most_likely,
    decode_stepwise,
)
from regard.decoding.settings import SearchSettings
from regard.models.contracts import Decoded, Decoder, Memory, repeat_for_hypotheses
from regard.models.ensemble import EnsembleDecoder, EnsembleMemory

START, END = 0, 1
SPECIAL = SpecialTokens(START, END, suppressed=(START,))


class RandomDecoder(Decoder):
    """p(next | tokens so far, sentence) with logits sampled once for each context, so that nothing is predictable."""

    def __init__(self, vocabulary: int, seed: int, sharpness: float = 1.5) -> None:
        super().__init__()
        self.vocabulary, self.seed, self.sharpness = vocabulary, seed, sharpness

    def logits(self, sentence: int, tokens: Sequence[int]) -> Tensor:
        key = hash((self.seed, sentence, *tokens)) % 2**31
        return self.sharpness * torch.randn(self.vocabulary, generator=torch.Generator().manual_seed(key))

    def begin(self, memory: Memory) -> tuple[Tensor, Tensor]:
        return memory.summary_BD, torch.zeros(len(memory.summary_BD), 0, dtype=torch.long)

    def step(self, token_B: Tensor, state: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        tokens_BT = torch.cat([state, token_B.unsqueeze(1)], dim=1)
        sentences = repeat_for_hypotheses(keys, len(token_B))[:, 0].long().tolist()
        rows = [self.logits(n, tokens) for n, tokens in zip(sentences, tokens_BT.tolist(), strict=True)]
        return torch.stack(rows), tokens_BT

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        raise NotImplementedError


def contains(tokens: Sequence[int], phrase: Sequence[int]) -> bool:
    return any(list(tokens[first : first + len(phrase)]) == list(phrase) for first in range(len(tokens)))


def memory(*sentences: int) -> Memory:
    summary = torch.tensor([[float(sentence)] for sentence in sentences])
    return Memory(summary.unsqueeze(1), torch.ones(len(sentences), 1, dtype=torch.bool), summary)


def beam_settings(width: int, nbest: int = 1, length_penalty: float = 0.6, **options: Any) -> SearchSettings:
    return SearchSettings(beam=width, nbest=nbest, length_penalty=length_penalty, **options)


def log_p(decoder: RandomDecoder, sentence: int, tokens: Sequence[int]) -> float:
    """Compute the log-probability of a sequence, END included."""
    total, context = 0.0, [START]
    for token in (*tokens, END):
        total += float(decoder.logits(sentence, context).log_softmax(-1)[token])
        context.append(token)
    return total


def brute_force(
    decoder: RandomDecoder, sentence: int, limit: int, alpha: float, phrases: Sequence[Sequence[int]] = ()
) -> list[tuple[float, tuple[int, ...]]]:
    """Rank all sequences that end within the limit and contain the phrases, best first."""
    letters = range(2, decoder.vocabulary)
    sequences = [tokens for size in range(limit) for tokens in itertools.product(letters, repeat=size)]
    sequences = [tokens for tokens in sequences if all(contains(tokens, phrase) for phrase in phrases)]
    penalty = {size: ((5 + size) / 6) ** alpha for size in range(1, limit + 1)}
    return sorted(((log_p(decoder, sentence, t) / penalty[len(t) + 1], t) for t in sequences), reverse=True)


def ended(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    return [hypothesis for hypothesis in hypotheses if not hypothesis.truncated]


def all_tokens(nbest: Sequence[Sequence[Hypothesis]]) -> list[list[list[int]]]:
    return [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in nbest]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.integers(3, 6),
    limit=st.integers(1, 5),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
    nbest=st.integers(1, 3),
)
def test_a_wide_beam_finds_the_best_of_all_sequences(
    seed: int, vocabulary: int, limit: int, alpha: float, nbest: int
) -> None:
    if vocabulary == 6 and limit == 5:
        limit = 4  # 4⁴ sequences are enough
    decoder = RandomDecoder(vocabulary, seed)
    width = (vocabulary - 1) ** limit
    expected = brute_force(decoder, 7, limit, alpha)[:nbest]
    options = beam_settings(max(width, nbest), nbest, alpha)
    [hypotheses] = beam_search(decoder, memory(7), SPECIAL, torch.tensor([limit]), options)
    hypotheses = ended(hypotheses)
    assert [tuple(hypothesis.tokens) for hypothesis in hypotheses] == [tokens for _, tokens in expected]
    assert [hypothesis.rank for hypothesis in hypotheses] == pytest.approx([rank for rank, _ in expected], abs=1e-4)
    for hypothesis in hypotheses:
        assert hypothesis.score == pytest.approx(log_p(decoder, 7, hypothesis.tokens), abs=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_early_stopping_does_not_change_the_result(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, limits = RandomDecoder(6, seed), torch.tensor([9, 9, 9])
    early = beam_search(decoder, memory(1, 2, 3), SPECIAL, limits, beam_settings(3, 2))

    def never(tracker: object, best_BG: NDArray[Any]) -> NDArray[Any]:
        del tracker
        return np.zeros(len(best_BG), dtype=bool)

    monkeypatch.setattr("regard.decoding.beam._BeamTracker._decided", never)
    late = beam_search(decoder, memory(1, 2, 3), SPECIAL, limits, beam_settings(3, 2))
    assert all_tokens(early) == all_tokens(late)


@pytest.mark.parametrize("seed", range(5))
def test_results_do_not_depend_on_the_batch(seed: int) -> None:
    decoder, limits = RandomDecoder(6, seed), torch.tensor([3, 8, 5, 8])
    batched = beam_search(decoder, memory(1, 2, 3, 4), SPECIAL, limits, beam_settings(4, 3))
    greedy = decode_stepwise(decoder, memory(1, 2, 3, 4), SPECIAL, limits, choose_most_likely)
    for row in range(4):
        single = beam_search(decoder, memory(row + 1), SPECIAL, limits[row : row + 1], beam_settings(4, 3))
        assert all_tokens(single) == all_tokens([batched[row]])
        [[hypothesis]] = decode_stepwise(decoder, memory(row + 1), SPECIAL, limits[row : row + 1], choose_most_likely)
        assert hypothesis.tokens == greedy[row][0].tokens


def test_finished_sentences_that_are_still_in_the_batch_do_not_change_results() -> None:
    """In a large batch, the first finished sentences stay for some steps. Results equal those without a batch."""
    decoder, limits = RandomDecoder(6, 2), torch.arange(25) % 9
    sentences = range(25)
    history: list[BeamStep] = []
    batched = beam_search(decoder, memory(*sentences), SPECIAL, limits, beam_settings(3, 3), history=history)
    greedy = decode_stepwise(decoder, memory(*sentences), SPECIAL, limits, choose_most_likely)
    for row in sentences:
        limit = limits[row : row + 1]
        [single] = beam_search(decoder, memory(row), SPECIAL, limit, beam_settings(3, 3))
        assert [(h.tokens, h.truncated) for h in batched[row]] == [(h.tokens, h.truncated) for h in single]
        [single] = decode_stepwise(decoder, memory(row), SPECIAL, limit, choose_most_likely)
        assert [h.tokens for h in greedy[row]] == [h.tokens for h in single]
        steps = sum(row in step for step in history)
        assert steps <= int(limits[row])


def test_nbest_are_sorted_and_distinct() -> None:
    limits = torch.tensor([6, 6, 6])
    for hypotheses in beam_search(RandomDecoder(6, 3), memory(1, 2, 3), SPECIAL, limits, beam_settings(6, 6)):
        ranks = [hypothesis.rank for hypothesis in ended(hypotheses)]
        assert ranks == sorted(ranks, reverse=True)
        assert len({tuple(hypothesis.tokens) for hypothesis in hypotheses}) == len(hypotheses) == 6


@pytest.mark.parametrize("seed", range(10))
def test_beam_search_ranks_at_least_as_high_as_greedy_search(seed: int) -> None:
    decoder = RandomDecoder(5, seed, sharpness=3.0)
    limits = torch.tensor([8])
    [[narrow]] = decode_stepwise(decoder, memory(1), SPECIAL, limits, choose_most_likely)
    [[wide]] = beam_search(decoder, memory(1), SPECIAL, limits, beam_settings(8, 1, length_penalty=0.0))
    assert narrow.truncated or wide.rank >= narrow.score - 1e-5


def kept_tokens(candidates: Sequence[BeamCandidate]) -> list[int]:
    return [candidate.token for candidate in candidates if candidate.outcome == "kept"]


def test_groups_choose_different_tokens() -> None:
    decoder = RandomDecoder(8, 1, sharpness=0.7)
    limits = torch.tensor([6])
    single: list[BeamStep] = []
    diverse: list[BeamStep] = []
    expected = beam_search(decoder, memory(1), SPECIAL, limits, beam_settings(4, 4), history=single)
    beam_search(
        decoder, memory(1), SPECIAL, limits, beam_settings(4, 4, groups=4, diversity_penalty=50.0), history=diverse
    )
    for step in diverse:
        assert len(set(kept_tokens(step[0]))) == 4
    assert any(len(set(kept_tokens(step[0]))) < 4 for step in single)
    one_group = beam_settings(4, 4, groups=1, diversity_penalty=50.0)
    assert beam_search(decoder, memory(1), SPECIAL, limits, one_group) == expected


def test_the_history_holds_tokens_and_parents_of_each_step() -> None:
    history: list[BeamStep] = []
    limits = torch.tensor([5, 5])
    beam_search(RandomDecoder(6, 3), memory(1, 2), SPECIAL, limits, beam_settings(3, 1), history=history)
    assert list(history[0]) == [0, 1]
    for candidates in (candidates for step in history for candidates in step.values()):
        assert len(kept_tokens(candidates)) == 3
        assert all(0 <= candidate.parent < 3 for candidate in candidates)


@pytest.mark.parametrize(("width", "groups"), [(3, 1), (4, 2)])
def test_the_history_holds_every_candidate_with_its_outcome(width: int, groups: int) -> None:
    history: list[BeamStep] = []
    sentences = range(4)
    limits = torch.full((4,), 6)
    options = beam_settings(width, width, groups=groups)
    nbest = beam_search(RandomDecoder(6, 3), memory(*sentences), SPECIAL, limits, options, history=history)
    for sentence in sentences:
        beam: dict[int, tuple[list[int], float]] = {slot: ([], 0.0) for slot in range(width)}
        finished = {}
        for step in history:
            if sentence not in step:
                continue
            extended = {}
            for candidate in step[sentence]:
                tokens, score = beam[candidate.parent]
                assert candidate.score <= score + 1e-6  # log-probabilities only decrease
                if candidate.outcome == "finished":
                    assert candidate.token == SPECIAL.end
                    finished[tuple(tokens)] = candidate.log_prob
                elif candidate.outcome == "kept":
                    assert candidate.slot is not None
                    extended[candidate.slot] = ([*tokens, candidate.token], candidate.score)
            beam = extended
        ended = [hypothesis for hypothesis in nbest[sentence] if not hypothesis.truncated]
        assert ended
        for hypothesis in ended:
            assert finished[tuple(hypothesis.tokens)] == pytest.approx(hypothesis.score)


def search_with(rule: Rule, width: int, limit: int = 8) -> list[list[Hypothesis]]:
    """Search six sentences under a rule, greedily or with a beam."""
    decoder, limits = RandomDecoder(5, 11, sharpness=2.5), torch.full((6,), limit)
    if width == 1:
        return decode_stepwise(decoder, memory(*range(6)), SPECIAL, limits, choose_most_likely, [rule])
    return beam_search(decoder, memory(*range(6)), SPECIAL, limits, beam_settings(width, width), [rule])


@pytest.mark.parametrize("width", [1, 4])
def test_banned_phrases_are_not_generated(width: int) -> None:
    for hypotheses in search_with(BannedPhrases(((2,), (3, 4))), width):
        assert all(not contains(h.tokens, (2,)) and not contains(h.tokens, (3, 4)) for h in hypotheses)


@pytest.mark.parametrize("width", [1, 4])
def test_no_ngram_is_repeated(width: int) -> None:
    for hypothesis in itertools.chain.from_iterable(search_with(NoRepeatNgram(2), width, limit=12)):
        bigrams = list(itertools.pairwise(hypothesis.tokens))
        assert len(set(bigrams)) == len(bigrams)


@pytest.mark.parametrize("width", [1, 4])
def test_hypotheses_have_the_minimum_length(width: int) -> None:
    for hypotheses in search_with(MinLength(END, 3), width):
        assert all(len(hypothesis.tokens) >= 3 for hypothesis in hypotheses)


@pytest.mark.parametrize("width", [1, 4])
def test_hypotheses_start_with_the_forced_prefix(width: int) -> None:
    prefixes = [[4, 4, 2], [], [3], [2, 2], [4], [3, 3]]
    for prefix, hypotheses in zip(prefixes, search_with(ForcedPrefix(prefixes), width), strict=True):
        assert all(hypothesis.tokens[: len(prefix)] == prefix for hypothesis in hypotheses)


@pytest.mark.parametrize("width", [1, 4])
def test_hypotheses_contain_the_required_phrases(width: int) -> None:
    required: list[list[tuple[int, ...]]] = [
        [(4, 4, 2), (3, 3)],
        [],
        [(2, 2, 2, 2)],
        [(3,)],
        [(4, 2), (2, 4)],
        [(3, 4, 3, 4, 3)],
    ]
    for phrases, hypotheses in zip(required, search_with(RequiredPhrases(required, [8] * 6, END), width), strict=True):
        assert all(contains(hypothesis.tokens, phrase) for hypothesis in hypotheses for phrase in phrases)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.integers(3, 5),
    limit=st.integers(2, 5),
    alpha=st.sampled_from([0.0, 1.0]),
    data=st.data(),
)
def test_a_wide_beam_finds_the_best_of_all_sequences_that_contain_a_phrase(
    seed: int, vocabulary: int, limit: int, alpha: float, data: st.DataObject
) -> None:
    decoder = RandomDecoder(vocabulary, seed)
    letters = st.integers(2, vocabulary - 1)
    phrase = data.draw(st.lists(letters, min_size=1, max_size=limit - 1))
    options = beam_settings(max((vocabulary - 1) ** (limit - 1), 3), 3, alpha)
    rule = RequiredPhrases([[phrase]], [limit], END)
    [hypotheses] = beam_search(decoder, memory(7), SPECIAL, torch.tensor([limit]), options, [rule])
    expected = brute_force(decoder, 7, limit, alpha, [phrase])[:3]
    hypotheses = ended(hypotheses)
    assert [tuple(hypothesis.tokens) for hypothesis in hypotheses] == [tokens for _, tokens in expected]
    assert [hypothesis.rank for hypothesis in hypotheses] == pytest.approx([rank for rank, _ in expected], abs=1e-4)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), width=st.integers(1, 6), groups=st.sampled_from([1, 2]), data=st.data())
def test_required_phrases_are_generated_with_any_beam_and_any_limit_that_fits_them(
    seed: int, width: int, groups: int, data: st.DataObject
) -> None:
    phrase = st.lists(st.integers(2, 5), min_size=1, max_size=3)
    required = data.draw(st.lists(st.lists(phrase, max_size=3), min_size=2, max_size=4))
    limits = [1 + sum(map(len, phrases)) + data.draw(st.integers(0, 3)) for phrases in required]
    rule = RequiredPhrases(required, limits, END)
    inputs = (RandomDecoder(6, seed), memory(*range(len(required))), SPECIAL, torch.tensor(limits))
    if width == 1:
        nbest = decode_stepwise(*inputs, choose_most_likely, [rule])
    else:
        nbest = beam_search(*inputs, beam_settings(width * groups, width, groups=groups), [rule])
    for phrases, hypotheses in zip(required, nbest, strict=True):
        assert hypotheses
        assert all(contains(hypothesis.tokens, phrase) for hypothesis in hypotheses for phrase in phrases)


class CountElements(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations, and the elements of their results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        self.elements += sum(part.numel() for part in tree_leaves(result) if isinstance(part, Tensor))
        return result


def test_the_work_for_required_phrases_grows_linearly_with_their_length() -> None:
    def count(length: int) -> CountElements:
        required = [[[2 + index % 7 for index in range(length)]]]
        generated = Generated(torch.full((1, 50), 3), torch.tensor([0]), torch.tensor([50]))
        counted = CountElements()
        with counted:
            RequiredPhrases(required, [2_000], END)(torch.zeros(1, 10), generated)
        return counted

    short, long = count(100), count(400)
    assert long.operations == short.operations
    assert long.elements < 5 * short.elements


def test_candidates_are_ordered_round_robin_over_banks() -> None:
    """Banks 0, 1 and 2 have three, two and one candidates: the best of each bank, then the second, then the third."""
    value = torch.tensor([[-1.0, -2.0, -3.0, -9.0, -8.0, -20.0, -torch.inf]])
    progress = torch.tensor([[0, 0, 0, 1, 1, 2, 2]])
    assert _order_by_bank(value, progress).tolist() == [[5, 4, 0, 3, 1, 2, 6]]


def test_banks_find_more_likely_hypotheses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow beam with banks finds more likely hypotheses than one that is forced to add the phrases at the end."""

    def average_score() -> float:
        phrases = [[(2, 3), (5, 4)]] * 40
        rule = RequiredPhrases(phrases, [12] * 40, END)
        limits = torch.full((40,), 12)
        options = beam_settings(6, 1, length_penalty=0.0)
        decoder = RandomDecoder(12, 3, sharpness=2.0)
        nbest = beam_search(decoder, memory(*range(40)), SPECIAL, limits, options, [rule])
        return sum(hypotheses[0].score for hypotheses in nbest) / 40

    with_banks = average_score()
    monkeypatch.setattr("regard.decoding.beam._find_progress", lambda *_: None)
    assert with_banks > average_score() + 1.0


def test_a_repetition_penalty_changes_the_rank_and_not_the_score() -> None:
    decoder = RandomDecoder(5, 4, sharpness=2.0)
    limits = torch.tensor([8, 8, 8])
    options = beam_settings(4, 4, length_penalty=0.0)
    nbest = beam_search(decoder, memory(1, 2, 3), SPECIAL, limits, options, [RepetitionPenalty(1.7)])
    penalized = 0
    for sentence, hypotheses in zip((1, 2, 3), nbest, strict=True):
        hypotheses = ended(hypotheses)
        ranks = [hypothesis.rank for hypothesis in hypotheses]
        assert ranks == sorted(ranks, reverse=True)
        for hypothesis in hypotheses:
            expected, context = 0.0, [START]
            for token in (*hypothesis.tokens, END):
                log_p_V = decoder.logits(sentence, context).log_softmax(-1)
                expected += float(log_p_V[token]) * (1.7 if token in context[1:] else 1.0)
                context.append(token)
            assert hypothesis.score == pytest.approx(log_p(decoder, sentence, hypothesis.tokens), abs=1e-4)
            assert hypothesis.rank == pytest.approx(expected, abs=1e-4)
            penalized += hypothesis.rank < hypothesis.score - 1e-3
    assert penalized


@pytest.mark.parametrize("vocabulary", [7, 200, 4096, 5000])
def test_blockwise_topk_equals_topk(vocabulary: int) -> None:
    rows = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(0))
    rows[1, -1], rows[2, ::3] = 9.0, -torch.inf
    count = min(6, vocabulary)
    torch.testing.assert_close(rows.gather(1, blockwise_topk(rows, 6)), rows.topk(count, dim=-1).values)


def test_a_repetition_penalty_lowers_the_probability_of_generated_tokens() -> None:
    log_p_NV = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    generated = Generated(torch.tensor([[3, 3]]), torch.tensor([0]), torch.tensor([2]))
    adjusted_NV = RepetitionPenalty(2.0)(log_p_NV, generated)
    torch.testing.assert_close(adjusted_NV.exp(), torch.tensor([[0.1, 0.2, 0.3, 0.16]]))


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
def test_sampling_is_restricted_to_the_most_likely_tokens(options: dict[str, float], expected: list[float]) -> None:
    sampler = Sampler([], SearchSettings(**options))
    log_p_NV = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
    torch.testing.assert_close(sampler.probabilities(log_p_NV), torch.tensor([expected]))


def test_tokens_are_sampled_with_their_probability() -> None:
    uniform_N = torch.from_numpy(np.random.default_rng(0).random(20000))
    samples = Sampler([], SearchSettings())(torch.tensor([[0.6, 0.3, 0.1]]).log().expand(20000, -1), uniform_N)
    shares = torch.bincount(samples, minlength=3) / 20000
    torch.testing.assert_close(shares, torch.tensor([0.6, 0.3, 0.1]), atol=0.015, rtol=0)


@pytest.mark.parametrize(("value", "token"), [(0.0, 1), (0.59, 1), (0.61, 3), (1 - 2**-53, 3)])
def test_tokens_with_probability_zero_are_never_sampled(value: float, token: int) -> None:
    log_p_NV = torch.tensor([[0.0, 0.6, 0.0, 0.4, 0.0]]).log()
    uniform_N = torch.tensor([value], dtype=torch.float64)
    assert Sampler([], SearchSettings())(log_p_NV, uniform_N).tolist() == [token]


def test_samples_of_each_sentence_are_determined_by_the_seed() -> None:
    decoder = RandomDecoder(6, 5)

    def sample(seed: int) -> list[list[Hypothesis]]:
        sampler = Sampler([np.random.default_rng([seed, index]) for index in range(2)], SearchSettings())
        return decode_stepwise(decoder, memory(1, 2), SPECIAL, torch.tensor([7, 4]), sampler, hypotheses=5)

    first = sample(0)
    assert [len(samples) for samples in first] == [5, 5]
    assert first == sample(0)
    assert first != sample(1)
    assert len({tuple(hypothesis.tokens) for hypothesis in first[0]}) > 1
    for sentence, samples in zip((1, 2), first, strict=True):
        for hypothesis in ended(samples):
            assert hypothesis.score == pytest.approx(log_p(decoder, sentence, hypothesis.tokens), abs=1e-4)


def test_an_ensemble_averages_probabilities() -> None:
    one, other = RandomDecoder(6, 1), RandomDecoder(6, 2)
    limits = torch.tensor([6, 6])
    single = beam_search(one, memory(1, 2), SPECIAL, limits, beam_settings(3, 3))
    memories = EnsembleMemory((memory(1, 2),))
    of_one = beam_search(EnsembleDecoder([one]), memories, SPECIAL, limits, beam_settings(3, 3))  # type: ignore[arg-type]
    assert of_one == single
    pair = EnsembleDecoder([one, other])
    keys, state = pair.begin(EnsembleMemory((memory(1), memory(1))))
    logits, _ = pair.step(torch.tensor([START]), state, keys)
    average = (one.logits(1, [START]).softmax(-1) + other.logits(1, [START]).softmax(-1)) / 2
    torch.testing.assert_close(logits[0].exp(), average)
    assert math.isclose(float(logits[0].exp().sum()), 1.0, rel_tol=1e-5)
