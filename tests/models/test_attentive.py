"""Decoders of all orders, without attention, with copying, and with the options of Xu et al. (2015), against loops in
NumPy. `test_recurrent.py` has the decoder of Bahdanau et al.
"""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import regard
from regard.config import resolve
from regard.data.batching import pad
from regard.models.attentive import penalize_coverage
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


def decode(
    w: Weights, source: list[int], tokens: list[int], order: str, *, feeding: bool, copy: bool, gated: bool = False
) -> Array:
    memory, summary = encode(w, source)
    state = np.tanh(w["decoder.bridge.weight"] @ summary + w["decoder.bridge.bias"])
    feed = np.zeros(5 if order == "luong" else 8)
    results = []
    for token in tokens:
        y = w["decoder.embedding.weight"][token]
        state = rnn(w, "decoder.layers.cells.0", np.concatenate([y, feed]) if feeding else y, state)
        context, weights = attend(w, state, memory)
        if gated:
            context = sigmoid(w["decoder.gate.weight"] @ state + w["decoder.gate.bias"]) * context
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


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize(("order", "feeding"), ORDERS)
def test_equals_numpy_loops(order: str, feeding: bool, copy: bool, gate: bool) -> None:
    options = {"decoder__order": order, "decoder__input_feeding": feeding, "decoder__copy_source": copy}
    options |= {"decoder__gate": gate}
    model = build(encoder__cell="rnn", decoder__cell="rnn", **options)
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    actual = model(pad(SOURCES), torch.tensor(TOKENS)).logits_BTV.detach().numpy()
    for row, (source, tokens) in enumerate(zip(SOURCES, TOKENS, strict=True)):
        expected = decode(weights, source, tokens, order, feeding=feeding, copy=copy, gated=gate)
        np.testing.assert_allclose(actual[row], expected, rtol=1e-8, atol=1e-10)


def lstm(w: Weights, cell: str, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    total = w[f"{cell}.weight_input"] @ x + w[f"{cell}.bias_input"] + w[f"{cell}.weight_state"] @ h
    i, f, o, z = np.split(total, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(z)
    return sigmoid(o) * np.tanh(c), c


def test_show_attend_and_tell_equals_numpy_loops() -> None:
    """An LSTM that starts from the average annotation, with soft attention and the gate β (Xu et al. 2015)."""
    model = build(encoder__cell="rnn", encoder__summary="mean", decoder__cell="lstm", decoder__gate=True)
    w = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    actual = model(pad(SOURCES), torch.tensor(TOKENS)).logits_BTV.detach().numpy()
    for row, (source, tokens) in enumerate(zip(SOURCES, TOKENS, strict=True)):
        annotations, _ = encode(w, source)
        average = np.mean(annotations, 0)
        # Separate one-layer networks for h and c.
        h, c = (
            np.tanh(matrix @ average + bias)
            for matrix, bias in zip(
                np.split(w["decoder.bridge.weight"], 2), np.split(w["decoder.bridge.bias"], 2), strict=True
            )
        )
        for step, token in enumerate(tokens):
            y = w["decoder.embedding.weight"][token]
            context, _ = attend(w, h, annotations)
            gated = sigmoid(w["decoder.gate.weight"] @ h + w["decoder.gate.bias"]) * context
            h, c = lstm(w, "decoder.layers.cells.0", np.concatenate([y, gated]), h, c)
            np.testing.assert_allclose(actual[row, step], logits(w, features(w, h, y, gated)), rtol=1e-8)


def self_attend(w: Weights, name: str, query: Array, tape: list[Array], size: int) -> Array:
    """Attend to the slots of a tape with the additive score. Keys are the first columns."""
    hidden = w[f"{name}.score.query.weight"][0] @ query
    scores = [
        float(w[f"{name}.score.v"][0] @ np.tanh(hidden + w[f"{name}.score.key.weight"][0] @ slot[:size]))
        for slot in tape
    ]
    return sum((a * slot for a, slot in zip(softmax(np.array(scores)), tape, strict=True)), np.zeros_like(tape[0]))


class Lstmn:
    """The LSTM of Cheng et al. (2016), which attends to its tape of states [h; c]."""

    def __init__(self, w: Weights, cell: str, h: Array, c: Array) -> None:
        self.w, self.cell, self.size = w, cell, len(h)
        self.tape: list[Array] = []
        self.start, self.read = np.concatenate([h, c]), np.zeros(2 * len(h))

    def step(self, x: Array, fused: Array | float = 0.0) -> Array:
        w, size = self.w, self.size
        W, R, b = (w[f"{self.cell}.{name}"] for name in ("weight_input", "weight_state", "bias_input"))
        query = W[4 * size :] @ x + R[4 * size :] @ self.read[:size] + b[4 * size :]
        self.read = self_attend(w, f"{self.cell}.attention", query, self.tape, size) if self.tape else self.start
        total = W[: 4 * size] @ x + R[: 4 * size] @ self.read[:size] + b[: 4 * size]
        i, f, o, z = np.split(total, 4)
        c = fused + sigmoid(f) * self.read[size:] + sigmoid(i) * np.tanh(z)
        h = sigmoid(o) * np.tanh(c)
        self.tape.append(np.concatenate([h, c]))
        return h


@pytest.mark.parametrize("fusion", ["shallow", "deep"])
@pytest.mark.parametrize("reverse", [False, True])
def test_lstmn_equals_numpy_loops(fusion: str, reverse: bool) -> None:
    """Shallow fusion is the decoder of Bahdanau et al. with another cell; deep fusion has the gate r of the source."""
    options = {"encoder__bidirectional": False, "encoder__hidden": 5, "encoder__reverse": reverse}
    model = build(encoder__cell="lstmn", decoder__cell="lstmn", decoder__fusion=fusion, **options)
    w = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    actual = model(pad(SOURCES), torch.tensor(TOKENS)).logits_BTV.detach().numpy()
    for row, (source, tokens) in enumerate(zip(SOURCES, TOKENS, strict=True)):
        encoder = Lstmn(w, "encoder.layers.cells.0", np.zeros(5), np.zeros(5))
        for token in reversed(source) if reverse else source:
            summary = encoder.step(w["encoder.embedding.weight"][token])
        memory = encoder.tape[::-1] if reverse else encoder.tape
        h, c = np.split(np.tanh(w["decoder.bridge.weight"] @ summary + w["decoder.bridge.bias"]), 2)
        decoder, context = Lstmn(w, "decoder.layers.cells.0", h, c), np.zeros(5)
        for step, token in enumerate(tokens):
            y = w["decoder.embedding.weight"][token]
            if fusion == "shallow":
                context = self_attend(w, "decoder.attention", h, memory, 5)[:5]
                h = decoder.step(np.concatenate([y, context]))
            else:
                query = w["decoder.to_query.weight"] @ np.concatenate([y, context])
                context, alpha = np.split(self_attend(w, "decoder.attention", query, memory, 5), 2)
                gate = w["decoder.fusion_gate.weight"] @ np.concatenate([context, y]) + w["decoder.fusion_gate.bias"]
                h = decoder.step(y, sigmoid(gate) * alpha)
            np.testing.assert_allclose(actual[row, step], logits(w, features(w, h, y, context)), rtol=1e-8)


@pytest.mark.parametrize("feeding", [False, True])
def test_intra_attention_equals_numpy_loops(feeding: bool) -> None:
    """Paulus et al. (2018): the output layer also reads a weighted sum of the previous outputs, at first zero."""
    options = {"decoder__order": "luong", "decoder__input_feeding": feeding, "decoder__intra_attention": "general"}
    model = build(encoder__cell="rnn", decoder__cell="rnn", **options)
    w = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    actual = model(pad(SOURCES), torch.tensor(TOKENS)).logits_BTV.detach().numpy()
    for row, (source, tokens) in enumerate(zip(SOURCES, TOKENS, strict=True)):
        memory, summary = encode(w, source)
        state = np.tanh(w["decoder.bridge.weight"] @ summary + w["decoder.bridge.bias"])
        feed = np.zeros(5)
        outputs: list[Array] = []
        for step, token in enumerate(tokens):
            y = w["decoder.embedding.weight"][token]
            state = rnn(w, "decoder.layers.cells.0", np.concatenate([y, feed]) if feeding else y, state)
            recalled = np.zeros(5)
            if outputs:
                scores = [state @ w["decoder.intra_attention.score.key.weight"][0] @ output for output in outputs]
                recalled = softmax(np.array(scores)) @ np.stack(outputs)
            outputs.append(state)
            feed = features(w, state, recalled, attend(w, state, memory)[0])
            np.testing.assert_allclose(actual[row, step], logits(w, feed), rtol=1e-8)


SIZES = {"encoder__bidirectional": False, "encoder__hidden": 5}
BOTH = {"encoder__cell": "lstmn", "decoder__cell": "lstmn", **SIZES}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder__cell": "lstmn", **SIZES}, "the encoder is of another kind"),
        ({"encoder__cell": "lstmn", **SIZES}, "the decoder is of another kind"),
        ({**BOTH, "encoder__hidden": 4}, "of size 4"),
        ({**BOTH, "decoder__order": "luong"}, "attends before the recurrent step"),
        ({**BOTH, "attention__heads": 5}, "one head"),
        ({**BOTH, "attention": "exact-hard"}, "does not marginalize"),
    ],
)
def test_deep_fusion_requires_matching_cell_states(options: dict[str, Any], message: str) -> None:
    with pytest.raises(regard.ConfigError, match=message):
        build(decoder__fusion="deep", **options)


def test_lstmn_is_short_for_a_recurrent_model_and_encoder() -> None:
    """It is listed, also if a name is misspelled; explicit settings override it."""
    settings = resolve(ModelOnly, {"model": "lstmn"}, {"model.encoder.cell": "gru", "model.decoder.hidden": 12}).model
    cells = settings.model_dump()["encoder"]["cell"]["kind"], settings.model_dump()["decoder"]["cell"]["kind"]
    assert (settings.kind, cells) == ("recurrent", ("gru", "lstmn"))
    encoder = resolve(ModelOnly, {"model": {"kind": "fixed", "encoder": "lstmn"}}, {}).model.model_dump()["encoder"]
    assert (encoder["kind"], encoder["cell"]["kind"]) == ("recurrent", "lstmn")
    with pytest.raises(regard.ConfigError, match=r"Did you mean 'lstmn'\?"):
        resolve(ModelOnly, {"model": "lstmm"}, {})


def test_the_conditional_order_cannot_share_a_tape() -> None:
    with pytest.raises(regard.ConfigError, match="those of one cell"):
        build(decoder__cell="lstmn", decoder__order="conditional")


def test_a_gated_decoder_that_marginalizes_over_slots_scales_each_of_them() -> None:
    model = build(encoder__cell="rnn", decoder__cell="rnn", decoder__gate=True, attention__select="hard_exact")
    w = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    actual = model(pad(SOURCES), torch.tensor(TOKENS)).logits_BTV.detach().numpy()
    for row, (source, tokens) in enumerate(zip(SOURCES, TOKENS, strict=True)):
        annotations, summary = encode(w, source)
        state = np.tanh(w["decoder.bridge.weight"] @ summary + w["decoder.bridge.bias"])
        for step, token in enumerate(tokens):
            y = w["decoder.embedding.weight"][token]
            context, weights = attend(w, state, annotations)
            gate = sigmoid(w["decoder.gate.weight"] @ state + w["decoder.gate.bias"])
            state = rnn(w, "decoder.layers.cells.0", np.concatenate([y, gate * context]), state)
            predictions = [softmax(logits(w, features(w, state, y, gate * slot))) for slot in annotations]
            expected = np.log(sum(a * p for a, p in zip(weights, predictions, strict=True)))
            np.testing.assert_allclose(actual[row, step], expected, rtol=1e-8)


def test_the_doubly_stochastic_penalty_by_hand() -> None:
    weights_BTS = torch.tensor([[[0.5, 0.5, 0.0], [0.25, 0.75, 0.0], [0.9, 0.1, 0.0]]], requires_grad=True)
    visible_BTS = torch.tensor([[[True, True, False]]])
    valid_BT = torch.tensor([[True, True, False]])  # the third step is padding
    penalty = penalize_coverage(2.0, weights_BTS, visible_BTS, torch.zeros(1, 3), valid_BT)
    # Coverage 0.75 and 1.25: 2 · (0.25² + 0.25²).
    assert penalty.item() == pytest.approx(0.25)
    (gradient,) = torch.autograd.grad(penalty, weights_BTS)
    # ∂/∂a_tj = −2 λ (1 − Σ_t a_tj).
    expected = torch.tensor([[[-1.0, 1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]])
    torch.testing.assert_close(gradient, expected)


PENALIZED = [
    {"decoder__order": "bahdanau"},
    {"decoder__order": "luong", "decoder__input_feeding": False},
    {"decoder__order": "conditional", "attention__heads": 2, "decoder__hidden": 6},
    {"attention": "exact-hard"},
]


@pytest.mark.parametrize("options", PENALIZED)
def test_the_penalty_is_a_loss_term_in_training_only(options: dict[str, Any]) -> None:
    model = build(decoder__doubly_stochastic=0.5, dropout=0.0, **options)
    source, tokens = pad(SOURCES), torch.tensor(TOKENS)
    assert model(source, tokens).loss_terms == ()
    with regard.record(model.train()) as trace:
        (term,) = model(source, tokens).loss_terms
    valid_BT = torch.tensor([[True, True, True], [True, True, False]])
    (weights,) = (weights for name, weights in trace.weights.items() if trace.roles[name] == "cross")
    weights_BTS = weights if weights.dim() == 3 else weights.mean(1)
    expected = 0.0
    for row, (length, steps) in enumerate([(4, 3), (2, 2)]):
        for slot in range(length):
            expected += 0.5 * (1 - sum(float(weights_BTS[row, step, slot]) for step in range(steps))) ** 2
    assert term(torch.zeros(2, 3), valid_BT).item() == pytest.approx(expected)


def test_hard_attention_is_penalized_by_its_probabilities() -> None:
    """The sampled positions have no gradient."""
    hard = {"kind": "hard", "soft": 0.0, "entropy": 0.0}
    model = build(decoder__doubly_stochastic=1.0, attention__select=hard).train()
    valid_BT = torch.ones(2, 3, dtype=torch.bool)
    reinforce, penalty = (
        term(torch.zeros(2, 3), valid_BT) for term in model(pad(SOURCES), torch.tensor(TOKENS)).loss_terms
    )
    assert reinforce.item() == 0  # neither a reward nor an entropy bonus
    penalty.backward()
    gradient = model.decoder.get_parameter("attention.score.query.weight").grad
    assert gradient is not None
    assert gradient.abs().sum() > 0


def test_the_gate_and_the_penalty_add_no_parameters_unless_they_are_on() -> None:
    names = set(build().state_dict())
    assert set(build(decoder__doubly_stochastic=1.0).state_dict()) == names
    assert set(build(decoder__gate=True).state_dict()) - names == {"decoder.gate.weight", "decoder.gate.bias"}


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
    with pytest.raises(regard.ConfigError, match="reads no tokens that could be copied"):
        build(decoder__copy_source=True, encoder={"kind": "cnn"})
