"""Scores equal hand-computed values; errors name the argument and the remedy."""

import math

import pytest
import torch
from torch import Tensor

import regard

QUERY = torch.tensor([[[1.0, 2.0]]])
KEYS = torch.tensor([[[3.0, 1.0], [0.0, -1.0]]])


def scores(attention: regard.Attention, past: Tensor | None = None) -> list[float]:
    values: list[float] = attention.score(QUERY, attention.score.prepare(KEYS), past).flatten().tolist()
    return values


def test_scaled_dot_products_of_a_worked_example() -> None:
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
    attention.load_state_dict({"score.key.weight": torch.tensor([[[1.0, 0.0], [2.0, -1.0]]])})
    # W k = (3, 5) and (0, 1); with q = (1, 2): 13 and 2.
    assert scores(attention) == pytest.approx([13.0, 2.0])


ADDITIVE = {
    "score.query.weight": torch.tensor([[[0.1, 0.2]]]),
    "score.key.weight": torch.tensor([[[0.5, -1.0]]]),
    "score.v": torch.tensor([[2.0]]),
}


def test_additive() -> None:
    attention = regard.Attention(2, 2, score={"kind": "additive", "hidden": 1})
    attention.load_state_dict(ADDITIVE)
    # W q = 0.5; U k = 0.5 and 1; 2 tanh(1) and 2 tanh(1.5).
    assert scores(attention) == pytest.approx([2 * math.tanh(1.0), 2 * math.tanh(1.5)])


def test_concat_is_additive_with_one_matrix_over_key_and_query() -> None:
    attention = regard.Attention(2, 2, score={"kind": "concat", "hidden": 1})
    both = torch.tensor([[[0.5, -1.0, 0.1, 0.2]]])
    attention.load_state_dict({"score.both.weight": both, "score.v": torch.tensor([[2.0]])})
    assert scores(attention) == pytest.approx([2 * math.tanh(1.0), 2 * math.tanh(1.5)])


def test_cosine() -> None:
    attention = regard.Attention(2, 2, score={"kind": "cosine", "sharpening": 4.0})
    # cos((1, 2), (3, 1)) = 5 / √50 and cos((1, 2), (0, −1)) = −2 / √5.
    assert scores(attention) == pytest.approx([4 * 5 / math.sqrt(50), -4 * 2 / math.sqrt(5)])


def test_location_depends_only_on_the_query_and_the_position() -> None:
    attention = regard.Attention(2, 2, score={"kind": "location", "slots": 3})
    attention.load_state_dict({"score.positions.weight": torch.tensor([[[1.0, 1.0], [0.0, 2.0], [5.0, 5.0]]])})
    assert scores(attention) == pytest.approx([3.0, 4.0])
    with pytest.raises(regard.DataError, match=r"supports 3 slots, but this memory has 4.*larger `slots`"):
        attention(QUERY, torch.randn(1, 4, 2))


@pytest.mark.parametrize(("scaled", "factor"), [(False, 1.0), (True, 1 / math.sqrt(2))])
def test_projected(scaled: bool, factor: float) -> None:
    attention = regard.Attention(2, 2, score={"kind": "projected", "scaled": scaled})
    attention.load_state_dict(
        {
            "score.to_query.weight": torch.tensor([[1.0, 0.0], [0.0, 2.0]]),
            "score.to_key.weight": torch.tensor([[1.0, 1.0], [0.0, 1.0]]),
            "score.to_value.weight": torch.tensor([[0.0, 1.0], [1.0, 0.0]]),
        }
    )
    # W_Q q = (1, 4); W_K k = (4, 1) and (−1, −1): 8 and −5.
    assert scores(attention) == pytest.approx([8.0 * factor, -5.0 * factor])
    context, _ = attention(QUERY, KEYS, allowed=torch.tensor([[True, False]]))
    assert context.flatten().tolist() == pytest.approx([1.0, 3.0])


@pytest.mark.parametrize("features", ["last", "sum"])
def test_location_aware_uses_the_previous_weights(features: str) -> None:
    options = {"kind": "location_aware", "hidden": 1, "filters": 1, "reach": 1, "features": features}
    attention = regard.Attention(2, 2, score=options)
    attention.load_state_dict(
        {
            **ADDITIVE,
            "score.convolution.weight": torch.tensor([[[10.0, 1.0, 0.0]]]),
            "score.place.weight": torch.tensor([[[0.5]]]),
        }
    )
    # Previous weights: 0.25 and 0.75. F ∗ a₋ = 0.25 and 10 · 0.25 + 0.75 = 3.25; half of it is added inside the tanh.
    expected = [2 * math.tanh(1.0 + 0.125), 2 * math.tanh(1.5 + 1.625)]
    assert scores(attention, torch.tensor([[[0.25, 0.75]]])) == pytest.approx(expected)
    prepared = attention.prepare(KEYS)
    first = attention.read(QUERY, prepared, attention.begin(prepared), weights=True)
    second = attention.read(QUERY, prepared, first.past, weights=True)
    assert first.past.weights_BHS is not None
    assert second.past.weights_BHS is not None
    assert first.weights is not None
    assert second.weights is not None
    torch.testing.assert_close(first.past.weights_BHS, first.weights)
    expected_past = first.weights + second.weights if features == "sum" else second.weights
    torch.testing.assert_close(second.past.weights_BHS, expected_past)


class Distance(regard.Score):
    """e = −γ ‖q − k‖²: a custom score."""

    equation = "e = −γ ‖q − k‖²"

    def __init__(self, query_size: int, key_size: int, heads: int = 1, *, gamma: float = 1.0) -> None:
        super().__init__(query_size, key_size, heads)
        self.gamma = gamma

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        return self.split(keys_BSD)

    def forward(self, query_BTD: Tensor, prepared: Tensor, past_BHS: Tensor | None) -> Tensor:
        del past_BHS
        return -self.gamma * torch.cdist(self.split(query_BTD), prepared) ** 2


def test_custom_score_is_passed_as_a_module_or_registered_by_name() -> None:
    from_module = regard.Attention(2, 2, score=Distance(2, 2, gamma=0.5))
    assert scores(from_module) == pytest.approx([-2.5, -5.0])
    regard.register_score("distance", Distance)
    by_name = regard.Attention(2, 2, score={"kind": "distance", "gamma": 0.5})
    assert scores(by_name) == pytest.approx([-2.5, -5.0])
    with pytest.raises(regard.ConfigError, match="built-in score"):
        regard.register_score("dot", Distance)
    with pytest.raises(regard.ConfigError, match=r"'distanze' is not a valid score. Did you mean 'distance'\?"):
        regard.Attention(2, 2, score="distanze")
    with pytest.raises(regard.ConfigError, match=r"unknown setting 'score.gama'. Did you mean 'gamma'\?"):
        regard.Attention(2, 2, score={"kind": "distance", "gama": 0.5})
    with pytest.raises(regard.ConfigError, match=r"score.gamma = 'high': input should be a valid number"):
        regard.Attention(2, 2, score={"kind": "distance", "gamma": "high"})


def test_custom_score_must_have_the_same_number_of_heads() -> None:
    with pytest.raises(regard.ConfigError, match="score has 2 heads, but the attention has 1"):
        regard.Attention(4, 4, score=Distance(4, 4, 2))


SHAPED_QUERY, SHAPED_KEYS = torch.randn(2, 3, 4), torch.randn(2, 5, 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((SHAPED_KEYS, SHAPED_KEYS), r"query must have the shape \(rows, steps, 4\), not \(2, 5, 6\)"),
        ((SHAPED_QUERY, SHAPED_KEYS[0]), r"keys must have the shape \(rows, steps, 6\), not \(5, 6\)"),
        ((SHAPED_QUERY, SHAPED_KEYS[:1]), "query has 2 rows, but keys has 1"),
        ((SHAPED_QUERY[:1], SHAPED_KEYS), "query has 1 row, but keys has 2"),
        ((SHAPED_QUERY, SHAPED_KEYS, SHAPED_KEYS[:, :4]), r"values has the shape \(2, 4, 6\)"),
    ],
    ids=["query size", "keys dimensions", "keys rows", "query row", "values length"],
)
def test_wrong_shapes_are_reported(arguments: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(regard.ConfigError, match=message):
        regard.Attention(4, 6)(*arguments)


def test_values_of_another_dtype_than_the_keys_are_reported() -> None:
    with pytest.raises(regard.ConfigError, match=r"values is torch\.float64, but the keys are torch\.float32"):
        regard.Attention(4, 4, score="dot").prepare(torch.randn(2, 5, 4), torch.randn(2, 5, 4).double())


@pytest.mark.parametrize("select", ["sparsemax", "entmax15"])
def test_sparse_selections_support_half_precision(select: str) -> None:
    query, keys = torch.randn(2, 3, 4).half(), torch.randn(2, 5, 4).half()
    allowed = torch.arange(5) < torch.tensor([[5], [2]])
    _, weights = regard.Attention(4, 4, score="dot", select=select).half()(query, keys, allowed=allowed)
    torch.testing.assert_close(weights.float().sum(-1), torch.ones(2, 3), atol=2e-3, rtol=0)


def test_sampled_positions_of_a_stepwise_score_are_joined() -> None:
    attention = regard.Attention(4, 4, score="location_aware", select="hard").train()
    keys = attention.prepare(torch.randn(2, 5, 4))
    read = attention.read(torch.randn(2, 3, 4), keys, attention.begin(keys))
    assert read.sample is not None
    assert read.sample.log_prob_BT.shape == (2, 3)


def test_recordings_can_be_nested() -> None:
    attention = regard.Attention(4, 4, score="dot")
    with regard.record(attention) as outer, regard.record(attention) as inner:
        attention(torch.randn(1, 2, 4), torch.randn(1, 3, 4), weights=False)
    assert torch.equal(outer.weights[""], inner.weights[""])


@pytest.mark.parametrize(
    "score", ["dot", "scaled_dot", "general", "additive", "concat", "cosine", "location", "location_aware"]
)
def test_each_head_is_an_independent_attention(score: str) -> None:
    torch.manual_seed(0)
    query, keys = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    both = regard.Attention(8, 8, score=score, heads=2)
    context, weights = both(query, keys)
    for head in range(2):
        single = regard.Attention(4, 4, score=score)
        state = {
            name: value[head : head + 1] if value.shape and value.shape[0] == 2 else value
            for name, value in both.state_dict().items()
        }
        single.load_state_dict(state)
        part = slice(4 * head, 4 * head + 4)
        head_context, head_weights = single(query[..., part], keys[..., part])
        torch.testing.assert_close(context[..., part], head_context)
        torch.testing.assert_close(weights[:, head], head_weights)


@pytest.mark.parametrize("score", ["dot", "scaled_dot", "cosine"])
def test_unequal_sizes_are_rejected_with_the_remedy(score: str) -> None:
    with pytest.raises(regard.ConfigError, match=r"2 and 3.*general"):
        regard.Attention(2, 3, score=score)


def test_size_that_heads_do_not_divide_is_rejected() -> None:
    with pytest.raises(regard.ConfigError, match="query size 8 is not divisible by 3 heads"):
        regard.Attention(8, 9, score="additive", heads=3)


def test_mask_of_wrong_type_or_shape_is_rejected() -> None:
    with pytest.raises(regard.ConfigError, match="boolean"):
        regard.attend(QUERY, KEYS, allowed=torch.ones(1, 2))
    with pytest.raises(regard.ConfigError, match=r"\(1, 2\) or \(1, 1, 2\) .* not \(2,\)"):
        regard.Attention(2, 2)(QUERY, KEYS, allowed=torch.ones(2, dtype=torch.bool))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"score": "aditive"}, "'aditive' is not a valid score. Did you mean 'additive'"),
        ({"score": {"kind": "additive", "hiden": 3}}, "unknown setting 'score.hiden'. Did you mean 'hidden'"),
        ({"scope": {"kind": "local_m", "window": 0}}, "scope.window = 0"),
        ({"select": "sofmax"}, "'sofmax' is not a valid select. Did you mean 'softmax'"),
        ({"select": "hard_monotonic", "scope": "local_p"}, "cannot be combined with another scope"),
        ({"select": "hard_monotonic", "scope": {"kind": "all_of", "scopes": ["local_m"]}}, "Use scope: global"),
        ({"select": "hard_exact", "heads": 2}, "does not support 2 heads. Use heads: 1"),
        ({"select": "hard_exact", "dropout": 0.1}, "does not support dropout. Use dropout: 0"),
        ({"score": "location", "scope": "local_p"}, "would ignore the memory. Use another score"),
    ],
)
def test_invalid_parts_are_reported_with_the_remedy(parts: dict[str, object], message: str) -> None:
    with pytest.raises(regard.ConfigError) as caught:
        regard.Attention(2, 2, **parts)  # type: ignore[arg-type]
    assert message in str(caught.value)
