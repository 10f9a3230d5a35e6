"""Positional encodings: hand-computed values, and the properties that define them."""

import math

import pytest
import torch

import regard
from regard.attention.positions import LearnedPositions, rotate


def test_sinusoidal_positions_have_hand_computed_values() -> None:
    table = regard.sinusoidal_positions(3, 4)
    expected = [[0, 1, 0, 1]] + [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in (1, 2)]
    torch.testing.assert_close(table, torch.tensor(expected))


@pytest.mark.parametrize("shift", [1, 7])
def test_a_shift_of_sinusoidal_positions_is_a_linear_map(shift: int) -> None:
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


def test_rotary_scores_depend_only_on_the_distance() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(1, 6, dtype=torch.float64), torch.randn(1, 6, dtype=torch.float64)

    def score(p: int, r: int) -> float:
        return float((rotate(query, torch.tensor([p])) * rotate(key, torch.tensor([r]))).sum())

    assert score(3, 1) == pytest.approx(score(13, 11), abs=1e-5)
    assert score(3, 1) != pytest.approx(score(3, 2), abs=1e-3)
    assert score(5, 5) == pytest.approx(float((query * key).sum()), abs=1e-5)


def test_learned_positions_have_a_maximum_length() -> None:
    positions = LearnedPositions(4, 2)
    assert torch.equal(positions(torch.tensor([[1, 3]])), positions.table[[1, 3]].unsqueeze(0))
    with pytest.raises(regard.DataError, match="Position 4 is out of range: the model has learned 4 positions"):
        positions(torch.tensor([4]))


def test_sinusoidal_positions_need_an_even_size() -> None:
    with pytest.raises(regard.ConfigError, match="need an even size, not 5"):
        regard.sinusoidal_positions(3, 5)
