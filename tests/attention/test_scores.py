"""Scores against numbers worked by hand."""

import math

import pytest
import torch

import regard

QUERY = torch.tensor([[[1.0, 2.0]]])
KEYS = torch.tensor([[[3.0, 1.0], [0.0, -1.0]]])


def scores(attention: regard.Attention) -> list[float]:
    values: list[float] = attention.score(QUERY, attention.score.prepare(KEYS)).flatten().tolist()
    return values


def test_worked_example_of_scaled_dot_products() -> None:
    """Scores 112 and 96 with d = 64 become 14 and 12, and weights 0.88 and 0.12."""
    query = torch.ones(1, 1, 64)
    keys = torch.stack([torch.full((64,), 112 / 64), torch.full((64,), 96 / 64)]).unsqueeze(0)
    context, weights = regard.attend(query, keys, score="scaled_dot")
    expected = math.exp(14) / (math.exp(14) + math.exp(12))
    assert weights.flatten().tolist() == pytest.approx([expected, 1 - expected], abs=1e-6)
    assert [round(weight, 2) for weight in weights.flatten().tolist()] == [0.88, 0.12]
    torch.testing.assert_close(context[0, 0], expected * keys[0, 0] + (1 - expected) * keys[0, 1])


def test_dot() -> None:
    assert scores(regard.Attention(2, 2, score="dot")) == pytest.approx([5.0, -2.0])


def test_scaled_dot() -> None:
    assert scores(regard.Attention(2, 2, score="scaled_dot")) == pytest.approx([5 / math.sqrt(2), -math.sqrt(2)])


def test_general() -> None:
    attention = regard.Attention(2, 2, score="general")
    attention.load_state_dict({"score.key.weight": torch.tensor([[1.0, 0.0], [2.0, -1.0]])})
    # W k = (3, 5) and (0, 1); with q = (1, 2): 13 and 2.
    assert scores(attention) == pytest.approx([13.0, 2.0])


def test_additive() -> None:
    attention = regard.Attention(2, 2, score={"kind": "additive", "hidden": 1})
    attention.load_state_dict(
        {
            "score.query.weight": torch.tensor([[0.1, 0.2]]),
            "score.key.weight": torch.tensor([[0.5, -1.0]]),
            "score.v": torch.tensor([2.0]),
        }
    )
    # W q = 0.5; U k = 0.5 and 1; 2 tanh(1) and 2 tanh(1.5).
    assert scores(attention) == pytest.approx([2 * math.tanh(1.0), 2 * math.tanh(1.5)])


def test_dot_products_of_unequal_sizes_are_refused_with_the_remedy() -> None:
    with pytest.raises(regard.ConfigError, match=r"2 and 3.*general"):
        regard.Attention(2, 3, score="dot")


def test_a_mask_that_is_not_boolean_is_refused() -> None:
    with pytest.raises(regard.ConfigError, match="boolean"):
        regard.attend(QUERY, KEYS, allowed=torch.ones(1, 2))


def test_local_window_sees_its_neighbours_alone() -> None:
    attention = regard.Attention(2, 2, score="dot", scope={"kind": "local_m", "window": 1})
    _, weights = attention(torch.randn(1, 5, 2), torch.randn(1, 6, 2))
    rows, columns = torch.meshgrid(torch.arange(5), torch.arange(6), indexing="ij")
    assert torch.equal(weights[0] > 0, (rows - columns).abs() <= 1)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"score": "aditive"}, "score cannot be 'aditive'. Did you mean 'additive'"),
        ({"score": {"kind": "additive", "hiden": 3}}, "there is no setting 'score.hiden'. Did you mean 'hidden'"),
        ({"scope": {"kind": "local_m", "window": 0}}, "scope.window = 0"),
        ({"select": "sofmax"}, "select cannot be 'sofmax'. Did you mean 'softmax'"),
    ],
)
def test_a_wrong_part_is_named_with_its_remedy(parts: dict[str, object], message: str) -> None:
    with pytest.raises(regard.ConfigError) as caught:
        regard.Attention(2, 2, **parts)  # type: ignore[arg-type]
    assert message in str(caught.value)
