"""Selections: sparse ones equal hand-computed values, sampled ones estimate the exact gradient, exact ones equal brute
force.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor

from regard.attention.selections import Hard, HardMonotonic, StraightThrough
from regard.attention.settings import Selection as SelectionSettings


def all_visible(scores: Tensor) -> Tensor:
    return torch.ones_like(scores, dtype=torch.bool)


def test_sparsemax_has_hand_computed_values() -> None:
    # τ = (1 + 0.6 − 1) / 2 = 0.3: weights 0.7 and 0.3, the third below the threshold.
    scores = torch.tensor([[[[1.0, 0.6, 0.1]]]])
    weights = SelectionSettings.parse("sparsemax").build_part()(scores, all_visible(scores)).weights_BHTS
    assert weights.flatten().tolist() == pytest.approx([0.7, 0.3, 0.0])


def test_entmax_satisfies_its_optimality_condition() -> None:
    """a_j = [e_j / 2 − τ]₊² for one τ, and the weights sum to 1."""
    scores = torch.tensor([[[[1.3, 0.6, -0.2, -9.0]]]], dtype=torch.float64)
    weights = SelectionSettings.parse("entmax15").build_part()(scores, all_visible(scores)).weights_BHTS.flatten()
    support = weights > 0
    thresholds = scores.flatten()[support] / 2 - weights[support].sqrt()
    assert weights.sum() == pytest.approx(1.0)
    assert thresholds.max() - thresholds.min() < 1e-9
    assert (scores.flatten()[~support] / 2 <= thresholds[0]).all()


@pytest.mark.parametrize("selection", [Hard(soft=0.0), StraightThrough()])
def test_hard_selections_sample_in_training_and_take_the_most_likely_position_in_evaluation(
    selection: torch.nn.Module,
) -> None:
    torch.manual_seed(0)
    scores = torch.tensor([0.0, 1.0, 2.0, 9.0]).expand(20_000, 1, 1, 4)
    allowed = torch.tensor([True, True, True, False]).expand_as(scores)
    samples = selection.train()(scores, allowed).weights_BHTS
    assert set(samples.unique().tolist()) <= {0.0, 1.0} or torch.allclose(samples, samples.round(), atol=1e-6)
    expected = torch.tensor([0.0, 1.0, 2.0]).softmax(-1)
    assert samples.mean((0, 1, 2)).tolist() == pytest.approx([*expected.tolist(), 0.0], abs=0.02)
    assert selection.eval()(scores, allowed).weights_BHTS[0].flatten().tolist() == [0.0, 0.0, 1.0, 0.0]


def test_half_of_the_steps_use_the_soft_context() -> None:
    torch.manual_seed(0)
    scores = torch.zeros(4000, 1, 1, 2)
    selected = Hard(soft=0.5).train()(scores, all_visible(scores))
    soft = selected.weights_BHTS.flatten(0, -2)[:, 0] == 0.5
    assert soft.float().mean() == pytest.approx(0.5, abs=0.03)
    assert selected.sample is not None
    assert (selected.sample.log_prob_BT.flatten()[soft] == 0).all()
    assert selected.sample.log_prob_BT.flatten()[~soft].tolist() == pytest.approx([math.log(0.5)] * int((~soft).sum()))


@pytest.mark.parametrize("baseline", [0.0, -1.0])
def test_reinforce_estimates_the_exact_gradient(baseline: float) -> None:
    """E[∇ surrogate] = −∇ Σ_j a_j log p(y | j) for any baseline, within sampling error."""
    torch.manual_seed(0)
    samples = 200_000
    log_p = torch.tensor([-0.1, -2.0, -0.7], dtype=torch.float64)
    scores = torch.tensor([0.3, 0.9, -0.4], dtype=torch.float64, requires_grad=True)
    exact = torch.autograd.grad(-(scores.softmax(-1) * log_p).sum(), scores)[0]
    hard = Hard(entropy=0.0, reward=1.0, soft=0.0).double().train()
    hard.baseline.fill_(baseline)
    expanded = scores.expand(samples, 1, 1, 3)
    selected = hard(expanded, all_visible(expanded))
    reward = (selected.weights_BHTS.detach() * log_p).sum((-1, 1))
    valid = torch.ones(samples, 1, dtype=torch.bool)
    loss = hard.surrogate(selected.sample.log_prob_BT, selected.sample.entropy_BT, reward, valid) / samples
    estimate = torch.autograd.grad(loss, scores)[0]
    torch.testing.assert_close(estimate, exact, atol=0.01, rtol=0.02)
    assert hard.baseline == pytest.approx(0.9 * baseline + 0.1 * float(reward.mean()), abs=1e-6)


def test_entropy_bonus_is_the_weighted_entropy() -> None:
    scores = torch.tensor([[[[0.0, 0.0, 0.0, 0.0]]]])
    hard = Hard(entropy=0.5, soft=1.0).train()
    selected = hard(scores, all_visible(scores))
    valid = torch.ones(1, 1, dtype=torch.bool)
    term = hard.surrogate(selected.sample.log_prob_BT, selected.sample.entropy_BT, torch.zeros(1, 1), valid)
    assert term.item() == pytest.approx(-0.5 * math.log(4))


def test_straight_through_passes_the_gradient_of_the_soft_sample() -> None:
    torch.manual_seed(0)
    scores = torch.randn(1, 1, 1, 4, requires_grad=True)
    weights = StraightThrough().train()(scores, all_visible(scores)).weights_BHTS
    assert weights.detach().flatten().sort().values.tolist() == pytest.approx([0, 0, 0, 1])
    (weights * torch.arange(4.0)).sum().backward()
    assert scores.grad is not None
    assert scores.grad.abs().sum() > 0


def monotonic_likelihood(scores_TS: Tensor, emission_TS: Tensor) -> float:
    """Sum Π p(a_t | a_{t−1}) p(y_t | a_t) over all monotonic alignments by enumeration."""
    steps, slots = scores_TS.shape
    total = 0.0
    for path in itertools.product(range(slots), repeat=steps):
        if list(path) != sorted(path):
            continue
        probability, previous = 1.0, 0
        for step, slot in enumerate(path):
            reachable = scores_TS[step, previous:].exp().sum()
            probability *= float(scores_TS[step, slot].exp() / reachable * emission_TS[step, slot])
            previous = slot
        total += probability
    return total


@pytest.mark.parametrize(("steps", "slots"), [(1, 1), (3, 4), (4, 3), (2, 5)])
def test_hard_monotonic_sums_over_all_monotonic_alignments(steps: int, slots: int) -> None:
    torch.manual_seed(steps + slots)
    scores = torch.randn(steps, slots, dtype=torch.float64)
    emission = torch.rand(steps, slots, dtype=torch.float64)
    select = HardMonotonic()
    padded = torch.cat([scores, torch.full((steps, 2), 7.0, dtype=torch.float64)], dim=1)
    allowed = torch.arange(slots + 2) < slots
    belief, product = None, 1.0
    for step in range(steps):
        step_scores = padded[step].view(1, 1, 1, -1)
        visible = allowed.view(1, 1, 1, -1)
        selected = select(step_scores, visible, belief)
        weights = selected.weights_BHTS[0, 0, 0]
        assert weights.sum() == pytest.approx(1.0)
        assert (weights[slots:] == 0).all()
        likelihood = float((weights[:slots] * emission[step]).sum())
        product *= likelihood
        belief = torch.zeros(1, 1, slots + 2, dtype=torch.float64)
        belief[0, 0, :slots] = weights[:slots] * emission[step] / likelihood
    assert product == pytest.approx(monotonic_likelihood(scores, emission))


def test_hard_monotonic_gradients_equal_finite_differences() -> None:
    torch.manual_seed(0)
    scores = torch.randn(1, 1, 1, 4, dtype=torch.float64, requires_grad=True)
    belief = torch.rand(1, 1, 4, dtype=torch.float64).softmax(-1).requires_grad_()
    allowed = torch.tensor([True, True, True, False]).view(1, 1, 1, 4)
    belief = (belief * allowed[0]).detach().requires_grad_()
    select = HardMonotonic()
    assert torch.autograd.gradcheck(lambda e: select(e, allowed, belief).weights_BHTS, (scores,))
