"""The Triton kernels against PyTorch: values and gradients; without a GPU they are interpreted, on the CPU."""

import shutil

import pytest
import torch
from torch import Tensor, nn

from regard.config import resolve
from regard.data.batching import Batch, pad
from regard.data.tokens.tokenizers import END
from regard.errors import ConfigError
from regard.models.seq2seq import build_model
from regard.ops import triton
from regard.ops.layer_norm import LayerNorm
from regard.ops.reference_mode import reference_mode
from regard.runs.settings import Consistency, NoConsistency, RDrop, SimCut
from regard.training.objective import Objective, flatten_with_ignore_index
from tests_shared import OneModel, teaching

pytest.importorskip("triton")

from regard.ops.triton.consistency import consistency_loss
from regard.ops.triton.cross_entropy import cross_entropy
from regard.ops.triton.layer_norm import layer_norm

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
    monkeypatch.setattr("regard.ops.triton.layer_norm.PROGRAMS", 3)
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


def test_float64_is_not_halved() -> None:
    norm = LayerNorm(8, for_products=True).double()
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(torch.randn(2, 8, dtype=torch.float64)).dtype == torch.float64


def test_the_norm_takes_the_kernel_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _let_kernels_serve(monkeypatch)
    norm = LayerNorm(24).to(DEVICE)
    with torch.no_grad():
        norm.weight.copy_(drawn(24, seed=1))
        norm.bias.copy_(drawn(24, seed=2))
    given = [drawn(5, 24, scale=1e-3), norm.weight, norm.bias]  # so small that its ε counts
    ours = gradients(norm.train()(given[0]), given)
    assert len(asked) == 1
    theirs = gradients(norm.eval()(given[0]), given)
    assert len(asked) == 1
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("consistency", "teachers"),
    [(NoConsistency(), 0), (RDrop(), 0), (SimCut(cut=0.5), 0), (NoConsistency(), 1), (NoConsistency(), 2)],
    ids=["alone", "r-drop", "simcut", "a teacher", "teachers"],
)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_loss_by_the_kernel_is_the_loss(
    smoothing: float, consistency: Consistency, teachers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    settings = resolve(OneModel, {"model": {"kind": "recurrent", "embedding": 6, "dropout": 0.3}}, {})
    model, *others = (build_model(settings.model, 9, 9).to(DEVICE) for _ in range(1 + teachers))
    taught = teaching(*others) if others else None
    source, target = (pad(rows).to(torch.device(DEVICE)) for rows in ([[4, 5], [6]], [[5, 6, END], [7, END]]))
    batch = Batch(source, target, [0, 1], 5)
    parameters = list(model.parameters())

    def found() -> list[Tensor]:
        torch.manual_seed(0)
        loss = Objective(smoothing, consistency=consistency, distillation=taught)(model, batch)
        return [loss.detach(), *torch.autograd.grad(loss, parameters, materialize_grads=True)]

    monkeypatch.setattr("regard.training.objective._counted", flatten_with_ignore_index)
    theirs = found()
    asked = _let_kernels_serve(monkeypatch)
    for own, other in zip(found(), theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
    assert asked


def _let_kernels_serve(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Everywhere but in recurrent steps → the tensors for which that was asked."""
    asked: list[Tensor] = []
    monkeypatch.setattr("regard.ops.triton.can_serve", lambda x: asked.append(x) or True)
    return asked


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


Shares = tuple[float, float, float, float]


def in_words(left: Tensor, right: Tensor, tokens: Tensor, shares: Shares, smoothing: float) -> Tensor:
    """What two passes cost together, row by row."""
    z, w = left.float(), right.float()
    p, q = z.log_softmax(-1), w.log_softmax(-1)
    counts = tokens >= 0
    first, second = (
        nn.functional.cross_entropy(x, tokens, reduction="none", label_smoothing=smoothing) for x in (z, w)
    )
    there, back = (p.exp() * (p - q)).sum(-1) * counts, (q.exp() * (q - p)).sum(-1) * counts
    return sum(share * part for share, part in zip(shares, (first, second, there, back), strict=True))  # type: ignore[return-value]


@pytest.mark.parametrize("shares", [(0.5, 0.5, 0.7, 0.7), (1.0, 0.0, 3.0, 0.0), (0.2, 0.4, 0.6, 0.8)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "size"), [(1, 3), (5, 100), (4, 2048), (3, 4801)])
def test_two_passes_cost_what_they_do_in_words(rows: int, size: int, smoothing: float, shares: Shares) -> None:
    left, right = drawn(rows, size, scale=4.0), drawn(rows, size, seed=1, scale=4.0)
    tokens = torch.arange(rows, device=DEVICE) * 7919 % size
    tokens[0] = -100 if rows > 1 else tokens[0]
    ours = gradients(consistency_loss(left, right, tokens, shares, smoothing, -100), [left, right])
    theirs = gradients(in_words(left, right, tokens, shares, smoothing), [left, right])
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=2e-5)


def test_two_halved_passes_are_weighed_in_full() -> None:
    left, right = (drawn(3, 50, seed=seed, scale=20.0).detach().half().requires_grad_() for seed in (0, 1))
    tokens, shares = torch.tensor([0, 10, 49], device=DEVICE), (0.5, 0.5, 0.3, 0.2)
    ours = consistency_loss(left, right, tokens, shares, 0.1, -100)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, in_words(left, right, tokens, shares, 0.1), rtol=1e-5, atol=1e-5)
    assert [found.dtype for found in torch.autograd.grad(ours.sum(), [left, right])] == [torch.float16] * 2


def test_passes_that_find_the_same_impossible_agree() -> None:
    left, right = (
        torch.tensor([[first, -torch.inf, 1.5, -torch.inf]], device=DEVICE, requires_grad=True) for first in (0.5, 0.7)
    )
    ours = gradients(
        consistency_loss(left, right, torch.tensor([2], device=DEVICE), (1, 1, 1, 1), 0.0, -100), [left, right]
    )
    both = [x.detach()[:, ::2].requires_grad_() for x in (left, right)]
    theirs = gradients(in_words(*both, torch.tensor([1], device=DEVICE), (1, 1, 1, 1), 0.0), both)
    torch.testing.assert_close(ours[0], theirs[0])
    for own, other in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(own[:, ::2], other)
        assert not own[:, 1::2].any()


def test_passes_of_which_one_is_no_number_cost_none() -> None:
    left, right = drawn(1, 3), torch.tensor([[0.5, torch.nan, 1.5]], device=DEVICE)
    assert consistency_loss(left, right, torch.tensor([2], device=DEVICE), (1, 0, 1, 0), 0.0, -100).isnan().all()


def test_what_is_impossible_costs_nothing_where_labels_are_sharp() -> None:
    logits = torch.tensor([[0.5, -torch.inf, 1.5, -torch.inf]], device=DEVICE, requires_grad=True)
    tokens = torch.tensor([2], device=DEVICE)
    ours = gradients(cross_entropy(logits, tokens, 0.0, -100), [logits])
    theirs = gradients(nn.functional.cross_entropy(logits, tokens, reduction="none"), [logits])
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other)


def test_a_logit_that_is_no_number_makes_a_loss_that_is_none() -> None:
    logits = torch.tensor([[0.5, torch.nan, 1.5]], device=DEVICE)
    assert cross_entropy(logits, torch.tensor([2], device=DEVICE), 0.0, -100).isnan().all()


def test_second_derivatives_are_refused_with_the_remedy() -> None:
    x, weight, bias = drawn(2, 8), drawn(8, seed=1), drawn(8, seed=2)
    losses = cross_entropy(x, torch.tensor([1, 2], device=DEVICE), 0.1, -100)
    both = consistency_loss(x, x, torch.tensor([1, 2], device=DEVICE), (1, 1, 1, 1), 0.1, -100)
    for made in (losses, both, layer_norm(x, weight, bias, 1e-5, torch.float32)):
        with pytest.raises(ConfigError, match="plainly"):
            torch.autograd.grad(made.sum(), x, create_graph=True)


def test_a_kernel_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert triton.refusal(torch.ones(2)) == "it needs a GPU"
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.delenv("CC", raising=False)
    triton.triton_refusal.cache_clear()
    try:
        assert triton.triton_refusal() == "Triton needs a C compiler, and there is none"
    finally:
        triton.triton_refusal.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels serve on a GPU")
def test_on_a_gpu_kernels_serve_unless_the_plain_equations_are_asked_for() -> None:
    x = torch.ones(2, device="cuda")
    assert triton.is_usable(x)
    assert not triton.is_usable(x.double())
    with reference_mode():
        assert triton.refusal(x) == "the plain equations were asked for"
