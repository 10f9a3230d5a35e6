"""What edits changed, computed by hand."""

import numpy as np
import pytest

from regard.inspection.prediction import Prediction
from regard.inspection.trace.trace import compare_predictions


def predict(text: str, weights: list[list[list[float]]], slots: int) -> Prediction:
    """Return a prediction of characters with the weights of an attention with two heads."""
    attentions = {"cross": np.array(weights, np.float32).reshape(2, -1, slots)}
    source = "x" * slots
    return Prediction(
        source, text, -1.0, list(text), list(source), [], False, attentions=attentions, roles={"cross": "cross"}
    )


def test_total_variation_is_half_of_the_sum_of_differences_averaged_over_heads() -> None:
    before = predict("ab", [[[1, 0], [0.5, 0.5]], [[0, 1], [1, 0]]], 2)
    after = predict("acd", [[[0, 1], [0.5, 0.5], [1, 0]], [[0, 1], [0.75, 0.25], [1, 0]]], 2)
    changes = compare_predictions(before, after)
    assert changes.variation["cross"] == pytest.approx([0.5, 0.125])
    assert (changes.text, changes.tokens, changes.score, changes.first_step) == ("ab", ["a", "b"], -1.0, 1)
    assert compare_predictions(before, before).first_step is None
    assert compare_predictions(before, before).variation == {"cross": [0, 0]}


def test_a_longer_prediction_differs_where_the_other_ends() -> None:
    short, long = predict("a", [[[1, 0]], [[1, 0]]], 2), predict("ab", [[[1, 0]] * 2] * 2, 2)
    assert compare_predictions(short, long).first_step == 1
    assert compare_predictions(long, short).first_step == 1


def test_attentions_with_other_keys_are_not_compared() -> None:
    before, after = predict("a", [[[1, 0]], [[1, 0]]], 2), predict("a", [[[1, 0, 0]], [[1, 0, 0]]], 3)
    assert compare_predictions(before, after).variation == {}
