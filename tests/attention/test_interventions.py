"""Interventions on one attention: computed by hand, and properties of every mechanism.

B rows, T queries, S memory slots, D width, H heads.
"""

from threading import Thread

import example_parts  # noqa: F401 - registers parts, which must satisfy the same properties
import pytest
import torch
from torch import Tensor

import regard
from regard.attention.attention import fused_unsupported_reason
from regard.attention.interventions import (
    AblateHead,
    Intervention,
    MaskKeys,
    SetRow,
    UniformRow,
    intervene,
)
from regard.ops.hooks import are_hooks_active, hooks_of

NAMES = [mechanism.name for mechanism in regard.mechanisms()]
B, T, S, D = 2, 4, 6, 8


@pytest.fixture(params=NAMES)
def attention(request: pytest.FixtureRequest) -> regard.Attention:
    torch.manual_seed(0)
    return regard.Attention.named(request.param, query_size=D, key_size=D).double().eval()


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    query, keys, values = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((B, T, D), (B, S, D), (B, S, D))
    )
    return query, keys, values


def attend(attention: regard.Attention, *edits: Intervention) -> tuple[Tensor, Tensor]:
    """Return the context (B, H, T, D) and the weights (B, H, T, S)."""
    with intervene({attention: edits}):
        context, weights = attention(*tensors())
    return split(attention, context), weights.view(B, attention.heads, T, S)


def split(attention: regard.Attention, context_BTD: Tensor) -> Tensor:
    return context_BTD.view(B, T, attention.heads, -1).transpose(1, 2)


def values_of(attention: regard.Attention) -> Tensor:
    projected: Tensor = attention.score.values(tensors()[2])
    return projected


def test_one_head_by_hand() -> None:
    attention = regard.Attention(1, 1, score="dot")
    query, keys, values = (torch.tensor(x).view(1, -1, 1) for x in ([1.0, 2.0], [0.0, 1.0], [10.0, 20.0]))

    def context(*edits: Intervention) -> list[float]:
        with intervene({attention: edits}):
            result: list[float] = attention(query, keys, values)[0].flatten().tolist()
            return result

    # softmax(0, 1) = (1, e) / (1 + e), softmax(0, 2) = (1, e²) / (1 + e²)
    unedited = [10 + 10 * 0.7310586, 10 + 10 * 0.8807971]
    assert context() == pytest.approx(unedited)
    assert context(SetRow(attention="-", step=0, weights=(3, 1))) == pytest.approx([12.5, unedited[1]])
    assert context(SetRow(attention="-", weights=(0, 2))) == pytest.approx([20, 20])
    assert context(UniformRow(attention="-", step=1)) == pytest.approx([unedited[0], 15])
    assert context(MaskKeys(attention="-", keys=(1,))) == pytest.approx([10, 10])
    assert context(AblateHead(attention="-")) == [0, 0]
    # Masks act first, so that uniform weights skip masked keys. The last of several rows is used.
    assert context(UniformRow(attention="-"), MaskKeys(attention="-", step=0, keys=(0,))) == pytest.approx([20, 15])
    assert context(SetRow(attention="-", weights=(1, 0)), SetRow(attention="-", weights=(0, 1))) == pytest.approx(
        [20, 20]
    )


def test_a_row_of_weights_is_used_for_the_context(attention: regard.Attention) -> None:
    row = torch.tensor([0.1, 0.0, 0.4, 0.2, 0.0, 0.3], dtype=torch.float64)
    context, weights = attend(attention, SetRow(attention="-", weights=tuple((5 * row).tolist())))
    torch.testing.assert_close(weights, row.expand_as(weights))
    torch.testing.assert_close(context, (row @ values_of(attention)).unsqueeze(2).expand_as(context))


def test_uniform_weights_cover_the_visible_slots(attention: regard.Attention) -> None:
    with regard.record(attention, queries=True) as recording:
        attention(*tensors())
    visible_BTS = torch.cat(recording.inputs[""]["mask"], dim=1).double()
    expected = (visible_BTS / visible_BTS.sum(-1, keepdim=True)).unsqueeze(1)
    context, weights = attend(attention, UniformRow(attention="-"))
    torch.testing.assert_close(weights, expected.expand_as(weights))
    torch.testing.assert_close(context, weights @ values_of(attention))


def test_masked_keys_are_those_of_a_mask(attention: regard.Attention) -> None:
    allowed = torch.ones(B, T, S, dtype=torch.bool)
    allowed[:, :, [0, 3]] = False
    # Slots that no query sees count as padding for some scopes: one query sees all.
    allowed[:, -1] = True
    context, weights = attention(*tensors(), allowed=allowed)
    edits = [MaskKeys(attention="-", step=step, keys=(0, 3)) for step in range(T - 1)]
    edited_context, edited_weights = attend(attention, *edits)
    torch.testing.assert_close(edited_weights, weights.view_as(edited_weights))
    torch.testing.assert_close(edited_context, split(attention, context))
    assert (edited_weights[:, :, :-1, [0, 3]] == 0).all()


def test_a_query_whose_keys_are_all_masked_reads_nothing(attention: regard.Attention) -> None:
    context, weights = attend(attention, MaskKeys(attention="-", step=1, keys=tuple(range(S))))
    assert (weights[:, :, 1] == 0).all()
    assert (context[:, :, 1] == 0).all()
    assert torch.isfinite(context).all()


def test_an_ablated_attention_returns_zero_and_keeps_its_weights(attention: regard.Attention) -> None:
    before, after = attend(attention), attend(attention, AblateHead(attention="-"))
    assert (after[0] == 0).all()
    assert torch.equal(before[1], after[1])


@pytest.mark.parametrize(
    "edit",
    [
        SetRow(attention="-", step=2, weights=(1,) * S),
        UniformRow(attention="-", step=2),
        MaskKeys(attention="-", step=2, keys=(1,)),
    ],
    ids=lambda edit: edit.kind,
)
def test_earlier_queries_do_not_change(attention: regard.Attention, edit: Intervention) -> None:
    before, after = attend(attention), attend(attention, edit)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[:, :, :2], new[:, :, :2])
    if not attention.stepwise:
        assert torch.equal(before[0][:, :, 3:], after[0][:, :, 3:])


@pytest.mark.parametrize(
    "edit", [SetRow(attention="-", head=1, weights=(1, 0, 0, 0, 0, 0)), AblateHead(attention="-", head=1)]
)
def test_other_heads_do_not_change(edit: Intervention) -> None:
    attention = regard.Attention(D, D, score="scaled_dot", heads=2).double().eval()
    before, after = attend(attention), attend(attention, edit)
    assert torch.equal(before[0][:, 0], after[0][:, 0])
    assert not torch.equal(before[0][:, 1], after[0][:, 1])


def test_recorded_weights_are_those_that_are_used(attention: regard.Attention) -> None:
    with (
        intervene({attention: [SetRow(attention="-", step=1, weights=(0, 0, 1))]}),
        regard.record(attention) as recorded,
    ):
        attention(*tensors(), weights=False)
    weights = recorded.weights[""].view(B, attention.heads, T, S)
    assert torch.equal(weights[:, :, 1], torch.eye(S, dtype=weights.dtype)[2].expand(B, attention.heads, S))


def test_the_fused_path_is_not_used_and_gives_the_reason() -> None:
    attention = regard.Attention(D, D, score="dot")
    assert attention.fused
    with intervene({attention: [UniformRow(attention="-")]}):
        assert not attention.fused
        assert regard.Attention(D, D, score="dot").fused
    reason = fused_unsupported_reason(attention.score, attention.scope, attention.select, is_changed=True)
    assert reason is not None
    assert "intervention" in reason


def test_interventions_end_with_the_block_and_do_not_reach_other_threads() -> None:
    attention = regard.Attention(D, D, score="dot")
    seen = []
    with intervene({attention: [UniformRow(attention="-")]}):
        assert are_hooks_active()
        thread = Thread(target=lambda: seen.append(list(hooks_of(attention))))
        thread.start()
        thread.join()
    assert seen == [[]]
    assert not are_hooks_active()
    with intervene({}):
        assert not are_hooks_active()
