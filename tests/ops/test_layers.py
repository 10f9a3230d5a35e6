"""Dropout: the share of dropped elements, the mean, reproducibility from a seed, and evaluation mode."""

import pytest
import torch

from regard.ops.layers import Dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_the_given_share_and_preserves_the_mean(p: float) -> None:
    torch.manual_seed(0)
    output = Dropout(p)(torch.ones(1000, 1001))
    dropped = output == 0
    assert float(dropped.float().mean()) == pytest.approx(p, abs=2e-3)
    assert float(output.mean()) == pytest.approx(1, abs=1e-2)
    assert torch.unique(output[~dropped]).tolist() == pytest.approx([1 / (1 - p)], rel=1e-4)


def test_the_four_elements_of_a_random_number_are_independent() -> None:
    torch.manual_seed(0)
    mask = (Dropout(0.5)(torch.ones(400_000)) != 0).float().view(-1, 4)
    correlations = torch.corrcoef(mask.T) - torch.eye(4)
    assert float(correlations.abs().max()) < 0.01


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 7), (0, 4)])
def test_dropout_preserves_the_shape(shape: tuple[int, ...]) -> None:
    assert Dropout(0.3)(torch.ones(shape)).shape == shape


def test_the_same_seed_gives_the_same_mask() -> None:
    outputs = []
    for _ in range(2):
        torch.manual_seed(7)
        outputs.append(Dropout(0.4)(torch.ones(101)))
    assert torch.equal(*outputs)
    assert not torch.equal(outputs[0], Dropout(0.4)(torch.ones(101)))


def test_the_gradient_uses_the_mask_of_the_forward_pass() -> None:
    x = torch.ones(50, requires_grad=True)
    output = Dropout(0.5)(x)
    output.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, output.detach())


def test_dropout_is_the_identity_in_evaluation_mode() -> None:
    x = torch.randn(9)
    assert Dropout(0.9).eval()(x) is x
    assert Dropout(0.0)(x) is x
