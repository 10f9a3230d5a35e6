"""What every model obeys with every mechanism, and with every cell.

B rows, T target steps, S source positions, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.config import resolve
from regard.data.batching import pad
from regard.models.contracts import Padded, reorder
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import RecurrentModel
from regard.recurrent.settings import VARIANTS

V = 11
SMALL = {"embedding": 6, "dropout": 0.3}
# A dot product needs a query as wide as the memory: 2 × 8 and 16.
SIZES = {"encoder.hidden": 8, "decoder.hidden": 16}


OPTIONS: list[dict[str, Any]] = [
    *({"cell": "lstm", "variant": variant} for variant in VARIANTS),
    {"cell": "lstm"},
    {"cell": "rnn"},
    {"cell": {"kind": "gru", "reset": "before"}},
    {"cell": "lstm", "layer_norm": True, "residual": True},
    {"cell": "gru", "variational": True, "dropout": 0.5},
]


def described() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mechanism with one layer and two, and every cell with two."""
    for mechanism in regard.mechanisms():
        for layers in (1, 2):
            changes = {"encoder.layers": layers, "decoder.layers": layers, "attention": mechanism.name}
            yield f"{mechanism.name}-{layers}", changes
    for options in OPTIONS:
        name = " ".join(map(str, options.values()))
        both = {f"{side}.{key}": value for side in ("encoder", "decoder") for key, value in options.items()}
        yield name, {**both, "encoder.layers": 2, "decoder.layers": 2, "encoder.initial_state": "learned"}


MODELS = dict(described())


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Seq2Seq:
    torch.manual_seed(0)
    settings = resolve(RecurrentModel, SMALL, {**SIZES, **MODELS[request.param]})
    return build_model(settings, V, V).double().eval()


SOURCE = pad([[4, 5, 6, 7, 8], [9, 10], [], [4, 4, 6]])
TOKENS = torch.tensor([[2, 5, 6, 7], [2, 8, 0, 0], [2, 4, 9, 0], [2, 10, 10, 4]])


def logits(model: Seq2Seq) -> Tensor:
    found: Tensor = model(SOURCE, TOKENS).logits_BTV
    return found


def test_forward_equals_chained_steps(model: Seq2Seq) -> None:
    memory = model.encoder(SOURCE)
    whole = model.decoder(TOKENS, memory).logits_BTV
    keys, state = model.decoder.begin(memory)
    for step in range(TOKENS.shape[1]):
        logits, state = model.decoder.step(TOKENS[:, step], state, keys)
        torch.testing.assert_close(logits, whole[:, step])


def test_padding_and_batch_mates_change_nothing(model: Seq2Seq) -> None:
    together = logits(model)
    assert torch.isfinite(together).all()
    for row, length in enumerate(SOURCE.lengths_B.tolist()):
        alone = Padded(SOURCE.tokens_BT[row : row + 1, : max(1, length)], SOURCE.lengths_B[row : row + 1])
        torch.testing.assert_close(model(alone, TOKENS[row : row + 1]).logits_BTV, together[row : row + 1])


def test_what_stands_in_the_padding_cannot_matter(model: Seq2Seq) -> None:
    scribbled = torch.where(SOURCE.valid_BT, SOURCE.tokens_BT, V - 1)
    assert torch.equal(logits(model), model(Padded(scribbled, SOURCE.lengths_B), TOKENS).logits_BTV)


def test_masked_positions_have_weight_zero(model: Seq2Seq) -> None:
    with regard.record(model) as trace:
        logits(model)
    assert list(trace.weights) == ["decoder.attention"]
    weights_BTS = trace.weights["decoder.attention"]
    assert weights_BTS.shape[-2:] == (4, 5)
    weights_BTS = weights_BTS.reshape(4, -1, 5)
    assert (weights_BTS.transpose(1, 2)[~SOURCE.valid_BT] == 0).all()


def test_reordering_then_stepping_equals_stepping_then_reordering(model: Seq2Seq) -> None:
    rows = torch.tensor([3, 0, 0, 1])
    memory = model.encoder(SOURCE)
    keys, state = model.decoder.begin(memory)
    _, state = model.decoder.step(TOKENS[:, 0], state, keys)
    logits, after = model.decoder.step(TOKENS[:, 1], state, keys)
    moved = type(memory)(*(part[rows] for part in memory))
    moved_keys, _ = model.decoder.begin(moved)
    again, moved_after = model.decoder.step(TOKENS[rows, 1], reorder(state, rows), moved_keys)
    torch.testing.assert_close(again, logits[rows])
    torch.testing.assert_close(moved_after.layers, reorder(after.layers, rows))


def test_the_future_cannot_matter(model: Seq2Seq) -> None:
    changed = TOKENS.clone()
    changed[:, 2:] = 3
    before, after = logits(model), model(SOURCE, changed).logits_BTV
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.equal(before[:, 2:], after[:, 2:])


def test_gradients_reach_every_parameter(model: Seq2Seq) -> None:
    decoded = model.train()(SOURCE, TOKENS)
    loss = decoded.logits_BTV.square().sum()
    for term in decoded.terms:
        loss = loss + term(decoded.logits_BTV[..., 0], torch.ones_like(TOKENS, dtype=torch.bool))
    loss.backward()
    untouched = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert untouched == []


def test_dropout_is_off_in_evaluation_and_on_in_training(model: Seq2Seq) -> None:
    assert torch.equal(logits(model), logits(model))
    model.train()
    assert not torch.equal(logits(model), logits(model))
