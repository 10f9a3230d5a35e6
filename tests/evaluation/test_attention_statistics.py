"""The statistics of attention weights, computed by hand; entropy is 0 for one slot and 1 for uniform weights, whatever
the number of slots.
"""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

import regard
from regard.attention.attention import Role
from regard.data.batching import Batch, EncodedCorpus
from regard.data.corpora import Pairs
from regard.evaluation.attention_diagnostics import AttentionStatistics, HeadStatistics
from regard.evaluation.attention_statistics import (
    AttentionTotals,
    WeightRows,
    compute_attention_entropy,
    diagnose_attention,
)
from regard.models.contracts import Grid, Memory, Tokens
from regard.runs.folder import RunFolder

SOURCES, TARGETS = ["3 mai 2009", "x", "May 3, 2009"], ["2009-05-03", "?", "2009-05-03"]


def compute_entropies(weights: torch.Tensor, valid_BT: torch.Tensor) -> torch.Tensor:
    slots_B = torch.tensor([4, 2, 1])
    visible_BT = slots_B.unsqueeze(-1).expand_as(valid_BT)
    return WeightRows.normalize(weights, slots_B, visible_BT, valid_BT).normalized_entropies


def test_entropies_by_hand() -> None:
    weights_BTS = torch.tensor(
        [
            [[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]],
            [[0.5, 0.5, 0.0, 0.0], [0.2, 0.2, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]],  # two slots; sums 1, 0.4 and 0
            [[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]],  # one slot
        ]
    )
    valid_BT = torch.tensor([[True, True, True], [True, True, True], [True, True, True]])
    entropies = compute_entropies(weights_BTS, valid_BT)
    assert entropies.tolist() == pytest.approx([0.0, 1.0, 0.5, 1.0, 1.0])
    heads_BHTS = torch.stack([weights_BTS, weights_BTS.flip(-1)], dim=1)
    assert compute_entropies(heads_BHTS, valid_BT).numel() == 10
    valid_BT[0, 1:] = False  # padding
    assert compute_entropies(weights_BTS, valid_BT).tolist() == [0.0, 1.0, 1.0]


def test_the_average_is_that_of_the_weights_of_forced_decoding(small_run: RunFolder) -> None:
    model = regard.load(small_run.path, device="cpu")
    expected = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        with regard.record(model) as recording:
            model.score(source, target)
        (weights,) = recording.weights.values()
        rows = weights[0].double().numpy()
        slots = rows.shape[-1]
        if slots > 1:
            expected += [-(row * np.log(row)).sum() / np.log(slots) for row in rows]
    found = compute_attention_entropy(model.predictor, Pairs(SOURCES, TARGETS))
    assert found == pytest.approx(np.mean(expected), rel=1e-5)


def test_a_model_without_attention_has_no_entropy(tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests_shared import SMALL

    path = tmp_path_factory.mktemp("runs") / "fixed"
    settings = {key: value for key, value in SMALL.items() if not key.startswith("model.")}
    regard.train("dates", {**settings, "model": "fixed", "training.steps": 1}, out=path, quiet=True)
    assert compute_attention_entropy(regard.load(path).predictor, Pairs(SOURCES, TARGETS)) is None


def summarize(*matrices: Sequence[Sequence[float]], role: Role = "cross", layout: Grid | None = None) -> HeadStatistics:
    """Return the statistics of one head, from its weights for some pairs, padded to the longest."""
    return summarize_heads(*([matrix] for matrix in matrices), role=role, layout=layout).heads[0]


def summarize_heads(
    *pairs: Sequence[Sequence[Sequence[float]]], role: Role = "cross", layout: Grid | None = None
) -> AttentionStatistics:
    """Return the statistics of several heads, from their weights (H, T, S) for some pairs, padded to the longest."""
    weights = [torch.tensor(pair) for pair in pairs]
    width = max(pair.shape[-1] for pair in weights)
    padded_BHTS = torch.full((len(pairs), weights[0].shape[0], width, width), torch.nan)
    mask_BT, mask_BS = (
        torch.zeros(len(pairs), width, dtype=torch.bool),
        torch.zeros(len(pairs), width, dtype=torch.bool),
    )
    for row, pair in enumerate(weights):
        padded_BHTS[row, :, : pair.shape[1]] = 0.0  # the weights of padded keys are 0; those of padded queries anything
        padded_BHTS[row, :, : pair.shape[1], : pair.shape[2]] = pair
        mask_BT[row, : pair.shape[1]], mask_BS[row, : pair.shape[2]] = True, True
    target = Tokens(torch.zeros(len(pairs), width, dtype=torch.long), mask_BT.sum(-1))
    memory = Memory(torch.zeros(len(pairs), width, 1), mask_BS, torch.zeros(len(pairs), 1), None, layout)
    totals = AttentionTotals()
    totals.add(WeightRows.of(padded_BHTS, role, memory, Batch(target, target, [], 0)))
    return totals.average("attention", role, 1)


def one_hot(*positions: int, keys: int = 4) -> list[list[float]]:
    return [[float(key == position) for key in range(keys)] for position in positions]


def test_the_diagonal_covers_everything_in_order() -> None:
    found = summarize(one_hot(0, 1, 2, 3))
    assert (found.entropy, found.coverage, found.monotonicity, found.diagonal_distance) == (0.0, 1.0, 1.0, 0.0)
    assert (found.top_weight, found.dead) == (0.25, None)


def test_uniform_weights_are_dead_and_a_quarter_from_the_diagonal() -> None:
    found = summarize([[0.25] * 4] * 4)
    # |1/2 − (t + 1/2)/4| is 3/8, 1/8, 1/8, 3/8
    assert (found.entropy, found.coverage, found.monotonicity, found.diagonal_distance) == (1.0, 1.0, 1.0, 0.25)
    assert found.dead == "uniform"


def test_weights_shifted_by_one_leave_out_the_first_key() -> None:
    found = summarize(one_hot(1, 2, 3, 3))
    assert (found.coverage, found.monotonicity, found.diagonal_distance) == (0.75, 1.0, 3 / 16)


def test_reversed_weights_move_left_at_every_step() -> None:
    found = summarize(one_hot(3, 2, 1, 0))
    assert (found.coverage, found.monotonicity, found.diagonal_distance) == (1.0, 0.0, 0.5)
    assert summarize(one_hot(0, 2, 1, 3)).monotonicity == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("columns", "position", "name"),
    [((0, 0), 0, "first"), ((3, 1), -1, "last"), ((2, 0), -2, "2 from the end"), ((1, 1), 1, "number 2")],
)
def test_a_head_on_one_position_of_sources_of_different_lengths_is_dead(
    columns: tuple[int, int], position: int, name: str
) -> None:
    long, short = one_hot(*[columns[0]] * 4), one_hot(*[columns[1]] * 2, keys=2)
    found = summarize(long, short)
    assert (found.top_position, found.top_weight, found.dead) == (position, 1.0, "one position")
    assert found.position_name == name


def test_a_head_with_nine_tenths_of_its_weight_on_a_position_is_dead_and_one_with_less_is_not() -> None:
    assert summarize([[0.91, 0.09, 0.0, 0.0]] * 4).dead == "one position"
    assert summarize([[0.89, 0.11, 0.0, 0.0]] * 4).dead is None


def test_padding_does_not_count() -> None:
    one, two = summarize(one_hot(1, 0, keys=2)), summarize(one_hot(1, 0, keys=2), one_hot(0, 1, 2, 3))
    assert (one.coverage, one.monotonicity, one.diagonal_distance) == (1.0, 0.0, 0.5)
    assert (two.coverage, two.monotonicity) == (1.0, 3 / 4)
    assert two.diagonal_distance == pytest.approx((2 * 0.5 + 4 * 0.0) / 6)


def test_the_similarity_of_heads_is_one_minus_their_divergence_in_bits() -> None:
    diagonal, reverse = one_hot(0, 1, keys=2), one_hot(1, 0, keys=2)
    assert summarize_heads([diagonal, diagonal]).redundancy == pytest.approx(1.0)
    assert summarize_heads([diagonal, reverse]).redundancy == pytest.approx(0.0)
    # JS((1, 0), (1/2, 1/2)) = H(3/4, 1/4) − H(1/2, 1/2) / 2 = 0.8113 − 0.5
    assert summarize_heads([diagonal, [[0.5, 0.5]] * 2]).redundancy == pytest.approx(1 - 0.31128, abs=1e-5)
    assert summarize_heads([diagonal, diagonal, reverse]).redundancy == pytest.approx(1 / 3)
    assert np.isnan(summarize_heads([diagonal]).redundancy)


def test_causal_self_attention_is_compared_with_the_keys_that_each_step_sees() -> None:
    uniform = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]]
    found = summarize(uniform, role="decoder-self")
    assert found.entropy == pytest.approx(1.0)
    assert found.dead == "uniform"
    assert summarize(one_hot(0, 0, 0, keys=3), role="decoder-self").dead == "one position"
    # The current token is a different position at each step; the first step has no choice.
    current = summarize(one_hot(0, 1, 2, keys=3), role="decoder-self")
    assert (current.top_weight, current.dead) == (0.5, None)
    assert summarize(one_hot(2, 2, 2, keys=3), role="encoder-self").dead == "one position"


def test_the_cells_of_a_grid_have_no_order() -> None:
    found = summarize(one_hot(0, 1, 2, 3), layout=Grid(2, 2))
    assert np.isnan(found.monotonicity)
    assert np.isnan(found.diagonal_distance)
    assert (found.entropy, found.coverage) == (0.0, 1.0)


def test_the_statistics_of_a_model_are_those_of_its_recorded_weights(small_run: RunFolder) -> None:
    predictor = regard.load(small_run.path, device="cpu").predictor
    pairs = Pairs(SOURCES, TARGETS)
    encoded = EncodedCorpus.of(pairs, predictor.reader, predictor.tokenizer, predictor.max_length)
    found = diagnose_attention(predictor, encoded)
    assert found is not None
    (attention,) = found.attentions
    assert (attention.name, attention.role, attention.layer) == ("decoder.attention", "cross", 1)
    assert attention.heads[0].entropy == pytest.approx(compute_attention_entropy(predictor, pairs))
    matrices = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        with regard.record(predictor.model) as recording:
            predictor.score([source], [target])
        (weights,) = recording.weights.values()
        matrices.append(weights[0].double().numpy())
    coverage = [np.minimum(1, matrix.sum(0)).mean() for matrix in matrices]
    assert attention.heads[0].coverage == pytest.approx(np.mean(coverage), rel=1e-5)
