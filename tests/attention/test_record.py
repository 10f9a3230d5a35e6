"""Roles of attentions, and recordings that know them."""

import pytest
import torch

import regard
from regard.attention.record import Role, attention_roles


@pytest.mark.parametrize("role", ["encoder-self", "decoder-self", "cross"])
def test_a_recording_has_the_declared_roles(role: Role) -> None:
    model = torch.nn.ModuleDict(
        {"single": regard.Attention(4, 4, role=role), "heads": regard.MultiHeadAttention(4, heads=2, role=role)}
    )
    with regard.record(model) as recording:
        model["heads"](torch.randn(1, 3, 4))
    assert recording.roles == {"single": role, "heads.attention": role} == attention_roles(model)
    assert list(recording.weights) == ["heads.attention"]
    with regard.record(model, chosen=lambda name: name == "single") as recording:
        model["heads"](torch.randn(1, 3, 4))
    assert recording.roles == {"single": role}


def test_the_role_is_cross_by_default() -> None:
    assert regard.Attention(4, 4).role == "cross"
    assert regard.Attention.named("luong-dot", 4, 4, role="decoder-self").role == "decoder-self"
    assert regard.MultiHeadAttention(4, heads=2).attention.role == "cross"


def test_an_unknown_role_is_rejected_with_the_known_ones() -> None:
    message = "'encoder' is not a valid role. Available: encoder-self, decoder-self, cross."
    for build in (regard.Attention, regard.MultiHeadAttention):
        with pytest.raises(regard.ConfigError, match=message):
            build(4, 4, role="encoder")  # type: ignore[arg-type]
