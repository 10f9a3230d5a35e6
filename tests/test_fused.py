"""The Triton kernels against PyTorch: values and gradients; without a GPU they are interpreted, on the CPU."""

import pytest
import torch
from torch import Tensor, nn

from regard.norms import LayerNorm

pytest.importorskip("triton")

from regard.fused.entropy import cross_entropy
from regard.fused.norm import layer_norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.to(DEVICE).requires_grad_()


def gradients(made: Tensor, given: list[Tensor]) -> list[Tensor]:
    """Of a sum in which every place has a weight of its own."""
    weights = torch.arange(made.numel(), device=made.device).view_as(made).sin()
    return [made.detach(), *torch.autograd.grad((made.float() * weights).sum(), given)]


@pytest.mark.parametrize("shape", [(1, 1, 8), (3, 5, 24), (7, 256), (2, 300), (1, 3000)])
def test_layer_norm_is_that_of_torch(shape: tuple[int, ...]) -> None:
    x, weight, bias = drawn(*shape, scale=3.0), drawn(shape[-1], seed=1), drawn(shape[-1], seed=2)
    given = [x, weight, bias]
    ours = gradients(layer_norm(x + 5, weight, bias, 1e-5, torch.float32), given)
    theirs = gradients(nn.functional.layer_norm(x + 5, shape[-1:], weight, bias, 1e-5), given)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


def test_the_rows_of_a_gradient_may_outnumber_its_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.fused.norm.PROGRAMS", 3)
    x, weight, bias = drawn(29, 1024), drawn(1024, seed=1), drawn(1024, seed=2)
    ours = gradients(layer_norm(x, weight, bias, 1e-5, torch.float32), [x, weight, bias])
    theirs = gradients(nn.functional.layer_norm(x, (1024,), weight, bias, 1e-5), [x, weight, bias])
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


def test_layer_norm_gives_the_precision_that_is_asked_for() -> None:
    x, weight, bias = drawn(4, 32), drawn(32, seed=1), drawn(32, seed=2)
    made = layer_norm(x, weight, bias, 1e-5, torch.float16)
    assert made.dtype == torch.float16
    expected = nn.functional.layer_norm(x, (32,), weight, bias, 1e-5)
    torch.testing.assert_close(made.float(), expected, rtol=1e-3, atol=1e-3)
    assert torch.autograd.grad(made.float().square().sum(), x)[0].dtype == torch.float32


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize("training", [True, False])
def test_the_norm_halves_what_goes_into_products_alone(device: str, training: bool) -> None:
    norm, other = (LayerNorm(64, for_products=alone).to(device).train(training) for alone in (True, False))
    x = torch.randn(3, 5, 64, device=device)
    assert norm(x).dtype == torch.float32
    with torch.autocast(device, torch.bfloat16):
        halved, whole = norm(x), other(x)
    assert (halved.dtype, whole.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(halved.float(), nn.functional.layer_norm(x, (64,)), rtol=0, atol=0.02)
    torch.testing.assert_close(whole, nn.functional.layer_norm(x, (64,)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "size"), [(1, 3), (5, 100), (4, 4096), (3, 9001)])
def test_cross_entropy_is_that_of_torch(rows: int, size: int, smoothing: float) -> None:
    logits = drawn(rows, size, scale=8.0)
    tokens = torch.arange(rows, device=DEVICE) * 7919 % size
    tokens[0] = -100 if rows > 1 else tokens[0]
    ours = gradients(cross_entropy(logits, tokens, smoothing, -100), [logits])
    theirs = gradients(
        nn.functional.cross_entropy(logits, tokens, reduction="none", label_smoothing=smoothing), [logits]
    )
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def test_cross_entropy_of_halved_logits_is_worked_out_in_full() -> None:
    whole = drawn(3, 50, scale=30.0)
    halved = whole.detach().half().requires_grad_()
    tokens = torch.tensor([0, 10, 49], device=DEVICE)
    ours = cross_entropy(halved, tokens, 0.1, -100)
    assert ours.dtype == torch.float32
    theirs = nn.functional.cross_entropy(halved.float(), tokens, reduction="none", label_smoothing=0.1)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert torch.autograd.grad(ours.sum(), halved)[0].dtype == torch.float16


def test_what_is_impossible_costs_nothing_where_labels_are_sharp() -> None:
    logits = torch.tensor([[0.5, -torch.inf, 1.5, -torch.inf]], device=DEVICE, requires_grad=True)
    tokens = torch.tensor([2], device=DEVICE)
    ours = gradients(cross_entropy(logits, tokens, 0.0, -100), [logits])
    theirs = gradients(nn.functional.cross_entropy(logits, tokens, reduction="none"), [logits])
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other)
