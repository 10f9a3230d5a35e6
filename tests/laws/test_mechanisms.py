"""Properties of every attention mechanism.

B rows, T queries, S memory slots, D width.
"""

import example_parts  # noqa: F401 - registers parts, which must satisfy the same properties
import pytest
import torch
from torch import Tensor

import regard

NAMES = [mechanism.name for mechanism in regard.mechanisms()]
POSITIONAL = {
    mechanism.name
    for mechanism in regard.mechanisms()
    if mechanism.scope != "global"
    or mechanism.score in {"location", "location_aware"}
    or mechanism.select == "hard_monotonic"
}
"""Mechanisms that depend on the positions of slots."""
SCALED = {"luong-local-p"}
"""Mechanisms whose scope multiplies the weights by a factor of at most 1 after they are normalized."""
B, T, S, D = 3, 4, 7, 8


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def attention(name: str) -> regard.Attention:
    torch.manual_seed(0)
    return regard.Attention.named(name, query_size=D, key_size=D).double().eval()


def tensors(seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, T, D), (B, S, D), (B, S, D))
    query, keys, values = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return query, keys, values


def lengths_mask(*lengths: int) -> Tensor:
    return torch.arange(S) < torch.tensor(lengths).unsqueeze(1)


def check_totals(name: str, totals: Tensor) -> None:
    """Check the sums of the weights: 1, or less if the scope scales the weights."""
    if name in SCALED:
        assert ((totals > 0) & (totals < 1)).all()
    else:
        torch.testing.assert_close(totals, torch.ones_like(totals))


@pytest.mark.parametrize("training", [False, True])
def test_weights_sum_to_one_over_visible_slots(name: str, attention: regard.Attention, training: bool) -> None:
    query, keys, values = tensors()
    allowed = lengths_mask(7, 4, 5)
    context, weights = attention.train(training)(query, keys, values, allowed=allowed)
    assert context.shape == (B, T, D)
    assert weights.shape == ((B, T, S) if attention.heads == 1 else (B, attention.heads, T, S))
    weights = weights.view(B, -1, S)
    check_totals(name, weights.sum(-1))
    assert (weights >= 0).all()
    assert (weights[~allowed.unsqueeze(1).expand_as(weights)] == 0).all()


def test_masked_slots_have_no_effect(attention: regard.Attention) -> None:
    query, keys, values = tensors()
    allowed = lengths_mask(7, 4, 5)
    clean = attention(query, keys, values, allowed=allowed)
    masked = ~allowed.unsqueeze(-1)
    with_nan = attention(
        query, keys.masked_fill(masked, torch.nan), values.masked_fill(masked, torch.nan), allowed=allowed
    )
    assert torch.equal(clean[0], with_nan[0])
    assert torch.equal(clean[1], with_nan[1])


def test_masked_slots_get_no_gradient(attention: regard.Attention) -> None:
    query, keys, values = tensors()
    allowed = lengths_mask(7, 4, 0)
    masked = ~allowed.unsqueeze(-1)
    keys = keys.masked_fill(masked, torch.nan).requires_grad_()
    values = values.masked_fill(masked, torch.nan).requires_grad_()
    query.requires_grad_()
    attention.train()(query, keys, values, allowed=allowed)[0].sum().backward()
    for tensor in (query, keys, values, *attention.parameters()):
        assert tensor.grad is None or torch.isfinite(tensor.grad).all()
    for grad in (keys.grad, values.grad):
        assert grad is None or (grad[~allowed] == 0).all()
    assert values.grad is not None


def test_context_of_one_visible_slot_is_its_value(name: str, attention: regard.Attention) -> None:
    query, keys, values = tensors()
    context, weights = attention(query, keys, values, allowed=lengths_mask(1, 1, 1))
    projected = attention.score.values(values).transpose(1, 2).flatten(-2)
    scale = weights[..., :1] if name in SCALED else 1
    torch.testing.assert_close(context, scale * projected[:, :1].expand(B, T, D))


def test_context_without_visible_slots_is_zero(attention: regard.Attention) -> None:
    query, keys, values = tensors()
    context, weights = attention(query, keys, values, allowed=lengths_mask(0, 7, 0))
    assert (context[[0, 2]] == 0).all()
    assert (weights[[0, 2]] == 0).all()
    assert torch.isfinite(attention.train()(query, keys, values, allowed=lengths_mask(0, 7, 0))[0]).all()
    assert (context[1] != 0).any()


def test_padding_has_no_effect(attention: regard.Attention) -> None:
    query, keys, values = tensors()
    allowed = lengths_mask(7, 4, 5)
    context, weights = attention(query, keys, values, allowed=allowed)

    def pad(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, torch.full_like(tensor[:, :3], 9.0)], dim=1)

    padded_mask = torch.cat([allowed, torch.zeros(B, 3, dtype=torch.bool)], dim=1)
    padded_context, padded_weights = attention(query, pad(keys), pad(values), allowed=padded_mask)
    torch.testing.assert_close(context, padded_context)
    torch.testing.assert_close(weights, padded_weights[..., :S])
    assert (padded_weights[..., S:] == 0).all()


def test_each_query_can_have_its_own_mask(name: str, attention: regard.Attention) -> None:
    query, keys, values = tensors()
    allowed = lengths_mask(7, 4, 5).unsqueeze(1).expand(B, T, S).clone()
    allowed[:, 1, 2] = False
    allowed[:, 3] = False
    context, weights = attention(query, keys, values, allowed=allowed)
    if weights.dim() == 3:
        weights = weights.unsqueeze(1)
    assert (weights.masked_select(~allowed.unsqueeze(1).expand_as(weights)) == 0).all()
    assert (context[:, 3] == 0).all()
    check_totals(name, weights.sum(-1)[:, :, :3])


def test_rows_of_a_batch_are_independent(attention: regard.Attention) -> None:
    query, keys, values = tensors()
    allowed = lengths_mask(7, 4, 5)
    batch_context, _ = attention(query, keys, values, allowed=allowed)
    for row in range(B):
        one = slice(row, row + 1)
        row_context, _ = attention(query[one], keys[one], values[one], allowed=allowed[one])
        torch.testing.assert_close(batch_context[one], row_context)


def test_permuting_slots_permutes_weights(attention: regard.Attention, name: str) -> None:
    query, keys, values = tensors()
    order = torch.randperm(S, generator=torch.Generator().manual_seed(3))
    context, weights = attention(query, keys, values)
    permuted_context, permuted = attention(query, keys[:, order], values[:, order])
    holds = torch.allclose(weights[..., order], permuted) and torch.allclose(context, permuted_context)
    assert holds == (name not in POSITIONAL)


def test_step_by_step_equals_all_steps_at_once(attention: regard.Attention) -> None:
    query, keys, values = tensors()
    prepared = attention.prepare(keys, values, lengths_mask(7, 4, 5))
    at_once = attention.read(query, prepared, attention.begin(prepared))
    past = attention.begin(prepared)
    for step in range(T):
        one = attention.read(query[:, step : step + 1], prepared, past)
        past = one.past
        torch.testing.assert_close(one.context_BTD, at_once.context_BTD[:, step : step + 1])


def test_record_collects_the_weights_within_the_block_only(attention: regard.Attention) -> None:
    query, keys, values = tensors()
    with regard.record(attention) as trace:
        attention(query, keys, values, weights=False)
    _, weights = attention(query, keys, values)
    assert torch.equal(trace.weights[""], weights)
    calls = len(trace.calls[""])
    attention(query, keys, values)
    assert len(trace.calls[""]) == calls
    with regard.record(attention, chosen=lambda name: name == "another") as recording:
        attention(query, keys, values)
    assert recording.weights == {}


def test_recording_does_not_change_the_context(attention: regard.Attention) -> None:
    query, keys, values = tensors()
    allowed = lengths_mask(7, 4, 0)
    context, _ = attention(query, keys, values, allowed=allowed, weights=False)
    with regard.record(attention):
        recorded, _ = attention(query, keys, values, allowed=allowed, weights=False)
    assert torch.equal(recorded, context)


def test_context_does_not_depend_on_whether_weights_are_requested(attention: regard.Attention) -> None:
    query, keys, values = tensors()
    allowed = lengths_mask(7, 4, 0)
    with_weights, _ = attention(query, keys, values, allowed=allowed)
    without, weights = attention(query, keys, values, allowed=allowed, weights=False)
    torch.testing.assert_close(with_weights, without)
    assert weights is None or attention.stepwise or attention.select.marginal
