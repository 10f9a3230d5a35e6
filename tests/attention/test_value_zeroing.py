"""Value zeroing: the weights stay the same, and the zeroed slots do not contribute to the context."""

import pytest
import torch

import regard
from regard.attention.interventions import ZeroValues, intervene


@pytest.mark.parametrize("score", ["additive", "scaled_dot", "projected"])
@pytest.mark.parametrize("heads", [1, 2])
def test_a_zeroed_slot_does_not_contribute(score: str, heads: int) -> None:
    torch.manual_seed(0)
    attention = regard.Attention(8, 8, score=score, heads=heads)
    query, memory = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    context, weights = attention(query, memory)
    assert weights is not None
    values = attention.score.values(memory)
    zeroed = torch.zeros(2, 4, dtype=torch.bool)
    zeroed[0, 1] = zeroed[1, 3] = True
    with intervene({attention: [ZeroValues(zeroed)]}):
        changed, same_weights = attention(query, memory)
        fused, _ = attention(query, memory, weights=False)
    weights_BHTS = weights if heads > 1 else weights.unsqueeze(1)
    kept_BHTS = weights_BHTS.masked_fill(zeroed[:, None, None], 0.0)
    expected = (kept_BHTS @ values).transpose(1, 2).flatten(-2)
    torch.testing.assert_close(same_weights, weights)
    torch.testing.assert_close(changed, expected)
    torch.testing.assert_close(fused, expected)
    torch.testing.assert_close(attention(query, memory)[0], context)


def test_other_attentions_and_other_numbers_of_slots_do_not_change() -> None:
    torch.manual_seed(0)
    attention, other = regard.Attention(8, 8), regard.Attention(8, 8)
    query, memory = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    expected = [module(query, memory)[0] for module in (attention, other)]
    with intervene({attention: [ZeroValues(torch.ones(2, 5, dtype=torch.bool))]}):
        assert torch.equal(attention(query, memory)[0], expected[0])
    with intervene({attention: [ZeroValues(torch.ones(2, 4, dtype=torch.bool))]}):
        assert not attention(query, memory)[0].any()
        assert torch.equal(other(query, memory)[0], expected[1])
