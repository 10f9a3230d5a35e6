"""The Triton kernels of a Transformer equal the reference, in values and gradients. Without a GPU, they run in the
interpreter.
"""

import pytest
import torch
from torch import Tensor, nn

from regard.attention.positions import rotate_heads
from regard.errors import ConfigError
from regard.ops import attention, packing
from regard.ops.attention import ScoreBias, dot_product_attention, reference_dot_product_attention
from regard.ops.layers import Dropout, LayerNorm, add_dropout, add_norm, linear

pytest.importorskip("triton")

from regard.ops.triton import attention as attention_kernels
from regard.ops.triton import linear as linear_kernels
from regard.ops.triton import norms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random_tensor(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype).requires_grad_()


def outputs_and_gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Return the output, and the gradients of a weighted sum of its elements."""
    weights = torch.arange(output.numel(), device=output.device).view(output.shape).sin()
    return [output.detach(), *torch.autograd.grad((output.float() * weights).sum(), inputs)]


def make_mask(kind: str, rows: int, queries: int, slots: int, dtype: torch.dtype) -> ScoreBias | None:
    slots_S = torch.arange(slots, device=DEVICE)
    if kind == "lengths":
        lengths_B = torch.tensor([slots, 0, max(1, slots - 3)][:rows], device=DEVICE)
        return ScoreBias.from_mask(slots_S < lengths_B.view(-1, 1, 1, 1), dtype)
    if kind == "causal":
        allowed_TS = slots_S <= torch.arange(queries, device=DEVICE).unsqueeze(1)
        return ScoreBias.from_mask(allowed_TS.expand(rows, 1, -1, -1), dtype)
    return None


@pytest.mark.parametrize("kind", ["none", "lengths", "causal"])
@pytest.mark.parametrize(("queries", "slots", "width"), [(5, 7, 24), (17, 17, 16), (3, 40, 64), (1, 1, 8)])
def test_attention_equals_the_reference(queries: int, slots: int, width: int, kind: str) -> None:
    rows, heads = 3, 2
    packed = random_tensor(rows, queries, 3 * heads * width)
    query = packed.chunk(3, dim=-1)[1].view(rows, queries, heads, width).transpose(1, 2)
    keys, values = (random_tensor(rows, heads, slots, width, seed=seed) for seed in (1, 2))
    mask = make_mask(kind, rows, queries, slots, torch.float32)
    bias, nonempty = (None, None) if mask is None else mask
    actual = attention_kernels.short_attention(query, keys, values, mask, scale=0.3, dropout=0.0)
    expected = reference_dot_product_attention(query * 0.3, keys, values, bias, 0.0)
    expected = expected if nonempty is None else torch.where(nonempty, expected, 0.0)
    for ours, reference in zip(
        *(outputs_and_gradients(output, [packed, keys, values]) for output in (actual, expected)), strict=True
    ):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


def test_heads_of_the_context_are_contiguous_so_that_they_are_joined_without_a_copy() -> None:
    query = random_tensor(2, 3, 4, 8)
    context = attention_kernels.short_attention(query, query, query, None, scale=1.0, dropout=0.0)
    assert context.transpose(1, 2).is_contiguous()


def test_dropout_of_attention_has_its_share_and_the_same_mask_in_both_passes() -> None:
    torch.manual_seed(0)
    query, keys, values = (random_tensor(4, 2, 32, 16, seed=seed) for seed in range(3))
    ones = torch.ones_like(values).requires_grad_()
    kept = attention_kernels.short_attention(query * 0, keys, ones, None, scale=1.0, dropout=0.3)
    assert float(kept.detach().mean()) == pytest.approx(1.0, abs=0.02)
    context = attention_kernels.short_attention(query, keys, values, None, scale=1.0, dropout=0.3)
    outputs = outputs_and_gradients(context, [values])
    # The context is linear in the values.
    weights = torch.arange(context.numel(), device=DEVICE).view(context.shape).sin()
    torch.testing.assert_close((outputs[1] * values).sum(), (weights * context).sum(), rtol=1e-3, atol=1e-3)


def test_the_gradient_of_attention_with_dropout_is_the_slope_of_its_output() -> None:
    query, keys, values = (random_tensor(1, 1, 5, 16, seed=seed) for seed in range(3))
    direction = random_tensor(1, 1, 5, 16, seed=3).detach()

    def compute(query: Tensor) -> Tensor:
        torch.manual_seed(1)
        return attention_kernels.short_attention(query, keys, values, None, scale=0.5, dropout=0.4).square().sum()

    slope = (compute(query + 1e-2 * direction) - compute(query - 1e-2 * direction)) / 2e-2
    (gradient,) = torch.autograd.grad(compute(query), query)
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=2e-2, atol=1e-3)


def test_attention_uses_the_kernel_for_short_sequences_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.ops.triton.unsupported_reason", lambda _: None)
    calls: list[Tensor] = []

    def short_attention(query: Tensor, *args: object, **options: float) -> Tensor:
        calls.append(query)
        return original(query, *args, **options)  # type: ignore[arg-type]

    original = attention_kernels.short_attention
    monkeypatch.setattr(attention_kernels, "short_attention", short_attention)

    def attend(length: int, dtype: torch.dtype) -> Tensor:
        query = random_tensor(1, 1, length, 16, dtype=dtype)
        return dot_product_attention(query, query, query, None, scale=0.25, dropout=0.0)

    half = attend(6, torch.float16)
    assert len(calls) == 1
    torch.testing.assert_close(half.float(), attend(6, torch.float32), rtol=0, atol=5e-3)
    attend(attention_kernels.MAX_LENGTH + 1, torch.float16)
    with torch.no_grad():
        attend(6, torch.float16)
    assert len(calls) == 1


def test_a_sequence_that_is_too_long_or_too_wide_gives_the_reason() -> None:
    short, long = torch.zeros(1, 1, 6, 16), torch.zeros(1, 1, attention_kernels.MAX_LENGTH + 1, 16)
    assert attention_kernels.unsupported_reason(short, short, short) is None
    assert f"{attention_kernels.MAX_LENGTH + 1} positions" in str(
        attention_kernels.unsupported_reason(short, long, long)
    )
    wide = torch.zeros(1, 1, 6, attention_kernels.MAX_WIDTH + 1)
    assert "129 wide" in str(attention_kernels.unsupported_reason(wide, wide, wide))
    with torch.no_grad():
        assert attention._short_unsupported_reason(short, short, short, None) == "the kernel is used only in training"


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (7, 24), (70, 512)])
def test_residual_with_norm_equals_the_reference(rows: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "PROGRAMS", 3)  # so that a program adds up several blocks of rows
    norm = LayerNorm(width).to(DEVICE)
    with torch.no_grad():
        norm.weight.copy_(random_tensor(width, seed=2))
        norm.bias.copy_(random_tensor(width, seed=3))
    x, update = (random_tensor(rows, width, seed=seed) for seed in (0, 1))
    inputs = [x, update, norm.weight, norm.bias]
    expected = outputs_and_gradients(norm(x + update), inputs)
    monkeypatch.setattr("regard.ops.triton.is_usable", lambda _: True)
    actual = outputs_and_gradients(add_norm(x, update, norm, Dropout(0.3).eval()), inputs)
    for ours, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=2e-5)


def test_dropout_of_the_residual_has_its_share_and_the_same_mask_in_both_passes() -> None:
    x, update = torch.zeros(200, 64, device=DEVICE), random_tensor(200, 64)
    weight, bias = torch.ones(64, device=DEVICE), torch.zeros(64, device=DEVICE)

    def compute(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return norms.add_norm(x, update, weight, bias, dropout=0.25, eps=1e-5, dtype=torch.float32)

    output, gradient = outputs_and_gradients(compute(1), [update])
    kept = gradient != 0
    assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.02)
    expected = nn.functional.layer_norm(update * kept / 0.75, (64,))
    torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(compute(1), output)
    assert not torch.equal(compute(2), output)


def test_norm_with_another_dtype_equals_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, x = LayerNorm(24, autocast_output=True).to(DEVICE), random_tensor(3, 7, 24)
    with torch.no_grad():
        norm.weight.copy_(random_tensor(24, seed=2))
    inputs = [x, norm.weight, norm.bias]
    with torch.autocast(DEVICE, torch.bfloat16):
        expected = outputs_and_gradients(norm(x), inputs)
        monkeypatch.setattr("regard.ops.triton.is_usable", lambda _: True)
        actual = outputs_and_gradients(norm(x), inputs)
    assert actual[0].dtype == torch.bfloat16
    for ours, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=2e-2, atol=2e-2)


def test_dropout_of_a_pre_norm_residual_has_its_share_and_the_same_mask_in_both_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("regard.ops.triton.is_usable", lambda _: True)
    x, update = random_tensor(200, 48), random_tensor(200, 48, seed=1)

    def compute(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return add_dropout(x, update, Dropout(0.25))

    output = compute(1)
    d_x, d_update = torch.autograd.grad(output.sum(), [x, update])
    assert float((d_update != 0).float().mean()) == pytest.approx(0.75, abs=0.02)
    torch.testing.assert_close(output, x + update * d_update)
    torch.testing.assert_close(d_update, (d_update != 0) / 0.75)
    assert torch.equal(d_x, torch.ones_like(x))
    assert torch.equal(compute(1), output)
    assert not torch.equal(compute(2), output)


@pytest.mark.parametrize(("heads", "width", "start"), [(1, 2, 0), (3, 8, 0), (2, 24, 5)])
def test_rotary_positions_equal_the_reference(
    heads: int, width: int, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = random_tensor(2, 7, 3 * heads * width)
    x = packed.chunk(3, dim=-1)[1]
    expected = outputs_and_gradients(rotate_heads(x, heads, start), [packed])
    monkeypatch.setattr("regard.ops.triton.is_usable", lambda _: True)
    for position in (start, torch.tensor([start], device=DEVICE)):  # a step of a search reads the position on the GPU
        actual = outputs_and_gradients(rotate_heads(x, heads, position), [packed])
        for ours, reference in zip(actual, expected, strict=True):
            torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


def test_second_derivatives_of_the_kernels_raise_with_the_remedy() -> None:
    x = random_tensor(1, 1, 4, 16)
    outputs = [
        attention_kernels.short_attention(x, x, x, None, scale=1.0, dropout=0.0),
        norms.add_norm(x, x, x[0, 0, 0], x[0, 0, 0], dropout=0.0, eps=1e-5, dtype=torch.float32),
    ]
    for output in outputs:
        with pytest.raises(ConfigError, match="reference_mode"):
            torch.autograd.grad(output.sum(), x, create_graph=True)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 8, 16), (70, 24, 300)])
def test_linear_layers_in_half_precision_equal_the_reference(
    rows: int, inputs: int, outputs: int, relu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_kernels, "PROGRAMS", 3)  # so that a program adds up several blocks of rows
    dtype = torch.bfloat16
    x = random_tensor(1, rows, inputs, dtype=dtype)
    weight, bias = random_tensor(outputs, inputs, seed=1, dtype=dtype), random_tensor(outputs, seed=2, dtype=dtype)
    expected = outputs_and_gradients(linear(x, weight, bias, relu=relu), [x, weight, bias])
    monkeypatch.setattr("regard.ops.triton.is_usable", lambda _: True)
    actual = outputs_and_gradients(linear(x, weight, bias, relu=relu), [x, weight, bias])
    for ours, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("count", [2, 3])
def test_the_gradients_of_packed_projections_are_not_copied(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = random_tensor(2, 5, count * 32)

    def attend(parts: tuple[Tensor, ...]) -> Tensor:
        heads = [part.view(2, 5, 2, 16).transpose(1, 2) for part in parts]
        query = heads[0] if count == 3 else torch.ones(2, 2, 5, 16, device=DEVICE, requires_grad=True)
        return attention_kernels.short_attention(query, heads[-2], heads[-1], None, scale=0.3, dropout=0.0)

    expected = outputs_and_gradients(attend(packed.chunk(count, dim=-1)), [packed])
    monkeypatch.setattr("regard.ops.triton.is_usable", lambda _: True)
    with monkeypatch.context() as context:
        context.delattr(torch, "cat")
        actual = outputs_and_gradients(attend(packing.unpack(packed, count)), [packed])
    for ours, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, reference)
    first, *others = packing.unpack(packed, count)
    (gradient,) = torch.autograd.grad(first.sum() + sum(2 * other.sum() for other in others), packed)
    expected_gradient = torch.ones_like(packed)
    expected_gradient[..., 32:] = 2.0
    torch.testing.assert_close(gradient, expected_gradient)
