"""Scopes: which slots are visible."""

import math

import pytest
import torch

import regard
from regard.attention.scopes import Causal, LocalMonotonic, LocalPredictive, ScopeInput


def test_local_window_makes_only_neighbors_visible() -> None:
    attention = regard.Attention(2, 2, score="dot", scope={"kind": "local_m", "window": 1})
    _, weights = attention(torch.randn(1, 5, 2), torch.randn(1, 6, 2))
    rows, columns = torch.meshgrid(torch.arange(5), torch.arange(6), indexing="ij")
    assert torch.equal(weights[0] > 0, (rows - columns).abs() <= 1)


def scope_input(query: torch.Tensor, *lengths: int) -> ScopeInput:
    rows, steps, _ = query.shape
    positions = torch.arange(steps).expand(rows, steps)
    return ScopeInput(query, positions, torch.tensor(lengths), torch.arange(max(lengths)))


def test_local_p_has_hand_computed_values() -> None:
    scope = LocalPredictive(window=2, query_size=1)
    scope.load_state_dict({"inner.weight": torch.tensor([[0.5]]), "outer.weight": torch.tensor([[2.0]])})
    inputs = scope_input(torch.tensor([[[1.0]], [[1.0]]]), 6, 3)
    fraction = torch.sigmoid(2 * torch.tanh(torch.tensor(0.5)))
    # p = 6 · fraction and 3 · fraction, because each row has its own length.
    torch.testing.assert_close(scope.center(inputs), torch.stack([6 * fraction, 3 * fraction]).unsqueeze(1))
    with torch.no_grad():
        output = scope(inputs)
    for row, length in enumerate((6, 3)):
        for slot in range(6):
            distance = slot - float(length * fraction)
            assert bool(output.allowed_BTS[row, 0, slot]) == (abs(distance) <= 2)
            # σ = D / 2 = 1.
            assert output.factor_BTS[row, 0, slot] == pytest.approx(math.exp(-(distance**2) / 2), abs=1e-5)


@pytest.mark.parametrize(("scaled", "divisor"), [(True, 2), (False, 1)])
def test_local_p_divides_the_argument_of_the_sigmoid_by_the_root_of_the_width(scaled: bool, divisor: int) -> None:
    scope = LocalPredictive(query_size=4, scaled=scaled)
    scope.load_state_dict({"inner.weight": 0.5 * torch.eye(4), "outer.weight": torch.tensor([[1.0, 2.0, 3.0, -4.0]])})
    # Σ v tanh(0.5 q) = (1 + 2 + 3 + 4) tanh(0.5), and √4 = 2.
    argument = 10 * math.tanh(0.5) / divisor
    center = scope.center(scope_input(torch.tensor([[[1.0, 1.0, 1.0, -1.0]]]), 6))
    assert center.item() == pytest.approx(6 / (1 + math.exp(-argument)), abs=1e-5)


def test_adam_does_not_saturate_the_position_of_local_p_in_its_first_steps() -> None:
    """Early in training, all queries are nearly equal, and the gradient of the position is tiny and has any sign."""
    torch.manual_seed(0)
    query = torch.randn(384).tanh() + 0.1 * torch.randn(4, 6, 384)
    inputs = scope_input(query, 12, 12, 12, 12)
    derivatives = {}
    for scaled in (True, False):
        scope = LocalPredictive(query_size=384, scaled=scaled)
        optimizer = torch.optim.Adam(scope.parameters(), lr=0.002)
        for _ in range(20):
            optimizer.zero_grad()
            torch.autograd.backward(1e-6 * scope.center(inputs).mean())
            optimizer.step()
        fraction = scope.center(inputs).detach() / 12
        # The derivative of the sigmoid, at most 1/4: a saturated position has no gradient.
        derivatives[scaled] = (fraction * (1 - fraction)).mean().item()
    assert derivatives[True] > 0.1
    assert derivatives[False] < 0.01


def test_local_p_distinguishes_slots_of_long_sources_in_bfloat16() -> None:
    scope = LocalPredictive(window=2, query_size=1)
    scope.load_state_dict({"inner.weight": torch.tensor([[0.5]]), "outer.weight": torch.tensor([[2.0]])})
    inputs = scope_input(torch.full((1, 1, 1), 2.0), 1000)
    with torch.autocast("cpu", torch.bfloat16):
        center, output = scope.center(inputs), scope(inputs)
    assert center.item() == pytest.approx(1000 / (1 + math.exp(-2 * math.tanh(1))), rel=0.01)
    expected = (torch.arange(1000) - center.double()).abs() <= 2
    assert torch.equal(output.allowed_BTS[0, 0], expected[0])


def test_local_p_multiplies_the_weights_by_the_gaussian_and_normalizes_them_on_request() -> None:
    torch.manual_seed(0)
    query, keys = torch.randn(1, 2, 4), torch.randn(1, 7, 4)
    published = regard.Attention(4, 4, score="dot", scope={"kind": "local_p", "window": 5})
    normalized = regard.Attention(4, 4, score="dot", scope={"kind": "local_p", "window": 5, "normalize": True})
    normalized.load_state_dict(published.state_dict())
    output = published.scope(scope_input(query, 7))
    align = torch.where(output.allowed_BTS, query @ keys.transpose(1, 2), -torch.inf).softmax(-1)
    expected = align * output.factor_BTS
    _, weights = published(query, keys)
    torch.testing.assert_close(weights, expected)
    assert (weights.sum(-1) < 1).all()
    torch.testing.assert_close(normalized(query, keys)[1], expected / expected.sum(-1, keepdim=True))


def test_local_p_learns_its_position_from_a_score_that_selects_one_slot() -> None:
    """The window is centered on slot 4, and the score selects slot 6. A larger context decreases the loss."""
    torch.manual_seed(0)
    keys = torch.eye(8).unsqueeze(0)
    query = 50 * keys[:, 6:7]
    centers = {}
    for normalize in (False, True):
        scope = LocalPredictive(normalize=normalize, query_size=8)
        torch.nn.init.zeros_(scope.outer.weight)
        context, _ = regard.Attention(8, 8, score="dot", scope=scope)(query, keys)
        torch.autograd.backward(-context[..., 6].sum())
        torch.optim.SGD(scope.parameters(), lr=1.0).step()
        centers[normalize] = scope.center(scope_input(query, 8)).item()
    assert 4.1 < centers[False] < 6
    # Normalized weights are 1 for slot 6 wherever the window is.
    assert centers[True] == pytest.approx(4, abs=1e-6)


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("score", ["scaled_dot", "additive", "general"])
def test_causal_attention_does_not_depend_on_later_positions(score: str, weights: bool) -> None:
    torch.manual_seed(0)
    attention = regard.MultiHeadAttention(8, heads=2, score=score, scope="causal")
    x = torch.randn(2, 6, 8)
    changed = x.clone()
    changed[:, 4:] += 10 * torch.randn(2, 2, 8)
    before, after = attention(x, weights=weights)[0], attention(changed, weights=weights)[0]
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


def test_causal_scope_is_rejected_outside_self_attention() -> None:
    attention = regard.Attention(4, 4, scope="causal")
    with pytest.raises(regard.ConfigError, match="3 queries and 5 slots"):
        attention(torch.randn(1, 3, 4), torch.randn(1, 5, 4))
    from regard.config import resolve
    from regard.runs.settings import RunSettings

    with pytest.raises(regard.ConfigError, match="the decoder attends to the source"):
        resolve(RunSettings, "dates", {"model.attention.scope": "causal"})


def test_scopes_combine_with_and() -> None:
    both = Causal() & LocalMonotonic(1)
    inputs = scope_input(torch.randn(1, 4, 2), 4)
    rows, columns = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
    assert torch.equal(both(inputs).allowed_BTS[0], (columns <= rows) & (rows - columns <= 1))
    setting = {"kind": "all_of", "scopes": ["causal", {"kind": "local_m", "window": 1}]}
    _, weights = regard.Attention(2, 2, score="dot", scope=setting)(inputs.query_BTD, inputs.query_BTD)
    assert torch.equal(weights[0] > 0, both(inputs).allowed_BTS[0])
    from_module = regard.Attention(2, 2, score="dot", scope=both)
    torch.testing.assert_close(from_module(inputs.query_BTD, inputs.query_BTD)[1], weights)
