"""Positions: by hand, and what makes them what they are."""

import math

import pytest
import torch

import regard
from regard.attention.positions import LearnedPositions, rotate


def test_sinusoids_by_hand() -> None:
    table = regard.sinusoidal_positions(3, 4)
    expected = [[0, 1, 0, 1]] + [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in (1, 2)]
    torch.testing.assert_close(table, torch.tensor(expected))


@pytest.mark.parametrize("shift", [1, 7])
def test_a_shift_is_one_linear_map_wherever_it_starts(shift: int) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        table = regard.sinusoidal_positions(40 + shift, 8)
    finally:
        torch.set_default_dtype(torch.float32)
    rotation = torch.zeros(8, 8, dtype=torch.float64)
    for pair in range(4):
        angle = shift / 10000 ** (2 * pair / 8)
        block = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        rotation[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = block
    torch.testing.assert_close(table[shift:], table[:40] @ rotation.T)


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(1, 6, dtype=torch.float64), torch.randn(1, 6, dtype=torch.float64)

    def score(p: int, r: int) -> float:
        return float((rotate(query, torch.tensor([p])) * rotate(key, torch.tensor([r]))).sum())

    assert score(3, 1) == pytest.approx(score(13, 11), abs=1e-5)
    assert score(3, 1) != pytest.approx(score(3, 2), abs=1e-3)
    assert score(5, 5) == pytest.approx(float((query * key).sum()), abs=1e-5)


def test_learned_positions_end_where_they_end() -> None:
    positions = LearnedPositions(4, 2)
    assert torch.equal(positions(torch.tensor([[1, 3]])), positions.table[[1, 3]].unsqueeze(0))
    with pytest.raises(regard.DataError, match="beyond the 4 that were learned"):
        positions(torch.tensor([4]))
    with pytest.raises(regard.ConfigError, match="must be even"):
        regard.sinusoidal_positions(3, 5)
