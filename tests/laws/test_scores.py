"""The score of a text does not depend on the texts in its batch, for every mechanism and kind of model: it is the same
alone and with padding, within 1e-5, in float32 on a CPU.
"""

from collections.abc import Sequence
from typing import Any

import example_parts  # noqa: F401 - registers parts, which must satisfy the same property
import numpy as np
import pytest

import regard
from tests_shared import build_untrained, thin

# A dot product needs a query as wide as the memory: 2 × 8 and 16.
RECURRENT = {"kind": "recurrent", "embedding": 6, "encoder": {"hidden": 8}, "decoder": {"hidden": 16}}
TRANSFORMER = {"kind": "transformer", "size": 16, "heads": 2, "layers": 2, "feedforward": 24}
CNN = {"kind": "cnn", "height": 16, "width": 16, "channels": [8, 16]}

MECHANISMS = [mechanism.name for mechanism in regard.mechanisms()]
SCORES = sorted({mechanism.score for mechanism in regard.mechanisms()})
SELF_SCORES = sorted(set(SCORES) - {"location_aware"})
"""Self-attention does not use the weights of previous steps."""

TEXTS = ["abc", "hijklmabcdefgh", "", "kk ml"]
TARGETS = ["de", "m", "abcdef", ""]
TOLERANCE = 1e-5


def check_scores(model: regard.Model, sources: Sequence[Any], targets: Sequence[str]) -> None:
    """Compare the scores of a batch with those of each source alone."""
    batched = model.score(list(sources), list(targets))
    forced = model.force(list(sources), list(targets))
    alone = [model.score(source, target) for source, target in zip(sources, targets, strict=True)]
    assert batched == pytest.approx(alone, abs=TOLERANCE, rel=0)
    assert [prediction.score for prediction in forced] == pytest.approx(alone, abs=TOLERANCE, rel=0)
    predictions = model.predict(list(sources), attention=False, beam=2)
    for source, prediction in zip(sources, predictions, strict=True):
        single = model.predict(source, attention=False, beam=2)
        assert single.text == prediction.text
        assert single.score == pytest.approx(prediction.score, abs=TOLERANCE, rel=0)


@pytest.mark.parametrize("mechanism", thin(MECHANISMS))
def test_scores_of_recurrent_models_do_not_depend_on_the_batch(mechanism: str) -> None:
    check_scores(build_untrained(RECURRENT, {"attention": mechanism}), TEXTS, TARGETS)


@pytest.mark.parametrize("score", SCORES)
def test_scores_of_transformers_do_not_depend_on_the_batch(score: str) -> None:
    own = score if score in SELF_SCORES else "scaled_dot"
    changes = {"encoder_score": own, "self_score": own, "cross_score": score}
    # With larger weights, the layers amplify rounding errors beyond the tolerance.
    check_scores(build_untrained(TRANSFORMER, changes, gain=1.0), TEXTS, TARGETS)


@pytest.mark.parametrize("mechanism", thin(MECHANISMS))
def test_scores_of_captions_do_not_depend_on_the_batch(mechanism: str) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(256, size=(16, 16, 3), dtype=np.uint8) for _ in TARGETS]
    model = build_untrained({**RECURRENT, "encoder": CNN}, {"attention": mechanism}, "scenes")
    check_scores(model, images, TARGETS)


def test_scores_of_captions_by_a_transformer_do_not_depend_on_the_batch() -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(256, size=(16, 16, 3), dtype=np.uint8) for _ in TARGETS]
    check_scores(build_untrained({**TRANSFORMER, "encoder": CNN}, {}, "scenes"), images, TARGETS)
