"""Dropout: the share that is dropped, the mean that stays, the same draws from the same seed, and nothing at test."""

import pytest
import torch

from regard.ops.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_share_is_dropped_and_the_mean_stays(p: float) -> None:
    torch.manual_seed(0)
    found = Dropout(p)(torch.ones(1000, 1001))
    dropped = found == 0
    assert float(dropped.float().mean()) == pytest.approx(p, abs=2e-3)
    assert float(found.mean()) == pytest.approx(1, abs=1e-2)
    assert torch.unique(found[~dropped]).tolist() == pytest.approx([1 / (1 - p)], rel=1e-4)


def test_the_four_places_of_a_draw_are_independent() -> None:
    torch.manual_seed(0)
    kept = (Dropout(0.5)(torch.ones(400_000)) != 0).float().view(-1, 4)
    correlations = torch.corrcoef(kept.T) - torch.eye(4)
    assert float(correlations.abs().max()) < 0.01


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 7), (0, 4)])
def test_any_shape_is_kept(shape: tuple[int, ...]) -> None:
    assert Dropout(0.3)(torch.ones(shape)).shape == shape


def test_the_same_seed_draws_the_same() -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(7)
        drawn.append(Dropout(0.4)(torch.ones(101)))
    assert torch.equal(*drawn)
    assert not torch.equal(drawn[0], Dropout(0.4)(torch.ones(101)))


def test_the_gradient_goes_where_the_values_went() -> None:
    x = torch.ones(50, requires_grad=True)
    found = Dropout(0.5)(x)
    found.sum().backward()
    assert torch.equal(x.grad, found.detach())


def test_at_test_nothing_is_dropped() -> None:
    x = torch.randn(9)
    assert Dropout(0.9).eval()(x) is x
    assert Dropout(0.0)(x) is x
