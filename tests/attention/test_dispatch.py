"""Outputs and gradients of each fast path equal those of the reference in float64. Each mechanism uses the expected
path, so that a path that is silently rejected is noticed.
"""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.attention import attention as dispatch
from regard.ops import attention as attention_ops
from regard.ops.attention import ScoreBias, dot_product_attention, reference_dot_product_attention
from regard.ops.reference_mode import reference_mode

FUSED = {
    "luong-dot",
    "luong-general",
    "luong-local-m",
    "graves-content",
    "scaled-dot",
    "transformer",
    "simple-rnn-projected",
}
CHUNKED = {
    "bahdanau",
    "luong-concat",
    "chorowski",
    "show-attend-tell-soft",
    "show-attend-tell-hard",
    "sparsemax",
    "entmax15",
    "straight-through",
    "hard-monotonic",
}

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("mechanism", regard.mechanisms(), ids=lambda mechanism: mechanism.name)
def test_every_mechanism_uses_the_expected_path(mechanism: object) -> None:
    name = mechanism.name  # type: ignore[attr-defined]
    attention = regard.Attention.named(name, 8, 8)
    parts = (attention.score, attention.scope, attention.select)
    expected = "fused" if name in FUSED else "chunked" if name in CHUNKED else "reference"
    chosen = dispatch.dispatch_attention(*parts, weights=False)
    assert chosen.path == expected
    assert all(reason for reason in chosen.rejected.values())
    assert dispatch.dispatch_attention(*parts, weights=True).path != "fused"
    assert dispatch.dispatch_attention(*parts, weights=True).rejected["fused"] == "the weights are requested"


def count_fused_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    inner = nn.functional.scaled_dot_product_attention

    def counted(*arguments: object, **options: object) -> Tensor:
        calls.append(1)
        return inner(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", counted)
    return calls


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(FUSED))
@pytest.mark.parametrize(("T", "S"), [(1, 1), (3, 7), (13, 5)])
def test_fused_path_equals_the_reference(
    name: str, T: int, S: int, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_fused_calls(monkeypatch)
    torch.manual_seed(0)
    fast = regard.Attention.named(name, 24, 24)
    exact = regard.Attention.named(name, 24, 24).double()
    exact.load_state_dict(fast.state_dict())
    fast = fast.to(device, dtype)
    allowed = torch.arange(S) < torch.tensor([[S], [max(1, S - 2)], [0]])
    inputs = [torch.randn(3, size, 24) for size in (T, S, S)]
    for slots in inputs[1:]:
        slots[~allowed] = torch.nan
    d_context = torch.randn(3, T, 24) / 10
    results = []
    for model, kind in ((fast, dtype), (exact, torch.float64)):
        model_device = device if model is fast else "cpu"
        tensors = [tensor.to(model_device, kind, copy=True).requires_grad_() for tensor in inputs]
        context, _ = model(*tensors, allowed=allowed.to(model_device), weights=model is exact)
        (context * d_context.to(model_device, kind)).sum().backward()
        results.append([context, *(tensor.grad for tensor in (*tensors, *model.parameters()))])
    assert len(calls) == 1
    # Compare with the largest norm, not element by element: some gradients are sums that cancel out.
    scale = max(reference.norm() for reference in results[1])
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    for ours, reference in zip(*results, strict=True):
        assert (ours.cpu().double() - reference).norm() <= tolerance * scale


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("max_elements", [1, 50, 10**9])
def test_chunked_additive_score_equals_the_reference(
    heads: int, max_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_ops, "CPU_MIN", 0)  # also small scores have an analytic gradient
    torch.manual_seed(0)
    query = torch.randn(2, heads, 5, 4, dtype=torch.float64, requires_grad=True)
    keys = torch.randn(2, heads, 7, 4, dtype=torch.float64, requires_grad=True)
    v = torch.randn(heads, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, heads, 5, 7, dtype=torch.float64)
    expected = attention_ops.reference_additive_scores(query, keys, v)
    direct = (torch.tanh(query.unsqueeze(3) + keys.unsqueeze(2)) * v.view(1, heads, 1, 1, 4)).sum(-1)
    torch.testing.assert_close(expected, direct)
    actual = attention_ops.additive_scores(query, keys, v, max_elements)
    torch.testing.assert_close(actual, expected)
    gradients = torch.autograd.grad((expected * weight).sum(), (query, keys, v))
    for ours, reference in zip(torch.autograd.grad((actual * weight).sum(), (query, keys, v)), gradients, strict=True):
        torch.testing.assert_close(ours, reference)


@pytest.mark.parametrize("max_elements", [1, 10**9])
def test_chunked_additive_score_in_half_precision_is_computed_in_float32(
    max_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_ops, "CPU_MIN", 0)
    torch.manual_seed(0)
    query, keys = (torch.randn(1, 1, 5, 64).bfloat16().requires_grad_() for _ in range(2))
    v = torch.randn(1, 64, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        actual = attention_ops.additive_scores(query, keys, v, max_elements)
    expected = attention_ops.reference_additive_scores(query.float(), keys.float(), v)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual, expected.bfloat16())
    gradients = [torch.autograd.grad(scores.float().square().sum(), (query, keys, v)) for scores in (actual, expected)]
    for ours, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, reference, rtol=0.02, atol=0.1)


def test_chunked_additive_score_bounds_the_memory_for_the_backward_pass() -> None:
    """The largest tensor that is saved for the backward pass is not larger than the inputs and the scores."""
    query = torch.randn(1, 1, 600, 64, requires_grad=True)
    keys = torch.randn(1, 1, 700, 64, requires_grad=True)
    v = torch.randn(1, 64, requires_grad=True)
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        attention_ops.additive_scores(query, keys, v)
    assert attention_ops.CPU_CHUNK < 600 * 700 * 64
    assert max(saved) <= 600 * 700


@pytest.mark.parametrize("with_weights", [True, False])
def test_multi_head_attention_equals_torch(with_weights: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    ours = regard.MultiHeadAttention(16, heads=4)
    q, k, v = theirs.in_proj_weight.chunk(3)
    bq, bk, bv = theirs.in_proj_bias.chunk(3)
    ours.load_state_dict(
        {
            "to_query.weight": q, "to_key.weight": k, "to_value.weight": v,
            "to_query.bias": bq, "to_key.bias": bk, "to_value.bias": bv,
            "output.weight": theirs.out_proj.weight, "output.bias": theirs.out_proj.bias,
        }
    )  # fmt: skip
    query, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    allowed = torch.arange(7) < torch.tensor([[7], [3]])
    expected, weights = theirs(query, memory, memory, key_padding_mask=~allowed, average_attn_weights=False)
    output, our_weights = ours(query, memory, allowed=allowed, weights=with_weights)
    torch.testing.assert_close(output, expected)
    if with_weights:
        torch.testing.assert_close(our_weights, weights)
    torch.testing.assert_close(ours(query)[0], theirs(query, query, query)[0])


def test_dropout_applies_to_the_weights_only_in_training() -> None:
    torch.manual_seed(0)
    attention = regard.Attention(4, 4, score="dot", dropout=0.5)
    query, keys = torch.randn(1, 3, 4), torch.randn(1, 9, 4)
    with regard.record(attention) as trace:
        attention.train()(query, keys)
    torch.testing.assert_close(trace.weights[""].sum(-1), torch.ones(1, 3))
    first, second = (attention.train()(query, keys, weights=False)[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(*(attention.eval()(query, keys, weights=False)[0] for _ in range(2)))


def test_gradients_in_bfloat16_on_a_cpu_equal_those_in_float32() -> None:
    torch.manual_seed(0)
    attention = regard.MultiHeadAttention(model_size=16, heads=2)
    x = torch.randn(3, 7, 16)
    allowed = torch.arange(7) < torch.tensor([[7], [4], [0]])
    gradients = []
    for autocast in (False, True):
        attention.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output, _ = attention(x, allowed=allowed)
        output.float().square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in attention.parameters() if p.grad is not None]))
    assert torch.linalg.norm(gradients[0] - gradients[1]) < 0.03 * torch.linalg.norm(gradients[0])


@pytest.mark.parametrize("masked", [False, True])
def test_reference_dot_product_attention_equals_the_fused_kernel(masked: bool) -> None:
    """It replaces the fused kernel for wide heads on a GPU."""
    torch.manual_seed(0)
    query, keys, values = torch.randn(2, 3, 4, 6), torch.randn(2, 3, 5, 6), torch.randn(2, 3, 5, 7)
    bias = torch.zeros(2, 1, 1, 5).masked_fill_(torch.rand(2, 1, 1, 5) < 0.4, -torch.inf) if masked else None
    expected = nn.functional.scaled_dot_product_attention(query, keys, values, bias, scale=0.7)
    torch.testing.assert_close(reference_dot_product_attention(query * 0.7, keys, values, bias, 0.0), expected)


REFERENCE_CASES = [("scaled_dot", 2), ("additive", 1), ("additive", 2), ("concat", 1), ("cosine", 1)]


@pytest.mark.parametrize(("score", "heads"), REFERENCE_CASES)
def test_reference_mode_uses_the_equation_with_the_same_outputs_and_gradients(
    score: str, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_ops, "CPU_CHUNK", 10)
    calls, chunked = count_fused_calls(monkeypatch), count_chunked_calls(monkeypatch)
    torch.manual_seed(0)
    attention = regard.Attention(4, 4, score=score, heads=heads).double()
    allowed = torch.arange(5) < torch.tensor([[5], [3], [0]])
    query, keys = torch.randn(3, 3, 4).double(), torch.randn(3, 5, 4).double()
    results = []
    for mode in (nullcontext, reference_mode):
        inputs = [query.clone().requires_grad_(), keys.clone().requires_grad_()]
        with mode():
            context, _ = attention(*inputs, allowed=allowed, weights=False)
            gradients = torch.autograd.grad(context.sin().sum(), [*inputs, *attention.parameters()])
        results.append((context, *gradients))
        assert len(calls) + len(chunked) == 1  # outside of the block only
    for fast, exact in zip(*results, strict=True):
        torch.testing.assert_close(fast, exact)
    with reference_mode():
        chosen = dispatch.dispatch_attention(attention.score, attention.scope, attention.select, weights=False)
    assert chosen.path == "reference"
    assert set(chosen.rejected.values()) == {"reference mode is on"}


def count_chunked_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    inner = attention_ops._Chunked.apply

    def counted(*arguments: object) -> object:
        calls.append(1)
        return inner(*arguments)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(attention_ops._Chunked, "apply", counted)
    return calls


@pytest.mark.parametrize(("score", "heads"), REFERENCE_CASES)
def test_second_derivatives_in_reference_mode(score: str, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_ops, "CPU_CHUNK", 10)
    torch.manual_seed(0)
    attention = regard.Attention(4, 4, score=score, heads=heads).double()
    allowed = torch.arange(3) < torch.tensor([[3], [2]])
    inputs = [torch.randn(2, 2, 4).double().requires_grad_(), torch.randn(2, 3, 4).double().requires_grad_()]

    def attend(query: Tensor, keys: Tensor) -> Tensor:
        context: Tensor = attention(query, keys, allowed=allowed, weights=False)[0]
        return context

    with reference_mode():
        assert torch.autograd.gradcheck(attend, inputs)
        assert torch.autograd.gradgradcheck(attend, inputs)


def test_second_derivatives_of_the_chunked_score_need_the_reference_mode() -> None:
    query, keys, v = (torch.randn(*shape, requires_grad=True) for shape in ((1, 1, 4, 2), (1, 1, 3, 2), (1, 2)))
    scores = attention_ops.additive_scores(query, keys, v, max_elements=6)
    with pytest.raises(regard.ConfigError, match="reference_mode"):
        torch.autograd.grad(scores.sum(), query, create_graph=True)


@pytest.mark.parametrize("masked", [False, True])
def test_the_fused_operation_has_second_derivatives_in_reference_mode(masked: bool) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(1, 2, size, 3).double().requires_grad_() for size in (2, 4, 4)]
    allowed = torch.tensor([[[[True, True, False, True], [False, False, False, False]]]])
    mask = ScoreBias.from_mask(allowed, torch.float64) if masked else None
    with reference_mode():
        assert torch.autograd.gradgradcheck(
            lambda q, k, v: dot_product_attention(q, k, v, mask, scale=0.5, dropout=0.0), tensors
        )


def test_a_model_in_reference_mode_computes_no_fused_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_fused_calls(monkeypatch)
    torch.manual_seed(0)
    attention = regard.MultiHeadAttention(8, heads=2, scope="causal")
    x = torch.randn(2, 5, 8)
    expected, _ = attention(x)
    assert calls
    calls.clear()
    with reference_mode():
        output, _ = attention(x)
    assert not calls
    torch.testing.assert_close(output, expected)
