"""Selections: sparse ones by hand, sampled ones against what they estimate, exact ones against brute force."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from regard.attention.selections import Hard, HardMonotonic, StraightThrough, build_selection
from regard.attention.settings import Entmax15, Sparsemax


def everything(scores: Tensor) -> Tensor:
    return torch.ones_like(scores, dtype=torch.bool)


def test_sparsemax_by_hand() -> None:
    # τ = (1 + 0.6 − 1) / 2 = 0.3: weights 0.7 and 0.3, the third below the threshold.
    scores = torch.tensor([[[[1.0, 0.6, 0.1]]]])
    weights = build_selection(Sparsemax())(scores, everything(scores)).weights_BHTS
    assert weights.flatten().tolist() == pytest.approx([0.7, 0.3, 0.0])


def test_entmax_meets_its_condition() -> None:
    """a_j = [e_j / 2 − τ]₊² for one τ, and the weights sum to 1."""
    scores = torch.tensor([[[[1.3, 0.6, -0.2, -9.0]]]], dtype=torch.float64)
    weights = build_selection(Entmax15())(scores, everything(scores)).weights_BHTS.flatten()
    taken = weights > 0
    thresholds = scores.flatten()[taken] / 2 - weights[taken].sqrt()
    assert weights.sum() == pytest.approx(1.0)
    assert thresholds.max() - thresholds.min() < 1e-9
    assert (scores.flatten()[~taken] / 2 <= thresholds[0]).all()


@pytest.mark.parametrize("selection", [Hard(soft=0.0), StraightThrough()])
def test_one_position_is_sampled_in_training_and_the_likeliest_taken_at_test(selection: torch.nn.Module) -> None:
    torch.manual_seed(0)
    scores = torch.tensor([0.0, 1.0, 2.0, 9.0]).expand(20_000, 1, 1, 4)
    allowed = torch.tensor([True, True, True, False]).expand_as(scores)
    drawn = selection.train()(scores, allowed).weights_BHTS
    assert set(drawn.unique().tolist()) <= {0.0, 1.0} or torch.allclose(drawn, drawn.round(), atol=1e-6)
    expected = torch.tensor([0.0, 1.0, 2.0]).softmax(-1)
    assert drawn.mean((0, 1, 2)).tolist() == pytest.approx([*expected.tolist(), 0.0], abs=0.02)
    assert selection.eval()(scores, allowed).weights_BHTS[0].flatten().tolist() == [0.0, 0.0, 1.0, 0.0]


def test_half_of_the_steps_read_the_soft_context() -> None:
    torch.manual_seed(0)
    scores = torch.zeros(4000, 1, 1, 2)
    selected = Hard(soft=0.5).train()(scores, everything(scores))
    soft = selected.weights_BHTS.flatten(0, -2)[:, 0] == 0.5
    assert soft.float().mean() == pytest.approx(0.5, abs=0.03)
    assert selected.log_prob_BT is not None
    assert (selected.log_prob_BT.flatten()[soft] == 0).all()
    assert selected.log_prob_BT.flatten()[~soft].tolist() == pytest.approx([math.log(0.5)] * int((~soft).sum()))


def test_reinforce_estimates_the_exact_gradient() -> None:
    """E[∇ surrogate] = −∇ Σ_j a_j log p(y | j), whatever the baseline, within sampling error."""
    torch.manual_seed(0)
    samples = 200_000
    log_p = torch.tensor([-0.1, -2.0, -0.7], dtype=torch.float64)
    scores = torch.tensor([0.3, 0.9, -0.4], dtype=torch.float64, requires_grad=True)
    exact = torch.autograd.grad(-(scores.softmax(-1) * log_p).sum(), scores)[0]
    for baseline in (0.0, -1.0):
        hard = Hard(entropy=0.0, reward=1.0, soft=0.0).double().train()
        hard.baseline.fill_(baseline)
        many = scores.expand(samples, 1, 1, 3)
        selected = hard(many, everything(many))
        reward = (selected.weights_BHTS.detach() * log_p).sum((-1, 1))
        valid = torch.ones(samples, 1, dtype=torch.bool)
        loss = hard.surrogate(selected.log_prob_BT, selected.entropy_BT, reward, valid) / samples
        estimate = torch.autograd.grad(loss, scores)[0]
        torch.testing.assert_close(estimate, exact, atol=0.01, rtol=0.02)
        assert hard.baseline == pytest.approx(0.9 * baseline + 0.1 * float(reward.mean()), abs=1e-6)


def test_the_entropy_bonus_is_the_entropy() -> None:
    scores = torch.tensor([[[[0.0, 0.0, 0.0, 0.0]]]])
    hard = Hard(entropy=0.5, soft=1.0).train()
    selected = hard(scores, everything(scores))
    valid = torch.ones(1, 1, dtype=torch.bool)
    term = hard.surrogate(selected.log_prob_BT, selected.entropy_BT, torch.zeros(1, 1), valid)
    assert term.item() == pytest.approx(-0.5 * math.log(4))


def test_straight_through_passes_the_gradient_of_the_soft_sample() -> None:
    torch.manual_seed(0)
    scores = torch.randn(1, 1, 1, 4, requires_grad=True)
    weights = StraightThrough().train()(scores, everything(scores)).weights_BHTS
    assert weights.detach().flatten().sort().values.tolist() == pytest.approx([0, 0, 0, 1])
    (weights * torch.arange(4.0)).sum().backward()
    assert scores.grad is not None
    assert scores.grad.abs().sum() > 0


def monotonic_likelihood(scores_TS: Tensor, emission_TS: Tensor) -> float:
    """Σ over all alignments that never go back of Π p(a_t | a_{t−1}) p(y_t | a_t), by listing them."""
    steps, slots = scores_TS.shape
    total = 0.0
    for path in itertools.product(range(slots), repeat=steps):
        if list(path) != sorted(path):
            continue
        chance, before = 1.0, 0
        for step, slot in enumerate(path):
            reachable = scores_TS[step, before:].exp().sum()
            chance *= float(scores_TS[step, slot].exp() / reachable * emission_TS[step, slot])
            before = slot
        total += chance
    return total


@pytest.mark.parametrize(("steps", "slots"), [(1, 1), (3, 4), (4, 3), (2, 5)])
def test_hard_monotonic_sums_over_every_alignment_that_never_goes_back(steps: int, slots: int) -> None:
    torch.manual_seed(steps + slots)
    scores = torch.randn(steps, slots, dtype=torch.float64)
    emission = torch.rand(steps, slots, dtype=torch.float64)
    select = HardMonotonic()
    padded = torch.cat([scores, torch.full((steps, 2), 7.0, dtype=torch.float64)], dim=1)
    allowed = torch.arange(slots + 2) < slots
    belief, product = None, 1.0
    for step in range(steps):
        now = padded[step].view(1, 1, 1, -1)
        seen = allowed.view(1, 1, 1, -1)
        selected = select(now, seen) if belief is None else select.advance(now, seen, belief)
        weights = selected.weights_BHTS[0, 0, 0]
        assert weights.sum() == pytest.approx(1.0)
        assert (weights[slots:] == 0).all()
        said = float((weights[:slots] * emission[step]).sum())
        product *= said
        belief = torch.zeros(1, 1, slots + 2, dtype=torch.float64)
        belief[0, 0, :slots] = weights[:slots] * emission[step] / said
    assert product == pytest.approx(monotonic_likelihood(scores, emission))


def test_hard_monotonic_gradients_by_finite_differences() -> None:
    torch.manual_seed(0)
    scores = torch.randn(1, 1, 1, 4, dtype=torch.float64, requires_grad=True)
    belief = torch.rand(1, 1, 4, dtype=torch.float64).softmax(-1).requires_grad_()
    allowed = torch.tensor([True, True, True, False]).view(1, 1, 1, 4)
    belief = (belief * allowed[0]).detach().requires_grad_()
    select = HardMonotonic()
    assert torch.autograd.gradcheck(lambda e: select.advance(e, allowed, belief).weights_BHTS, (scores,))
