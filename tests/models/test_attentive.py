"""Decoders of all orders except Bahdanau's, without attention, and with copying, against loops in NumPy."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import regard
from regard.config import resolve
from regard.data.batching import pad
from regard.models.seq2seq import Seq2Seq, build_model
from regard.runs.settings import RunSettings
from tests_shared import ModelOnly

Array = NDArray[np.float64]
Weights = dict[str, Array]
SOURCES, TOKENS = [[4, 5, 6, 7], [8, 4]], [[2, 5, 6], [2, 7, 8]]


def build(**changes: Any) -> Seq2Seq:
    torch.manual_seed(0)
    base = {"model": {"kind": "recurrent", "embedding": 3, "encoder": {"hidden": 4}, "decoder": {"hidden": 5}}}
    if "model" in changes:
        base = changes
        changes = {}
    settings = resolve(ModelOnly, base, {f"model.{key.replace('__', '.')}": value for key, value in changes.items()})
    return build_model(settings.model, 9, 9).double().eval()


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    weights: Array = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    return weights


def rnn(w: Weights, cell: str, x: Array, h: Array) -> Array:
    return np.tanh(w[f"{cell}.weight_input"] @ x + w[f"{cell}.bias_input"] + w[f"{cell}.weight_state"] @ h)


def encode(w: Weights, source: list[int]) -> tuple[list[Array], Array]:
    """Run a bidirectional RNN over the source; return its states, and the concatenated last states."""
    xs = [w["encoder.embedding.weight"][token] for token in source]
    forward, backward = [np.zeros(4)], [np.zeros(4)]
    for x in xs:
        forward.append(rnn(w, "encoder.layers.cells.0", x, forward[-1]))
    for x in reversed(xs):
        backward.append(rnn(w, "encoder.layers.cells.1", x, backward[-1]))
    states = [np.concatenate(pair) for pair in zip(forward[1:], reversed(backward[1:]), strict=True)]
    return states, np.concatenate([forward[-1], backward[-1]])


def attend(w: Weights, query: Array, memory: list[Array]) -> tuple[Array, Array]:
    hidden = w["decoder.attention.score.query.weight"][0] @ query
    scores = [
        float(w["decoder.attention.score.v"][0] @ np.tanh(hidden + w["decoder.attention.score.key.weight"][0] @ slot))
        for slot in memory
    ]
    weights = softmax(np.array(scores))
    return sum((a * slot for a, slot in zip(weights, memory, strict=True)), np.zeros(8)), weights


def features(w: Weights, *parts: Array) -> Array:
    return np.tanh(w["decoder.readout.hidden.weight"] @ np.concatenate(parts) + w["decoder.readout.hidden.bias"])


def logits(w: Weights, hidden: Array) -> Array:
    return w["decoder.readout.output.weight"] @ hidden + w["decoder.readout.output.bias"]


def decode(w: Weights, source: list[int], tokens: list[int], order: str, *, feeding: bool, copy: bool) -> Array:
    memory, summary = encode(w, source)
    state = np.tanh(w["decoder.bridge.weight"] @ summary + w["decoder.bridge.bias"])
    feed = np.zeros(5 if order == "luong" else 8)
    results = []
    for token in tokens:
        y = w["decoder.embedding.weight"][token]
        state = rnn(w, "decoder.layers.cells.0", np.concatenate([y, feed]) if feeding else y, state)
        context, weights = attend(w, state, memory)
        inputs = [state]
        if order == "conditional":
            state = rnn(w, "decoder.second.cells.0", context, state)
            inputs = [state, y]
        hidden = features(w, *inputs, context)
        feed = hidden if order == "luong" else context
        result = logits(w, hidden)
        if copy:
            gate_inputs = np.concatenate([*inputs, context])
            gate = sigmoid(w["decoder.readout.generate.weight"] @ gate_inputs + w["decoder.readout.generate.bias"])
            p = gate * softmax(result)
            for weight, copied in zip(weights, source, strict=True):
                p[copied] += (1 - gate[0]) * weight
            result = np.log(p)
        results.append(result)
    return np.stack(results)


ORDERS = [("luong", True), ("luong", False), ("simple", True), ("conditional", False)]


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize(("order", "feeding"), ORDERS)
def test_equals_numpy_loops(order: str, feeding: bool, copy: bool) -> None:
    options = {"decoder__order": order, "decoder__input_feeding": feeding, "decoder__copy_source": copy}
    model = build(encoder__cell="rnn", decoder__cell="rnn", **options)
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    actual = model(pad(SOURCES), torch.tensor(TOKENS)).logits_BTV.detach().numpy()
    for row, (source, tokens) in enumerate(zip(SOURCES, TOKENS, strict=True)):
        expected = decode(weights, source, tokens, order, feeding=feeding, copy=copy)
        np.testing.assert_allclose(actual[row], expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("context", ["initial", "every_step"])
@pytest.mark.parametrize("summary", ["last", "mean", "max"])
def test_without_attention_equals_numpy_loops(context: str, summary: str) -> None:
    fixed = {"kind": "fixed", "embedding": 3, "decoder": {"cell": "rnn", "hidden": 5}, "context": context}
    model = build(model={**fixed, "encoder": {"cell": "rnn", "hidden": 4, "summary": summary}})
    w = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    actual = model(pad(SOURCES), torch.tensor(TOKENS)).logits_BTV.detach().numpy()
    for row, (source, tokens) in enumerate(zip(SOURCES, TOKENS, strict=True)):
        states, last = encode(w, source)
        c = {"last": last, "mean": np.mean(states, 0), "max": np.max(states, 0)}[summary]
        state = np.tanh(w["decoder.bridge.weight"] @ c + w["decoder.bridge.bias"])
        context_input = c if context == "every_step" else np.zeros(0)
        for step, token in enumerate(tokens):
            y = w["decoder.embedding.weight"][token]
            state = rnn(w, "decoder.layers.cells.0", np.concatenate([y, context_input]), state)
            expected = logits(w, features(w, state, y, context_input))
            np.testing.assert_allclose(actual[row, step], expected, rtol=1e-8)


def test_a_reversing_encoder_reads_from_the_end_and_returns_slots_in_source_order() -> None:
    forward = build(encoder__bidirectional=False)
    reversing = build(encoder__bidirectional=False, encoder__reverse=True)
    reversing.load_state_dict(forward.state_dict())
    expected = forward.encoder(pad([[7, 6, 5, 4], [4, 8]]))
    actual = reversing.encoder(pad(SOURCES))
    torch.testing.assert_close(actual.summary_BD, expected.summary_BD)
    torch.testing.assert_close(actual.slots_BSD[0], expected.slots_BSD[0].flip(0))


def test_copying_requires_a_shared_vocabulary_and_attention_weights() -> None:
    with pytest.raises(regard.ConfigError, match="copies tokens"):
        resolve(RunSettings, "dates", {"model.decoder.copy_source": True})
    with pytest.raises(regard.ConfigError, match="has no weights to copy with"):
        build(decoder__copy_source=True, attention="exact-hard")
