"""Properties of every attention mechanism.

B rows, T queries, S memory slots, D width.
"""

import example_parts  # noqa: F401 - registers parts, which must satisfy the same properties
import pytest
import torch
from torch import Tensor

import regard
from regard.inspection.explain.facts import find_facts

NAMES = [mechanism.name for mechanism in regard.mechanisms()]
FACTS = {mechanism.name: find_facts(mechanism) for mechanism in regard.mechanisms()}
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
    assert holds == (FACTS[name].position == "none")


def test_weights_of_equal_keys_train_parameters_only_if_positions_are_learned(
    attention: regard.Attention, name: str
) -> None:
    query, keys, values = tensors()
    _, weights = attention(query, keys[:, :1].expand_as(keys), values)
    is_trained = False
    if weights.requires_grad:
        (weights * torch.rand_like(weights)).sum().backward()
        gradients = [parameter.grad for parameter in attention.parameters() if parameter.grad is not None]
        is_trained = any(bool((gradient.abs() > 1e-9).any()) for gradient in gradients)
    assert is_trained == (FACTS[name].position == "learned")


def test_visible_slots_of_a_query_grow_with_the_memory_as_declared(attention: regard.Attention, name: str) -> None:
    counts = []
    for slots in (60, 120):
        middle, slots_S = torch.tensor([[slots // 2]]), torch.arange(slots)
        query = torch.zeros(1, 1, D, dtype=torch.float64)
        output = attention.scope(regard.ScopeInput(query, middle, torch.tensor([slots]), slots_S))
        counts.append(int(output.visible(torch.zeros(1, 1, slots)).sum()))
    assert (counts[0] == counts[1]) == (FACTS[name].visible == "O(T)")


def test_the_gradient_is_exact_as_declared(attention: regard.Attention, name: str) -> None:
    attention.train()
    query, keys, values = tensors()
    is_sampled = not torch.equal(attention(query, keys, values)[0], attention(query, keys, values)[0])
    assert is_sampled == (FACTS[name].gradient != "exact")
    if is_sampled:
        return
    query.requires_grad_()
    assert torch.autograd.gradcheck(lambda q: attention(q, keys, values)[0], query)


def test_a_step_needs_the_past_as_declared(attention: regard.Attention, name: str) -> None:
    query, keys, values = tensors()
    prepared = attention.prepare(keys, values)
    start = attention.begin(prepared)
    in_order = attention.read(query[:, :2], prepared, start).context_BTD[:, 1:]
    without_past = start._replace(position_B=start.position_B + 1)
    alone = attention.read(query[:, 1:2], prepared, without_past).context_BTD
    assert torch.allclose(in_order, alone) != FACTS[name].needs_past


def test_self_attention_in_a_decoder_works_as_declared(attention: regard.Attention, name: str) -> None:
    """Each step attends to the steps so far, with the same result as in one pass over all steps."""
    _, x, values = tensors()
    sample = attention.train().read(x[:, :1], prepared := attention.prepare(x), attention.begin(prepared)).sample
    if attention.select.marginal or sample is not None:  # it needs the output distribution, which a layer does not have
        assert FACTS[name].self_attention == "no"
        return
    attention.eval()
    at_once, _ = attention(x, x, values, allowed=torch.ones(S, S).tril().bool().expand(B, S, S))
    stepwise = []
    for step in range(S):
        memory = attention.prepare(x[:, : step + 1], values[:, : step + 1])
        start = attention.begin(memory)
        past = start._replace(position_B=start.position_B + step)
        stepwise.append(attention.read(x[:, step : step + 1], memory, past).context_BTD)
    assert torch.allclose(at_once, torch.cat(stepwise, 1)) == (FACTS[name].self_attention == "yes")


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
