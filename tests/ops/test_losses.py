"""Cross-entropy on a CPU: the analytic gradient agrees with the reference."""

import pytest
import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.ops.losses import IGNORE_INDEX, cross_entropy, reference_cross_entropy

TOKENS = torch.tensor([2, 0, IGNORE_INDEX, 4])


def loss_and_gradient(loss: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    (gradient,) = torch.autograd.grad(3 * loss, logits)
    return loss.detach(), gradient


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_cross_entropy_equals_the_reference(smoothing: float, scale: float) -> None:
    torch.manual_seed(0)
    logits = (scale * torch.randn(4, 5)).requires_grad_()
    actual = loss_and_gradient(cross_entropy(logits, TOKENS, smoothing), logits)
    wide = logits.detach().double().requires_grad_()
    expected = loss_and_gradient(reference_cross_entropy(wide, TOKENS, smoothing), wide)
    torch.testing.assert_close(actual, expected, check_dtype=False, rtol=1e-5, atol=1e-5)
    assert (actual[1][2] == 0).all()


def test_cross_entropy_without_smoothing_ignores_impossible_tokens() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    loss, gradient = loss_and_gradient(cross_entropy(logits, torch.tensor([1]), 0.0), logits)
    assert loss == pytest.approx(0.313262, abs=1e-5)  # log(1 + 1 / e)
    assert gradient[0].tolist() == pytest.approx([0.806825, -0.806825, 0.0], abs=1e-5)  # 3 / (1 + e)


def test_cross_entropy_of_nan_is_nan() -> None:
    assert cross_entropy(torch.tensor([[torch.nan, 1.0]]), torch.tensor([1]), 0.1).isnan()


def test_second_derivatives_of_cross_entropy_are_rejected() -> None:
    logits = torch.randn(4, 5, requires_grad=True)
    with pytest.raises(ConfigError, match="second derivatives"):
        torch.autograd.grad(cross_entropy(logits, TOKENS, 0.1), logits, create_graph=True)
