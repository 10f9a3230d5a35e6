"""Scopes: who is seen."""

import pytest
import torch

import regard
from regard.attention.scopes import Causal, LocalMonotonic, LocalPredictive, Situation


def test_local_window_sees_its_neighbors_alone() -> None:
    attention = regard.Attention(2, 2, score="dot", scope={"kind": "local_m", "window": 1})
    _, weights = attention(torch.randn(1, 5, 2), torch.randn(1, 6, 2))
    rows, columns = torch.meshgrid(torch.arange(5), torch.arange(6), indexing="ij")
    assert torch.equal(weights[0] > 0, (rows - columns).abs() <= 1)


def situation(query: torch.Tensor, *lengths: int) -> Situation:
    rows, steps, _ = query.shape
    positions = torch.arange(steps).expand(rows, steps)
    return Situation(query, positions, torch.tensor(lengths), torch.arange(max(lengths)))


def test_local_p_worked_by_hand() -> None:
    scope = LocalPredictive(window=2, query_size=1)
    scope.load_state_dict({"inner.weight": torch.tensor([[0.5]]), "outer.weight": torch.tensor([[2.0]])})
    asked = situation(torch.tensor([[[1.0]], [[1.0]]]), 6, 3)
    share = torch.sigmoid(2 * torch.tanh(torch.tensor(0.5)))
    # Each row's own length: p = 6 · share and 3 · share.
    torch.testing.assert_close(scope.center(asked), torch.stack([6 * share, 3 * share]).unsqueeze(1))
    with torch.no_grad():
        view = scope(asked)
    for row, length in enumerate((6, 3)):
        for slot in range(6):
            distance = slot - float(length * share)
            assert bool(view.allowed_BTS[row, 0, slot]) == (abs(distance) <= 2)
            # σ = D / 2 = 1.
            assert view.bias_BTS[row, 0, slot] == pytest.approx(-(distance**2) / 2, abs=1e-5)


def test_local_p_as_published_leaves_the_weights_under_the_gaussian() -> None:
    torch.manual_seed(0)
    query, keys = torch.randn(1, 2, 4), torch.randn(1, 7, 4)
    published = regard.Attention(4, 4, score="dot", scope={"kind": "local_p", "normalize": False})
    ours = regard.Attention(4, 4, score="dot", scope={"kind": "local_p"})
    ours.load_state_dict(published.state_dict())
    view = ours.scope(situation(query, 7))
    align = torch.where(view.allowed_BTS, query @ keys.transpose(1, 2), -torch.inf).softmax(-1)
    expected = align * view.bias_BTS.exp()
    _, weights = published(query, keys)
    torch.testing.assert_close(weights, expected)
    assert (weights.sum(-1) < 1).all()
    torch.testing.assert_close(ours(query, keys)[1], expected / expected.sum(-1, keepdim=True))


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("score", ["scaled_dot", "additive", "general"])
def test_causal_attention_never_looks_ahead_bit_for_bit(score: str, weights: bool) -> None:
    torch.manual_seed(0)
    attention = regard.MultiHeadAttention(8, heads=2, score=score, scope="causal")
    x = torch.randn(2, 6, 8)
    changed = x.clone()
    changed[:, 4:] += 10 * torch.randn(2, 2, 8)
    before, after = attention(x, weights=weights)[0], attention(changed, weights=weights)[0]
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


def test_causal_over_another_sequence_is_refused() -> None:
    attention = regard.Attention(4, 4, scope="causal")
    with pytest.raises(regard.ConfigError, match="3 queries and 5 slots"):
        attention(torch.randn(1, 3, 4), torch.randn(1, 5, 4))
    from regard.config import resolve
    from regard.runs.settings import RunSettings

    with pytest.raises(regard.ConfigError, match="a target attends to a source"):
        resolve(RunSettings, "dates", {"model.attention.scope": "causal"})


def test_scopes_compose() -> None:
    both = Causal() & LocalMonotonic(1)
    asked = situation(torch.randn(1, 4, 2), 4)
    rows, columns = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
    assert torch.equal(both(asked).allowed_BTS[0], (columns <= rows) & (rows - columns <= 1))
    written = {"kind": "all_of", "scopes": ["causal", {"kind": "local_m", "window": 1}]}
    _, weights = regard.Attention(2, 2, score="dot", scope=written)(asked.query_BTD, asked.query_BTD)
    assert torch.equal(weights[0] > 0, both(asked).allowed_BTS[0])
    as_object = regard.Attention(2, 2, score="dot", scope=both)
    torch.testing.assert_close(as_object(asked.query_BTD, asked.query_BTD)[1], weights)
