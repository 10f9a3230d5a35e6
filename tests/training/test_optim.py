"""The learning rate as a function of the step, gradient clipping, weight decay, and agreement with AdamW of torch."""

import pytest
import torch
from torch import nn

from regard.runs.settings import TrainingSettings
from regard.training.optim import build_optimizer, clip_gradients, learning_rate


@pytest.mark.parametrize(
    ("decay", "middle"), [("none", 1.0), ("linear", 0.5), ("cosine", 0.5)], ids=["none", "linear", "cosine"]
)
def test_learning_rate_warms_up_to_its_peak_and_decays(decay: str, middle: float) -> None:
    settings = TrainingSettings.model_validate({"steps": 110, "warmup": 10, "learning_rate": 2.0, "decay": decay})
    assert learning_rate(1, settings) == pytest.approx(0.2)
    assert learning_rate(10, settings) == pytest.approx(2.0)
    assert learning_rate(60, settings) == pytest.approx(2.0 * middle)
    assert learning_rate(110, settings) == pytest.approx(2.0 if decay == "none" else 0.0)


def test_inverse_sqrt_decay_divides_by_the_square_root_of_the_step() -> None:
    settings = TrainingSettings(steps=1000, warmup=100, learning_rate=2.0, decay="inverse_sqrt")
    assert learning_rate(50, settings) == pytest.approx(1.0)
    assert learning_rate(100, settings) == pytest.approx(2.0)
    assert learning_rate(400, settings) == pytest.approx(1.0)


def test_plateau_decay_multiplies_by_the_factor_at_each_plateau() -> None:
    settings = TrainingSettings(warmup=0, learning_rate=2.0, decay="plateau", plateau_factor=0.1)
    assert [learning_rate(7, settings, reductions) for reductions in range(3)] == pytest.approx([2.0, 0.2, 0.02])


def test_clipping_scales_the_gradient_and_returns_its_norm() -> None:
    model = nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.tensor([[3.0, 4.0]])
    assert clip_gradients(model.parameters(), 1.0).item() == pytest.approx(5.0)
    assert model.weight.grad.flatten().tolist() == pytest.approx([0.6, 0.8], abs=1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_clipping_leaves_a_gradient_that_is_not_finite_unchanged(bad: float) -> None:
    model = nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.tensor([[3.0, bad]])
    assert not clip_gradients(model.parameters(), 1.0).isfinite()
    assert model.weight.grad[0, 0] == 3.0


def test_weight_decay_applies_to_matrices_but_not_to_vectors() -> None:
    model = nn.Linear(2, 3)
    groups = build_optimizer(model, TrainingSettings(weight_decay=0.5)).param_groups
    decays = {parameter.dim(): group["weight_decay"] for group in groups for parameter in group["params"]}
    assert decays == {2: 0.5, 1: 0.0}


def test_the_weights_after_a_step_are_those_of_adamw_of_torch() -> None:
    models = [nn.Linear(2, 3, dtype=torch.float64) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    settings = TrainingSettings(learning_rate=0.1, weight_decay=0.5, adam_beta2=0.98)
    ours = build_optimizer(models[0], settings)
    groups = [
        {"params": [models[1].weight], "weight_decay": 0.5},
        {"params": [models[1].bias], "weight_decay": 0.0},
    ]
    theirs = torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.98), fused=True)
    for model, optimizer in zip(models, (ours, theirs), strict=True):
        for step in range(3):
            optimizer.zero_grad()
            model(torch.tensor([[1.0, step]], dtype=torch.float64)).square().sum().backward()
            optimizer.step()
            assert torch.is_grad_enabled()
    for left, right in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(left, right)
