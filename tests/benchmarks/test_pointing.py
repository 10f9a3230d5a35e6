"""Pointing accuracy and mass inside the box, by hand and by their properties."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointing import score_pointing
from regard.data.images.scenes import Box, Scene, sample
from regard.data.images.settings import ScenesData
from regard.decoding.search import AttentionWeights
from regard.errors import ModelError
from regard.inspection.prediction import Prediction
from regard.models.contracts import Grid

PIXELS = np.zeros((8, 8, 3), np.uint8)
CAPTION = "a red ball left of a cube"
SCENE = Scene(PIXELS, CAPTION, (Box(0, 0, 4, 4, 0, 3), Box(3, 4, 8, 8, 5, 7)))
"""On a grid of 4 × 4 cells of 2 × 2 pixels: the upper left quarter, and the rest of the right half from pixel 3 on."""

WORDS = [f"▁{word}" for word in CAPTION.split()]


def predict(tokens: Sequence[str], weights_TYX: AttentionWeights) -> Prediction:
    steps, rows, columns = weights_TYX.shape
    return Prediction(
        "image", "", 0.0, list(tokens), [], [], layout=Grid(rows, columns),
        attentions={"cross": weights_TYX.reshape(steps, rows * columns)}, roles={"cross": "cross"},
    )  # fmt: skip


def attend(*cells: tuple[int, int]) -> AttentionWeights:
    """One cell of a 4 × 4 grid for each token."""
    weights = np.zeros((len(cells), 4, 4), np.float32)
    for step, cell in enumerate(cells):
        weights[(step, *cell)] = 1
    return weights


def test_pointing_by_hand() -> None:
    """The ball: cell (0, 1) in all three words, inside the box. The cube: cell (1, 3) covers pixels 2 to 4 down, of
    which the box, from 3 on, contains half, including the center.
    """
    cells = [(0, 1)] * 3 + [(0, 0)] * 2 + [(1, 3)] * 2
    assert tuple(score_pointing([predict(WORDS, attend(*cells))], [SCENE])) == pytest.approx((1, (1 + 0.5) / 2, 2, 0))
    cells = [(2, 1)] * 3 + [(0, 0)] * 2 + [(3, 3)] * 2  # below the ball, inside the cube
    assert score_pointing([predict(WORDS, attend(*cells))], [SCENE]) == (0.5, 0.5, 2, 0)


def test_weights_are_averaged_over_the_words_of_an_object_only() -> None:
    """The ball: two of three words on the box. The words between the objects do not count."""
    cells = [(3, 3), (0, 0), (0, 0)] + [(3, 0)] * 2 + [(0, 0), (3, 3)]
    result = score_pointing([predict(WORDS, attend(*cells))], [SCENE])
    assert result.mass == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_subwords_and_characters_belong_to_their_words() -> None:
    cells = [(0, 0)] * 3 + [(3, 0)] * 2 + [(3, 3)] * 2
    whole = score_pointing([predict(WORDS, attend(*cells))], [SCENE])
    split = ["▁a", "▁r", "ed", "▁ball", "▁left", "▁of", "▁", "a", "▁cu", "be"]
    words = [0, 1, 1, 2, 3, 4, 5, 5, 6, 6]
    assert score_pointing([predict(split, attend(*(cells[word] for word in words)))], [SCENE]) == whole
    words = [min(6, CAPTION[:index].count(" ")) for index in range(len(CAPTION))]
    assert score_pointing([predict(CAPTION, attend(*(cells[word] for word in words)))], [SCENE]) == whole


def test_objects_that_a_prediction_does_not_mention_are_counted_separately() -> None:
    other = ["▁a", "▁red", "▁cube", "▁left", "▁of", "▁a", "▁cube"]
    result = score_pointing([predict(other, attend(*[(3, 3)] * 7))], [SCENE])
    assert (result.accuracy, result.objects, result.missing) == (1.0, 1, 1)
    assert score_pointing([predict([], attend())], [SCENE]) == (0, 0, 0, 2)
    assert str(result) == ("pointing accuracy 100.00%, mass inside the box 100.00% on 1 object; 1 not mentioned")


def test_a_box_without_the_center_of_a_cell_is_found_by_the_cell_at_its_center() -> None:
    scene = Scene(PIXELS, "dot", (Box(4, 6, 5, 7, 0, 1),))
    weights = np.zeros((1, 1, 2), np.float32)
    weights[0, 0, 1] = 1
    result = score_pointing([predict(["▁dot"], weights)], [scene])
    assert result.accuracy == 1
    assert result.mass == pytest.approx(1 / 32)  # one of 8 × 4 pixels


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_uniform_attention_has_the_area_of_the_box_as_mass(rows: int, columns: int, seed: int) -> None:
    [scene] = sample(ScenesData(test=1, seed=seed), "test")
    tokens = [f"▁{word}" for word in scene.caption.split()]
    uniform = np.full((len(tokens), rows, columns), 1 / (rows * columns), np.float32)
    height, width = scene.pixels.shape[:2]
    areas = [(box.bottom - box.top) * (box.right - box.left) / (height * width) for box in scene.boxes]
    result = score_pointing([predict(tokens, uniform)], [scene])
    assert result.mass == pytest.approx(np.mean(areas), rel=1e-4)
    assert (result.objects, result.missing) == (len(scene.boxes), 0)


def test_attention_to_the_center_of_each_object_is_always_right() -> None:
    scenes = sample(ScenesData(test=100), "test")
    predictions = []
    for scene in scenes:
        words = scene.caption.split()
        weights = np.zeros((len(words), 8, 8), np.float32)
        for box in scene.boxes:
            row, column = (box.top + box.bottom) // 16, (box.left + box.right) // 16
            weights[box.first_word : box.end_word, row, column] = 1
        predictions.append(predict([f"▁{word}" for word in words], weights))
    result = score_pointing(predictions, scenes)
    assert result.accuracy == 1
    assert result.missing == 0
    assert 0.5 < result.mass <= 1


def test_weights_without_a_grid_are_rejected() -> None:
    prediction = Prediction("image", "", 0.0, ["▁a"], [], [])
    with pytest.raises(ModelError, match="do not form a grid"):
        score_pointing([prediction], [SCENE])
