"""The entropy of attention weights is 0 for one slot and 1 for uniform weights, whatever the number of slots."""

import numpy as np
import pytest
import torch

import regard
from regard.data.corpora import Pairs
from regard.evaluation.attention_entropy import compute_attention_entropy, compute_normalized_entropies
from regard.runs.folder import RunFolder

SOURCES, TARGETS = ["3 mai 2009", "x", "May 3, 2009"], ["2009-05-03", "?", "2009-05-03"]


def test_entropies_by_hand() -> None:
    weights_BTS = torch.tensor(
        [
            [[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]],
            [[0.5, 0.5, 0.0, 0.0], [0.2, 0.2, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]],  # two slots; sums 1, 0.4 and 0
            [[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]],  # one slot
        ]
    )
    valid_BT = torch.tensor([[True, True, True], [True, True, True], [True, True, True]])
    entropies = compute_normalized_entropies(weights_BTS, torch.tensor([4, 2, 1]), valid_BT)
    assert entropies.tolist() == pytest.approx([0.0, 1.0, 0.5, 1.0, 1.0])
    heads_BHTS = torch.stack([weights_BTS, weights_BTS.flip(-1)], dim=1)
    assert compute_normalized_entropies(heads_BHTS, torch.tensor([4, 2, 1]), valid_BT).numel() == 10
    valid_BT[0, 1:] = False  # padding
    assert compute_normalized_entropies(weights_BTS, torch.tensor([4, 2, 1]), valid_BT).tolist() == [0.0, 1.0, 1.0]


def test_the_average_is_that_of_the_weights_of_forced_decoding(small_run: RunFolder) -> None:
    model = regard.load(small_run.path, device="cpu")
    expected = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        with regard.record(model) as recording:
            model.score(source, target)
        (weights,) = recording.weights.values()
        rows = weights[0].double().numpy()
        slots = rows.shape[-1]
        if slots > 1:
            expected += [-(row * np.log(row)).sum() / np.log(slots) for row in rows]
    found = compute_attention_entropy(model.predictor, Pairs(SOURCES, TARGETS))
    assert found == pytest.approx(np.mean(expected), rel=1e-5)


def test_a_model_without_attention_has_no_entropy(tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests_shared import SMALL

    path = tmp_path_factory.mktemp("runs") / "fixed"
    settings = {key: value for key, value in SMALL.items() if not key.startswith("model.")}
    regard.train("dates", {**settings, "model": "fixed", "training.steps": 1}, out=path, quiet=True)
    assert compute_attention_entropy(regard.load(path).predictor, Pairs(SOURCES, TARGETS)) is None
