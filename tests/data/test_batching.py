"""Batches: a pure function of (seed, step), each pair once per epoch, similar lengths together."""

import numpy as np
import pytest
import torch

from regard.data.batching import EncodedCorpus, EncodedTexts, pad
from regard.data.ragged import Ids, Ragged
from regard.data.sampler import PairBatchSampler, TokenBatchSampler, batch_by_length, padding_share, round_up_lengths
from regard.data.tokens.tokenizers import END, PAD, START
from tests_shared import make_corpus

LENGTHS = np.random.Generator(np.random.PCG64(0)).integers(1, 60, 1000)


def test_a_batch_depends_only_on_seed_and_step() -> None:
    first, second = PairBatchSampler(LENGTHS, 32, seed=5), PairBatchSampler(LENGTHS, 32, seed=5)
    selected = [second.at(step) for step in (70, 3, 40)]
    batches = [first.at(step) for step in range(80)]
    assert selected == [batches[70], batches[3], batches[40]]
    assert [PairBatchSampler(LENGTHS, 32, seed=6).at(step) for step in range(80)] != batches


def test_each_epoch_contains_every_pair_once_in_a_different_order() -> None:
    sampler = PairBatchSampler(LENGTHS, 32, seed=0)
    assert sampler.steps_per_epoch == 32
    epochs = [[sampler.at(epoch * 32 + index) for index in range(32)] for epoch in range(2)]
    for epoch in epochs:
        assert sorted(index for batch in epoch for index in batch) == list(range(1000))
    assert epochs[0] != epochs[1]


def test_batches_contain_similar_lengths() -> None:
    sampler = PairBatchSampler(LENGTHS, 32, seed=0)
    spread = [np.ptp(LENGTHS[sampler.at(step)]) for step in range(32)]
    assert np.mean(spread) < np.ptp(LENGTHS) / 8


def test_padding_and_the_minimum_width() -> None:
    padded = pad([[5, 6, 7], [], [8]])
    assert padded.tokens_BT.tolist() == [[5, 6, 7], [PAD] * 3, [8, PAD, PAD]]
    assert padded.lengths_B.tolist() == [3, 0, 1]
    assert pad([[]]).tokens_BT.shape == (1, 1)


def test_decoder_inputs_are_shifted_targets() -> None:
    encoded = make_corpus([[4], [5, 6]], [[7, 8, END], [9, END]])
    batch = encoded.batch([1, 0], torch.device("cpu"))
    assert batch.decoder_inputs.tolist() == [[START, 9, END], [START, 7, 8]]
    assert batch.target.tokens_BT.tolist() == [[9, END, PAD], [7, 8, END]]


def test_batches_by_length_contain_each_index_once() -> None:
    batches = batch_by_length([3, 9, 1, 9], 2)
    assert batches == [[1, 3], [0, 2]]


PAIRS = np.random.Generator(np.random.PCG64(1)).integers(1, 90, (5000, 1)).repeat(2, 1)
PAIRS[:, 1] = np.maximum(1, PAIRS[:, 1] - np.arange(5000) % 5)
WIDTHS = PAIRS.max(1)


def test_token_batches_respect_the_limit_and_contain_every_pair_once() -> None:
    sampler = TokenBatchSampler(PAIRS, tokens=600, seed=3, max_length=80)
    for epoch in range(2):
        batches = [sampler.at(epoch * sampler.steps_per_epoch + index) for index in range(sampler.steps_per_epoch)]
        assert all(len(batch) * WIDTHS[batch].max() <= 600 for batch in batches)
        assert sorted(index for batch in batches for index in batch) == np.flatnonzero(WIDTHS <= 80).tolist()


def test_token_batches_depend_only_on_seed_and_step() -> None:
    first, second = (TokenBatchSampler(PAIRS, tokens=600, seed=3, max_length=80) for _ in range(2))
    batches = [first.at(step) for step in range(2 * first.steps_per_epoch)]
    assert [second.at(step) for step in (500, 3, 40)] == [batches[500], batches[3], batches[40]]
    assert batches[: first.steps_per_epoch] != batches[first.steps_per_epoch :]
    assert first.epoch_at(first.steps_per_epoch) == 1


@pytest.mark.parametrize("tokens", [60, 90, 600, 10**6])
@pytest.mark.parametrize("longest", [1, 3, 90])
def test_token_batches_are_those_of_one_sort_of_all_pairs(tokens: int, longest: int) -> None:
    """The reference sorts all pairs by width, and then by the noisy length of their sources."""
    lengths_N2 = np.minimum(PAIRS[:3000], longest)
    sampler = TokenBatchSampler(lengths_N2, tokens, seed=5, max_length=60)
    for epoch in range(2):
        members = np.flatnonzero(lengths_N2.max(1) <= 60)
        widths = round_up_lengths(lengths_N2[members].max(1))
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((5, epoch))))
        noisy = lengths_N2[members, 0] + generator.random(len(members)) * 4.0
        order = np.lexsort((noisy, widths))
        ordered, widths = members[order], widths[order]
        batches = []
        while len(ordered):
            rows = 1
            while rows < len(ordered) and (rows + 1) * widths[rows] <= tokens:
                rows += 1
            rows -= rows % 8 if len(ordered) > rows >= 16 else 0
            batches.append(ordered[:rows].tolist())
            ordered, widths = ordered[rows:], widths[rows:]
        expected = [batches[index] for index in generator.permutation(len(batches))]
        assert [batch.tolist() for batch in sampler.epoch(epoch)] == expected


def test_lengths_that_are_the_same_in_every_epoch_are_kept_once() -> None:
    texts = EncodedTexts(Ragged.of([[4] * length for length in range(1, 9)]))
    corpus = EncodedCorpus(texts, texts)
    assert corpus.lengths_N2.tolist() == [[length, length] for length in range(1, 9)]
    assert corpus.epoch_lengths(0) is corpus.epoch_lengths(7) is corpus.lengths_N2


def test_token_batches_have_few_shapes_and_little_padding() -> None:
    sampler = TokenBatchSampler(PAIRS, tokens=600, seed=0, max_length=80)
    rows = {len(sampler.at(step)) for step in range(sampler.steps_per_epoch)}
    assert len(rows) < 30
    assert padding_share(sampler, PAIRS[:, 0]) < 0.03
    assert padding_share(sampler, PAIRS[:, 1]) < 0.08


def test_token_batches_differ_between_epochs() -> None:
    sampler = TokenBatchSampler(PAIRS, tokens=600, seed=0, max_length=80)
    neighbors = []
    for epoch in range(2):
        batches = [sampler.at(epoch * sampler.steps_per_epoch + index) for index in range(sampler.steps_per_epoch)]
        neighbors.append({index: frozenset(batch) for batch in batches for index in batch})
    shared = np.mean([len(neighbors[0][i] & neighbors[1][i]) / len(neighbors[0][i]) for i in neighbors[0]])
    assert shared < 0.35


def test_token_batches_are_sorted_by_the_lengths_of_the_epoch() -> None:
    def epoch_lengths(epoch: int) -> Ids:
        return PAIRS + np.random.Generator(np.random.PCG64(epoch)).integers(0, 12, PAIRS.shape)

    sampler = TokenBatchSampler(PAIRS, tokens=1200, seed=0, max_length=80, epoch_lengths=epoch_lengths)
    for epoch in range(3):
        batches = [sampler.at(epoch * sampler.steps_per_epoch + index) for index in range(sampler.steps_per_epoch)]
        assert sorted(index for batch in batches for index in batch) == np.flatnonzero(WIDTHS <= 80).tolist()
        widths = epoch_lengths(epoch).max(1)
        sizes = [len(batch) * widths[batch].max() for batch in batches]
        assert max(sizes) <= 1200 * 9 / 8  # widths are rounded up to one of eight values per octave
        assert sum(sizes) < 1.06 * sum(widths[batch].sum() for batch in batches)


def test_pair_batches_are_sorted_by_the_lengths_of_the_epoch() -> None:
    sampler = PairBatchSampler(LENGTHS, 50, seed=0, epoch_lengths=lambda epoch: np.roll(LENGTHS, 100 * epoch))
    for epoch in range(2):
        batches = [sampler.at(epoch * sampler.steps_per_epoch + index) for index in range(sampler.steps_per_epoch)]
        assert max(np.ptp(np.roll(LENGTHS, 100 * epoch)[batch]) for batch in batches) < 10


def test_padding_share() -> None:
    sampler = PairBatchSampler(np.array([2, 4]), 2, seed=0)
    assert padding_share(sampler, np.array([2, 4])) == 0.25


def test_a_corpus_smaller_than_a_batch_is_one_batch() -> None:
    sampler = TokenBatchSampler(np.array([[3, 1], [5, 5], [4, 2]]), tokens=4096, seed=0, max_length=4096)
    assert sampler.steps_per_epoch == 1
    assert sorted(sampler.at(0)) == [0, 1, 2]
