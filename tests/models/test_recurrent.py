"""The Bahdanau decoder against an independent implementation in NumPy, with loops over rows and slots."""

import numpy as np
import torch
from numpy.typing import NDArray

from regard.config import resolve
from regard.data.batching import pad
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import RecurrentModel

Array = NDArray[np.float64]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def gru(weights: dict[str, Array], prefix: str, x: Array, h: Array) -> Array:
    a = weights[f"{prefix}.weight_input"] @ x + weights[f"{prefix}.bias_input"]
    u = weights[f"{prefix}.weight_state"] @ h + weights[f"{prefix}.bias_state"]
    r, z = sigmoid(np.split(a, 3)[0] + np.split(u, 3)[0]), sigmoid(np.split(a, 3)[1] + np.split(u, 3)[1])
    n = np.tanh(np.split(a, 3)[2] + r * np.split(u, 3)[2])
    return z * h + (1 - z) * n


def compute_logits(weights: dict[str, Array], source: list[int], tokens: list[int], hidden: int) -> Array:
    embedded = [weights["encoder.embedding.weight"][token] for token in source]
    forward, backward = [np.zeros(hidden)], [np.zeros(hidden)]
    for x in embedded:
        forward.append(gru(weights, "encoder.layers.cells.0", x, forward[-1]))
    for x in reversed(embedded):
        backward.append(gru(weights, "encoder.layers.cells.1", x, backward[-1]))
    annotations = [np.concatenate([f, b]) for f, b in zip(forward[1:], reversed(backward[1:]), strict=True)]
    summary = np.concatenate([forward[-1], backward[-1]])
    state = np.tanh(weights["decoder.bridge.weight"] @ summary + weights["decoder.bridge.bias"])
    logits = []
    for token in tokens:
        scores = [
            weights["decoder.attention.score.v"][0]
            @ np.tanh(
                weights["decoder.attention.score.query.weight"][0] @ state
                + weights["decoder.attention.score.key.weight"][0] @ annotation
            )
            for annotation in annotations
        ]
        attended = np.exp(scores) / np.sum(np.exp(scores))
        context = sum(weight * annotation for weight, annotation in zip(attended, annotations, strict=True))
        y = weights["decoder.embedding.weight"][token]
        state = gru(weights, "decoder.layers.cells.0", np.concatenate([y, context]), state)
        features = np.tanh(
            weights["decoder.readout.hidden.weight"] @ np.concatenate([state, y, context])
            + weights["decoder.readout.hidden.bias"]
        )
        logits.append(weights["decoder.readout.output.weight"] @ features + weights["decoder.readout.output.bias"])
    return np.stack(logits)


def build() -> Seq2Seq:
    torch.manual_seed(0)
    overrides = {"encoder.hidden": 4, "decoder.hidden": 5}
    return build_model(resolve(RecurrentModel, {"embedding": 3}, overrides), 9, 9).double().eval()


def test_equals_numpy_loops() -> None:
    model = build()
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    sources, targets = [[4, 5, 6, 7], [8, 4]], [[2, 5, 6], [2, 7, 8]]
    actual = model(pad(sources), torch.tensor(targets)).logits_BTV.detach().numpy()
    for row, (source, tokens) in enumerate(zip(sources, targets, strict=True)):
        np.testing.assert_allclose(actual[row], compute_logits(weights, source, tokens, hidden=4), rtol=1e-10)
