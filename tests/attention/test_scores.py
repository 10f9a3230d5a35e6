"""Scores against numbers worked by hand."""

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


def test_location_depends_on_the_query_and_the_position_alone() -> None:
    attention = regard.Attention(2, 2, score={"kind": "location", "slots": 3})
    attention.load_state_dict({"score.positions.weight": torch.tensor([[[1.0, 1.0], [0.0, 2.0], [5.0, 5.0]]])})
    assert scores(attention) == pytest.approx([3.0, 4.0])
    with pytest.raises(regard.DataError, match=r"addresses 3 slots, and this memory has 4.*larger `slots`"):
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
def test_location_aware_sees_the_weights_before(features: str) -> None:
    options = {"kind": "location_aware", "hidden": 1, "filters": 1, "reach": 1, "features": features}
    attention = regard.Attention(2, 2, score=options)
    attention.load_state_dict(
        {
            **ADDITIVE,
            "score.convolution.weight": torch.tensor([[[10.0, 1.0, 0.0]]]),
            "score.place.weight": torch.tensor([[[0.5]]]),
        }
    )
    # Before: 0.25 and 0.75. F ∗ a₋ = 0.25 and 10 · 0.25 + 0.75 = 3.25; half of it is added inside the tanh.
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
    remembered = first.weights + second.weights if features == "sum" else second.weights
    torch.testing.assert_close(second.past.weights_BHS, remembered)


class Distance(regard.Score):
    """e = −γ ‖q − k‖²: a score of a user's own."""

    def __init__(self, query_size: int, key_size: int, heads: int = 1, *, gamma: float = 1.0) -> None:
        super().__init__(query_size, key_size, heads)
        self.gamma = gamma

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        return self.split(keys_BSD)

    def forward(self, query_BTD: Tensor, prepared: Tensor, past_BHS: Tensor | None) -> Tensor:
        del past_BHS
        return -self.gamma * torch.cdist(self.split(query_BTD), prepared) ** 2


def test_a_score_of_ones_own_is_one_small_class() -> None:
    given = regard.Attention(2, 2, score=Distance(2, 2, gamma=0.5))
    assert scores(given) == pytest.approx([-2.5, -5.0])
    regard.register_score("distance", Distance)
    by_name = regard.Attention(2, 2, score={"kind": "distance", "gamma": 0.5})
    assert scores(by_name) == pytest.approx([-2.5, -5.0])
    with pytest.raises(regard.ConfigError, match="of regard's own"):
        regard.register_score("dot", Distance)
    with pytest.raises(regard.ConfigError, match=r"nobody has registered it.*register_score\('mine'"):
        regard.Attention(2, 2, score={"kind": "custom", "name": "mine"})


def test_what_does_not_fit_is_named_with_its_shape() -> None:
    with pytest.raises(regard.ConfigError, match="score has 2 heads, and the attention 1"):
        regard.Attention(4, 4, score=Distance(4, 4, 2))
    attention = regard.Attention(4, 6)
    query, keys = torch.randn(2, 3, 4), torch.randn(2, 5, 6)
    for arguments, message in [
        ((keys, keys), r"query must have the shape \(rows, steps, 4\), and has \(2, 5, 6\)"),
        ((query, keys[0]), r"keys must have the shape \(rows, steps, 6\), and has \(5, 6\)"),
        ((query, keys[:1]), "2 rows of queries and 1 of keys"),
        ((query, keys, keys[:, :4]), r"values have the shape \(2, 4, 6\)"),
    ]:
        with pytest.raises(regard.ConfigError, match=message):
            attention(*arguments)


def test_sparse_selections_work_in_half_precision() -> None:
    query, keys = torch.randn(2, 3, 4).half(), torch.randn(2, 5, 4).half()
    allowed = torch.arange(5) < torch.tensor([[5], [2]])
    for select in ("sparsemax", "entmax15"):
        _, weights = regard.Attention(4, 4, score="dot", select=select).half()(query, keys, allowed=allowed)
        torch.testing.assert_close(weights.float().sum(-1), torch.ones(2, 3), atol=2e-3, rtol=0)


def test_a_sampled_choice_survives_a_stepwise_score() -> None:
    attention = regard.Attention(4, 4, score="location_aware", select="hard").train()
    keys = attention.prepare(torch.randn(2, 5, 4))
    read = attention.read(torch.randn(2, 3, 4), keys, attention.begin(keys))
    assert read.choice is not None
    assert read.choice.log_prob_BT.shape == (2, 3)


def test_recordings_can_be_nested() -> None:
    attention = regard.Attention(4, 4, score="dot")
    with regard.record(attention) as outer, regard.record(attention) as inner:
        attention(torch.randn(1, 2, 4), torch.randn(1, 3, 4), weights=False)
    assert torch.equal(outer.weights[""], inner.weights[""])


def test_heads_are_attentions_side_by_side() -> None:
    torch.manual_seed(0)
    query, keys = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    for score in ("dot", "scaled_dot", "general", "additive", "concat", "cosine", "location", "location_aware"):
        both = regard.Attention(8, 8, score=score, heads=2)
        context, weights = both(query, keys)
        for head in range(2):
            one = regard.Attention(4, 4, score=score)
            state = {
                name: value[head : head + 1] if value.shape and value.shape[0] == 2 else value
                for name, value in both.state_dict().items()
            }
            one.load_state_dict(state)
            part = slice(4 * head, 4 * head + 4)
            alone, its_weights = one(query[..., part], keys[..., part])
            torch.testing.assert_close(context[..., part], alone)
            torch.testing.assert_close(weights[:, head], its_weights)


def test_sizes_that_do_not_fit_are_refused_with_the_remedy() -> None:
    for score in ("dot", "scaled_dot", "cosine"):
        with pytest.raises(regard.ConfigError, match=r"2 and 3.*general"):
            regard.Attention(2, 3, score=score)
    with pytest.raises(regard.ConfigError, match="3 heads do not divide a query of size 8"):
        regard.Attention(8, 9, score="additive", heads=3)


def test_a_mask_of_another_type_or_shape_is_refused() -> None:
    with pytest.raises(regard.ConfigError, match="boolean"):
        regard.attend(QUERY, KEYS, allowed=torch.ones(1, 2))
    with pytest.raises(regard.ConfigError, match=r"\(1, 2\) or \(1, 1, 2\); this one has \(2,\)"):
        regard.Attention(2, 2)(QUERY, KEYS, allowed=torch.ones(2, dtype=torch.bool))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"score": "aditive"}, "score cannot be 'aditive'. Did you mean 'additive'"),
        ({"score": {"kind": "additive", "hiden": 3}}, "there is no setting 'score.hiden'. Did you mean 'hidden'"),
        ({"scope": {"kind": "local_m", "window": 0}}, "scope.window = 0"),
        ({"select": "sofmax"}, "select cannot be 'sofmax'. Did you mean 'softmax'"),
        ({"select": "hard_monotonic", "scope": "local_p"}, "cannot have that of another scope"),
        ({"select": "hard_monotonic", "scope": {"kind": "all_of", "scopes": ["local_m"]}}, "take scope: global"),
        ({"select": "hard_exact", "heads": 2}, "2 heads read several: take heads: 1"),
        ({"select": "hard_exact", "dropout": 0.1}, "needs true probabilities"),
        ({"score": "location", "scope": "local_p"}, "nothing would look at the memory"),
    ],
)
def test_a_part_that_is_wrong_or_does_not_fit_is_named_with_its_remedy(parts: dict[str, object], message: str) -> None:
    with pytest.raises(regard.ConfigError) as caught:
        regard.Attention(2, 2, **parts)  # type: ignore[arg-type]
    assert message in str(caught.value)
