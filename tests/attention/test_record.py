"""Roles of attentions, and recordings that know them."""

from typing import Any

import pytest
import torch

import regard
from recording import without_hooks
from regard.attention.attention import Role
from regard.attention.record import attention_roles


@pytest.mark.parametrize("role", ["encoder-self", "decoder-self", "cross"])
def test_a_recording_has_the_declared_roles(role: Role) -> None:
    model = torch.nn.ModuleDict(
        {"single": regard.Attention(4, 4, role=role), "heads": regard.MultiHeadAttention(4, heads=2, role=role)}
    )
    with regard.record(model) as recording:
        model["heads"](torch.randn(1, 3, 4))
    assert recording.roles == {"single": role, "heads.attention": role} == attention_roles(model)
    assert list(recording.weights) == ["heads.attention"]
    with regard.record(model, chosen=lambda name: name == "single") as recording:
        model["heads"](torch.randn(1, 3, 4))
    assert recording.roles == {"single": role}


def test_the_role_is_cross_by_default() -> None:
    assert regard.Attention(4, 4).role == "cross"
    assert regard.Attention.named("luong-dot", 4, 4, role="decoder-self").role == "decoder-self"
    assert regard.MultiHeadAttention(4, heads=2).attention.role == "cross"


def test_an_unknown_role_is_rejected_with_the_known_ones() -> None:
    message = "'encoder' is not a valid role. Available: encoder-self, decoder-self, cross."
    for build in (regard.Attention, regard.MultiHeadAttention):
        with pytest.raises(regard.ConfigError, match=message):
            build(4, 4, role="encoder")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [mechanism.name for mechanism in regard.mechanisms()])
def test_the_context_is_the_sum_of_the_recorded_values_by_weight(name: str) -> None:
    torch.manual_seed(0)
    attention = regard.Attention.named(name, 8, 8).eval()
    query, keys, values = torch.randn(3, 2, 5, 8)
    with regard.record(attention, queries=True) as recording:
        context, weights = attention(query[:, :3], keys, values, allowed=torch.arange(5) < torch.tensor([[5], [3]]))
    inputs = {part: calls[-1] for part, calls in recording.inputs[""].items()}
    assert (inputs["value"][1, 3:] == 0).all()  # masked slots
    projected_BHSD = attention.score.values(inputs["value"])
    expected = recording.weights[""].view(2, attention.heads, 3, 5) @ projected_BHSD
    torch.testing.assert_close(context, expected.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(recording.weights[""], weights)


def test_details_are_recorded_on_request_only() -> None:
    model = torch.nn.ModuleDict({"attention": regard.Attention(4, 4), "lstm": regard.LSTM(4, 4)})
    x = torch.randn(1, 3, 4)
    expected = model["attention"](x, x)[0], model["lstm"](x)[0]
    for queries, states in ((False, False), (True, False), (False, True)):
        with regard.record(model, queries=queries, states=states) as recording:
            outputs = model["attention"](x, x)[0], model["lstm"](x)[0]
        assert all(map(torch.equal, outputs, expected))  # a recording does not change the result
        assert bool(recording.inputs) == queries
        assert list(recording.states) == (["lstm.stack.cells.0"] if states else [])
        assert len(recording.calls["attention"]) == 1
    parts = recording.states["lstm.stack.cells.0"]
    torch.testing.assert_close(torch.cat(parts["state.h"], dim=1), expected[1])
    wrong: Any = 1
    with pytest.raises(regard.ArgumentTypeError, match="queries must be True or False, not 1"):
        regard.record(model, queries=wrong).__enter__()


def test_recordings_of_one_module_are_independent() -> None:
    attention, x = regard.Attention(4, 4), torch.randn(1, 3, 4)
    with regard.record(attention) as outer:
        attention(x, x)
        with regard.record(attention, queries=True) as inner:
            attention(x, x)
    assert len(outer.calls[""]) == 2
    assert len(inner.calls[""]) == 1
    assert outer.inputs == {}
    assert len(inner.inputs[""]["query"]) == 1


def test_the_benchmark_removes_every_hook() -> None:
    """Without hooks, a module computes the same, and nothing is recorded."""
    attention, lstm, x = regard.MultiHeadAttention(4, heads=2), regard.LSTM(4, 4), torch.randn(1, 3, 4)
    model = torch.nn.ModuleList([attention, lstm])
    expected = attention(x, x)[0], lstm(x)[0]
    with without_hooks(), regard.record(model, queries=True, states=True) as recording:
        outputs = attention(x, x)[0], lstm(x)[0]
    assert all(map(torch.equal, outputs, expected))
    assert recording.weights == {}
    assert not any(recording.states.values())
    with regard.record(model, queries=True, states=True) as recording:
        attention(x, x)
        lstm(x)
    assert recording.weights
    assert all(recording.states.values())


def test_the_positions_of_steps_are_recorded() -> None:
    attention, x = regard.Attention(4, 4), torch.randn(2, 3, 4)
    with regard.record(attention, queries=True) as recording:
        keys = attention.prepare(x)
        past = attention.begin(keys)
        for query in torch.split(x, 1, dim=1):
            past = attention.read(query, keys, past).past
    assert torch.cat(recording.inputs[""]["position"], dim=1).tolist() == [[0, 1, 2], [0, 1, 2]]
    torch.testing.assert_close(recording.weights[""], attention(x, x)[1])


def test_the_weights_of_several_passes_are_not_joined() -> None:
    model, x = torch.nn.ModuleDict({"attention": regard.Attention(4, 4)}), torch.randn(2, 3, 4)
    for second in (x, x[:1], x[:, :2]):
        with regard.record(model) as recording:
            passes = [model["attention"](x, x)[1], model["attention"](second, second)[1]]
        with pytest.raises(regard.ConfigError, match="The recorded weights of attention are not those of one pass"):
            _ = recording.weights
        assert all(map(torch.equal, recording.calls["attention"], passes))
