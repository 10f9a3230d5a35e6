"""Batches: a pure function of (seed, step), every pair once an epoch, like lengths together."""

import numpy as np
import torch

from regard.data.batching import EncodedCorpus, pad
from regard.data.ragged import Ids, Ragged
from regard.data.sampler import PairBatchSampler, TokenBatchSampler, batch_by_length, padding_share
from regard.data.tokens.tokenizers import END, PAD, START

LENGTHS = np.random.Generator(np.random.PCG64(0)).integers(1, 60, 1000)


def test_the_batch_at_a_step_depends_on_seed_and_step_alone() -> None:
    one, other = PairBatchSampler(LENGTHS, 32, seed=5), PairBatchSampler(LENGTHS, 32, seed=5)
    jumped = [other.at(step) for step in (70, 3, 40)]
    walked = [one.at(step) for step in range(80)]
    assert jumped == [walked[70], walked[3], walked[40]]
    assert [PairBatchSampler(LENGTHS, 32, seed=6).at(step) for step in range(80)] != walked


def test_each_epoch_holds_every_pair_once_in_an_order_of_its_own() -> None:
    order = PairBatchSampler(LENGTHS, 32, seed=0)
    assert order.steps_per_epoch == 32
    epochs = [[order.at(epoch * 32 + index) for index in range(32)] for epoch in range(2)]
    for epoch in epochs:
        assert sorted(index for batch in epoch for index in batch) == list(range(1000))
    assert epochs[0] != epochs[1]


def test_like_lengths_stand_together() -> None:
    order = PairBatchSampler(LENGTHS, 32, seed=0)
    spread = [np.ptp(LENGTHS[order.at(step)]) for step in range(32)]
    assert np.mean(spread) < np.ptp(LENGTHS) / 8


def test_padding_fills_up_and_an_empty_row_has_width() -> None:
    padded = pad([[5, 6, 7], [], [8]])
    assert padded.tokens_BT.tolist() == [[5, 6, 7], [PAD] * 3, [8, PAD, PAD]]
    assert padded.lengths_B.tolist() == [3, 0, 1]
    assert pad([[]]).tokens_BT.shape == (1, 1)


def test_the_decoder_is_given_the_target_one_step_late() -> None:
    encoded = EncodedCorpus(Ragged.of([[4], [5, 6]]), Ragged.of([[7, 8, END], [9, END]]))
    batch = encoded.batch([1, 0], torch.device("cpu"))
    assert batch.decoder_inputs.tolist() == [[START, 9, END], [START, 7, 8]]
    assert batch.target.tokens_BT.tolist() == [[9, END, PAD], [7, 8, END]]
    halves = batch.split(2)
    assert [half.ids for half in halves] == [[1], [0]]
    assert halves[1].source.tokens_BT.tolist() == [[4, PAD]]


def test_by_length_covers_everything_once() -> None:
    batches = batch_by_length([3, 9, 1, 9], 2)
    assert batches == [[1, 3], [0, 2]]


PAIRS = np.random.Generator(np.random.PCG64(1)).integers(1, 90, (5000, 1)).repeat(2, 1)
PAIRS[:, 1] = np.maximum(1, PAIRS[:, 1] - np.arange(5000) % 5)
WIDTHS = PAIRS.max(1)


def test_batches_by_tokens_hold_no_more_than_asked_for_and_every_pair_once() -> None:
    order = TokenBatchSampler(PAIRS, tokens=600, seed=3, max_length=80)
    for epoch in range(2):
        batches = [order.at(epoch * order.steps_per_epoch + index) for index in range(order.steps_per_epoch)]
        assert all(len(batch) * WIDTHS[batch].max() <= 600 for batch in batches)
        assert sorted(index for batch in batches for index in batch) == np.flatnonzero(WIDTHS <= 80).tolist()


def test_batches_by_tokens_depend_on_seed_and_step_alone() -> None:
    one, other = (TokenBatchSampler(PAIRS, tokens=600, seed=3, max_length=80) for _ in range(2))
    walked = [one.at(step) for step in range(2 * one.steps_per_epoch)]
    assert [other.at(step) for step in (500, 3, 40)] == [walked[500], walked[3], walked[40]]
    assert walked[: one.steps_per_epoch] != walked[one.steps_per_epoch :]
    assert one.epoch_at(one.steps_per_epoch) == 1


def test_batches_by_tokens_have_few_shapes_and_little_padding() -> None:
    order = TokenBatchSampler(PAIRS, tokens=600, seed=0, max_length=80)
    rows = {len(order.at(step)) for step in range(order.steps_per_epoch)}
    assert len(rows) < 30
    assert padding_share(order, PAIRS[:, 0]) < 0.03
    assert padding_share(order, PAIRS[:, 1]) < 0.08


def test_pairs_meet_others_in_each_epoch() -> None:
    order = TokenBatchSampler(PAIRS, tokens=600, seed=0, max_length=80)
    mates = []
    for epoch in range(2):
        batches = [order.at(epoch * order.steps_per_epoch + index) for index in range(order.steps_per_epoch)]
        mates.append({index: frozenset(batch) for batch in batches for index in batch})
    alike = np.mean([len(mates[0][i] & mates[1][i]) / len(mates[0][i]) for i in mates[0]])
    assert alike < 0.35


def test_pairs_stand_in_the_order_of_the_lengths_that_an_epoch_gives_them() -> None:
    def epoch_lengths(epoch: int) -> Ids:
        return PAIRS + np.random.Generator(np.random.PCG64(epoch)).integers(0, 12, PAIRS.shape)

    order = TokenBatchSampler(PAIRS, tokens=1200, seed=0, max_length=80, epoch_lengths=epoch_lengths)
    for epoch in range(3):
        batches = [order.at(epoch * order.steps_per_epoch + index) for index in range(order.steps_per_epoch)]
        assert sorted(index for batch in batches for index in batch) == np.flatnonzero(WIDTHS <= 80).tolist()
        widths = epoch_lengths(epoch).max(1)
        sizes = [len(batch) * widths[batch].max() for batch in batches]
        assert max(sizes) <= 1200 * 9 / 8  # a width is one of eight between two powers of two
        assert sum(sizes) < 1.06 * sum(widths[batch].sum() for batch in batches)


def test_batches_of_so_many_pairs_are_of_like_lengths_in_each_epoch() -> None:
    order = PairBatchSampler(LENGTHS, 50, seed=0, epoch_lengths=lambda epoch: np.roll(LENGTHS, 100 * epoch))
    for epoch in range(2):
        batches = [order.at(epoch * order.steps_per_epoch + index) for index in range(order.steps_per_epoch)]
        assert max(np.ptp(np.roll(LENGTHS, 100 * epoch)[batch]) for batch in batches) < 10


def test_padding_share_counts_the_places_that_hold_nothing() -> None:
    order = PairBatchSampler(np.array([2, 4]), 2, seed=0)
    assert padding_share(order, np.array([2, 4])) == 0.25


def test_a_corpus_smaller_than_a_batch_is_one_batch() -> None:
    order = TokenBatchSampler(np.array([[3, 1], [5, 5], [4, 2]]), tokens=4096, seed=0, max_length=4096)
    assert order.steps_per_epoch == 1
    assert sorted(order.at(0)) == [0, 1, 2]
