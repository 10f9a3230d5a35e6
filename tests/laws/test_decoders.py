"""Properties of every model, with every attention mechanism and every recurrent cell.

B rows, T target steps, S source positions, V vocabulary.
"""

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import example_parts  # noqa: F401 - registers parts, which must satisfy the same properties
import pytest
import torch
from torch import Tensor

import regard
from regard.config import resolve
from regard.data.batching import pad
from regard.models.contracts import Tokens, reorder
from regard.models.recurrent import FixedDecoder
from regard.models.seq2seq import Seq2Seq, build_model
from regard.ops import int8
from regard.recurrent.settings import VARIANTS
from tests_shared import ModelOnly, thin

V = 11
# A dot product needs a query as wide as the memory: 2 × 8 and 16.
RECURRENT = {
    "kind": "recurrent",
    "embedding": 6,
    "dropout": 0.3,
    "encoder": {"hidden": 8},
    "decoder": {"hidden": 16},
}
FIXED = {**RECURRENT, "kind": "fixed"}
TRANSFORMER = {"kind": "transformer", "size": 8, "heads": 2, "layers": 2, "feedforward": 12, "dropout": 0.3}

CELLS: list[dict[str, Any]] = [
    *({"cell": "lstm", "variant": variant} for variant in VARIANTS),
    {"cell": "lstm"},
    {"cell": "rnn"},
    {"cell": {"kind": "gru", "reset": "before"}},
    {"cell": "lstm", "layer_norm": True, "residual": True},
    {"cell": "gru", "variational": True, "dropout": 0.5},
    {"cell": "lstmn"},
    {"cell": {"kind": "lstmn", "score": "general"}, "variational": True, "dropout": 0.5, "residual": True},
    {"cell": "mgu"},
    {"cell": "mgu", "variational": True, "dropout": 0.5},
]
ORDERS: list[dict[str, Any]] = [
    {"order": "luong"},
    {"order": "luong", "input_feeding": False},
    {"order": "simple", "cell": "rnn"},
    {"order": "conditional"},
    {"order": "conditional", "cell": "lstm", "layers": 2, "residual": True, "variational": True, "dropout": 0.5},
]
INTRA: list[dict[str, Any]] = [
    {"intra_attention": "general"},
    {"intra_attention": "additive", "order": "luong"},
    {"intra_attention": "projected", "order": "luong", "input_feeding": False},
    {"intra_attention": "location", "order": "conditional"},
]
SCORES = ["dot", "general", "additive", "concat", "cosine", "location", "projected"]
SELF_SCORES = ["dot", "concat", "cosine", "location"]
LSTMN: list[dict[str, Any]] = [
    {"decoder.order": "luong", "encoder.bidirectional": False, "encoder.reverse": True},
    {"decoder.fusion": "deep"},
    {
        "decoder.fusion": "deep",
        "decoder.layers": 2,
        "decoder.gate": True,
        "attention": "luong-dot",
        "encoder.layers": 2,
    },
    {"decoder.fusion": "deep", "decoder.copy_source": True, "decoder.intra_attention": "dot", "encoder.reverse": True},
    {"decoder.fusion": "deep", "attention": "show-attend-tell-hard"},
]
TRANSFORMERS: list[dict[str, Any]] = [
    {},
    {"norm": "pre", "tied": "all"},
    {"positions": "learned", "activation": "gelu", "tied": "none"},
    {"positions": "rotary", "normalization": "rms", "activation": "swiglu", "norm": "pre", "decoder_layers": 1},
    *({"encoder_score": score, "self_score": score, "cross_score": score} for score in SCORES),
    {"cross_score": "location_aware"},
]

ENCODERS: dict[str, dict[str, Any]] = {
    "recurrent": {"kind": "recurrent", "hidden": 5},
    "transformer": {"kind": "transformer", "size": 10, "heads": 2, "layers": 1, "feedforward": 12},
    "registered": {"kind": "convolutional", "channels": 6},
}


def configurations() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every mechanism with one and two layers, and in Luong's order; every cell with two layers; every model without
    attention; the Transformer with every option and score.
    """
    for mechanism in regard.mechanisms():
        for layers in (1, 2):
            changes = {"encoder.layers": layers, "decoder.layers": layers, "attention": mechanism.name}
            yield f"{mechanism.name}-{layers}", RECURRENT, changes
        yield f"luong {mechanism.name}", RECURRENT, {"decoder.order": "luong", "attention": mechanism.name}
    for options in CELLS:
        changes = {f"{side}.{key}": value for side in ("encoder", "decoder") for key, value in options.items()}
        changes |= {"encoder.layers": 2, "decoder.layers": 2, "encoder.initial_state": "learned"}
        yield " ".join(map(str, options.values())), RECURRENT, changes
    for options in ORDERS:
        changes = {f"decoder.{key}": value for key, value in options.items()}
        yield f"{options}", RECURRENT, {**changes, "encoder.reverse": True}
        yield f"copy {options}", RECURRENT, {**changes, "decoder.copy_source": True}
        yield f"gate {options}", RECURRENT, {**changes, "decoder.gate": True, "decoder.doubly_stochastic": 1.0}
    for options in INTRA:
        yield f"{options}", RECURRENT, {f"decoder.{key}": value for key, value in options.items()}
    for score in SELF_SCORES:
        yield (
            f"lstmn {score}",
            {**RECURRENT, "kind": "lstmn"},
            {"encoder.cell.score": score, "decoder.cell.score": score},
        )
    for options in LSTMN:
        yield f"lstmn {options}", {**RECURRENT, "kind": "lstmn"}, options
    for attention in ("bahdanau", "exact-hard", "hard-monotonic", "show-attend-tell-hard", "straight-through"):
        gated = {"decoder.gate": True, "decoder.cell": "lstm", "decoder.doubly_stochastic": 1.0}
        yield f"gate {attention}", RECURRENT, {**gated, "attention": attention}
    yield "copy bahdanau", RECURRENT, {"decoder.copy_source": True, "attention.heads": 2}
    for context in ("initial", "every_step"):
        for summary in ("last", "mean", "max"):
            yield f"fixed {context} {summary}", FIXED, {"context": context, "encoder.summary": summary}
    for options in TRANSFORMERS:
        yield f"transformer {options}", TRANSFORMER, options
    for name, encoder in ENCODERS.items():
        yield f"{name} encoder, recurrent decoder", {**RECURRENT, "encoder": encoder}, {}
        yield f"{name} encoder, plain decoder", {"kind": "plain", "encoder": encoder, "embedding": 6}, {}
        yield f"{name} encoder, transformer decoder", {**TRANSFORMER, "encoder": encoder}, {}


MODELS = {name: (base, changes) for name, base, changes in configurations()}


@cache
def build(name: str) -> Seq2Seq:
    torch.manual_seed(0)
    base, changes = MODELS[name]
    settings = resolve(ModelOnly, {"model": base}, {f"model.{key}": value for key, value in changes.items()})
    return build_model(settings.model, V, V).double().eval()


@pytest.fixture(params=thin(MODELS, every=4))
def model(request: pytest.FixtureRequest) -> Seq2Seq:
    torch.manual_seed(0)
    return copy.deepcopy(build(request.param))


SOURCE = pad([[4, 5, 6, 7, 8], [9, 10], [], [4, 4, 6]])
TOKENS = torch.tensor([[2, 5, 6, 7], [2, 8, 0, 0], [2, 4, 9, 0], [2, 10, 10, 4]])


def logits(model: Seq2Seq) -> Tensor:
    logits_BTV: Tensor = model(SOURCE, TOKENS).logits_BTV
    return logits_BTV


def test_forward_equals_chained_steps(model: Seq2Seq) -> None:
    memory = model.encoder(SOURCE)
    expected = model.decoder(TOKENS, memory).logits_BTV
    keys, state = model.decoder.begin(memory)
    for step in range(TOKENS.shape[1]):
        logits, state = model.decoder.step(TOKENS[:, step], state, keys)
        torch.testing.assert_close(logits, expected[:, step])


def test_a_row_gives_the_same_logits_alone_and_in_a_batch(model: Seq2Seq) -> None:
    batched = logits(model)
    assert torch.isfinite(batched).all()
    for row, length in enumerate(SOURCE.lengths_B.tolist()):
        alone = Tokens(SOURCE.tokens_BT[row : row + 1, : max(1, length)], SOURCE.lengths_B[row : row + 1])
        torch.testing.assert_close(model(alone, TOKENS[row : row + 1]).logits_BTV, batched[row : row + 1])


@torch.inference_mode()
def test_int8_changes_the_logits_by_rounding_only(model: Seq2Seq, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="pip install 'regard[export]'")
    monkeypatch.setattr(int8, "MIN_SIZE", 1)
    expected = logits(model.float())
    int8.quantize_weights(model)
    error = logits(model) - expected
    assert 0 < float(error.norm() / expected.norm()) < 0.05


def test_tokens_in_the_padding_have_no_effect(model: Seq2Seq) -> None:
    changed = torch.where(SOURCE.valid_BT, SOURCE.tokens_BT, V - 1)
    assert torch.equal(logits(model), model(Tokens(changed, SOURCE.lengths_B), TOKENS).logits_BTV)


def test_masked_positions_have_weight_zero(model: Seq2Seq) -> None:
    with regard.record(model) as trace:
        logits(model)
    for name, weights in trace.weights.items():
        if trace.roles[name] == "decoder-self":  # masked self-attention of the target: no weight on future positions
            assert (weights.triu(1) == 0).all()
            continue
        assert weights.shape[-1] == 5
        weights_BXS = weights.reshape(4, -1, 5)
        assert (weights_BXS.transpose(1, 2)[~SOURCE.valid_BT] == 0).all()
    assert ("cross" in trace.roles.values()) == (not isinstance(model.decoder, FixedDecoder))


def test_reordering_then_stepping_equals_stepping_then_reordering(model: Seq2Seq) -> None:
    rows = torch.tensor([3, 0, 0, 1])
    memory = model.encoder(SOURCE)
    keys, state = model.decoder.begin(memory)
    _, state = model.decoder.step(TOKENS[:, 0], state, keys)
    logits, after = model.decoder.step(TOKENS[:, 1], state, keys)
    reordered_keys, _ = model.decoder.begin(reorder(memory, rows))
    reordered_logits, reordered_after = model.decoder.step(TOKENS[rows, 1], reorder(state, rows), reordered_keys)
    torch.testing.assert_close(reordered_logits, logits[rows])
    last, _ = model.decoder.step(TOKENS[:, 2], after, keys)
    reordered_last, _ = model.decoder.step(TOKENS[rows, 2], reordered_after, reordered_keys)
    torch.testing.assert_close(reordered_last, last[rows])


def test_future_tokens_have_no_effect(model: Seq2Seq) -> None:
    changed = TOKENS.clone()
    changed[:, 2:] = 3
    before, after = logits(model), model(SOURCE, changed).logits_BTV
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.equal(before[:, 2:], after[:, 2:])


def test_gradients_reach_every_parameter(model: Seq2Seq) -> None:
    decoded = model.train()(SOURCE, TOKENS)
    loss = decoded.logits_BTV.square().sum()
    for term in decoded.loss_terms:
        loss = loss + term(decoded.logits_BTV[..., 0], torch.ones_like(TOKENS, dtype=torch.bool))
    loss.backward()
    without_gradient = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert without_gradient == []


def test_dropout_is_applied_only_in_training(model: Seq2Seq) -> None:
    assert torch.equal(logits(model), logits(model))
    model.train()
    assert not torch.equal(logits(model), logits(model))


def test_hypotheses_share_the_keys_of_their_sentence(model: Seq2Seq) -> None:
    """Two rows of state for each row of keys give the same logits as repeated keys."""
    memory = model.encoder(SOURCE)
    twice = torch.arange(4).repeat_interleave(2)
    tokens = torch.tensor([4, 5, 6, 7, 8, 9, 10, 4])
    keys, state = model.decoder.begin(memory)
    repeated_keys, repeated_state = model.decoder.begin(reorder(memory, twice))
    state = reorder(state, twice)
    for _ in range(3):
        logits, state = model.decoder.step(tokens, state, keys)
        expected, repeated_state = model.decoder.step(tokens, repeated_state, repeated_keys)
        torch.testing.assert_close(logits, expected)
        tokens = tokens.roll(1)


def test_reordering_by_blocks_equals_reordering_by_rows(model: Seq2Seq) -> None:
    """The optimizations of a state for rows that stay in their block, and for selected blocks, change nothing."""
    memory = model.encoder(SOURCE)
    keys, state = model.decoder.begin(memory)
    state = reorder(state, torch.arange(4).repeat_interleave(3))
    reference_keys, reference = model.decoder.begin(memory)
    reference = reorder(reference, torch.arange(4).repeat_interleave(3))
    token = torch.arange(12) % 7 + 4
    moves = torch.tensor([[0, 2, 1], [0, 0, 0], [2, 2, 0], [1, 1, 2]]) + 3 * torch.arange(4).unsqueeze(1)
    for step in range(4):
        logits, state = model.decoder.step(token, state, keys)
        expected, reference = model.decoder.step(token, reference, reference_keys)
        torch.testing.assert_close(logits, expected)
        rows = moves.roll(step, dims=1).flatten()
        state, reference, token = reorder(state, rows, block=3), reorder(reference, rows), token.roll(1)
    blocks = torch.tensor([3, 1])
    rows = (3 * blocks.unsqueeze(1) + torch.arange(3)).flatten()
    keys, reference_keys = reorder(keys, blocks), reorder(reference_keys, blocks)
    state, reference = reorder(state, rows, block=3, blocks=blocks), reorder(reference, rows)
    logits, state = model.decoder.step(token[:6], state, keys)
    expected, reference = model.decoder.step(token[:6], reference, reference_keys)
    torch.testing.assert_close(logits, expected)
    mixed = torch.tensor([5, 0, 3, 3])
    keys = reorder(keys, torch.tensor([1, 0, 1, 1]))
    logits, _ = model.decoder.step(token[:4], reorder(state, mixed), keys)
    expected, _ = model.decoder.step(token[:4], reorder(reference, mixed), keys)
    torch.testing.assert_close(logits, expected)
