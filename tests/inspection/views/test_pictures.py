"""Weights over a picture: upsampling keeps their place, and small weights darken the picture."""

import base64
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from regard.inspection.views.pictures import compose, resize, shade, to_data_uri, upsample


def one_hot(rows: int, columns: int, row: int, column: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    weights = np.zeros((rows, columns), np.float32)
    weights[row, column] = 0.4
    return weights


def test_a_grid_repeats_the_weight_of_each_cell_relative_to_the_largest() -> None:
    weights = np.array([[0.1, 0.2], [0.3, 0.4]], np.float32)
    np.testing.assert_allclose(
        upsample(weights, 4, 6, "grid"), np.repeat(np.repeat(weights / 0.4, 2, 0), 3, 1), rtol=1e-6
    )


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_the_smooth_maximum_is_in_the_cell_with_the_weight(rows: int, columns: int, data: st.DataObject) -> None:
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    levels = upsample(one_hot(rows, columns, row, column), 60, 48)
    y, x = np.unravel_index(int(levels.argmax()), levels.shape)
    assert (int(y) * rows // 60, int(x) * columns // 48) == (row, column)
    assert levels.max() == pytest.approx(1)
    assert levels.min() >= 0


def test_smoothing_by_hand() -> None:
    """A column of two cells in two pixels, σ = 20/224 of the width of 2: a neighbor has exp(−1 / 2σ²) ≈ 0 of the
    weight, so that pixels are cells. In four pixels, the centers are at −1/4 (the edge), 1/4, 3/4 and 5/4 cells.
    """
    weights = np.array([[1.0], [0.0]], np.float32)
    np.testing.assert_allclose(upsample(weights, 2, 2)[:, 0], [1, 0], atol=1e-6)
    np.testing.assert_allclose(upsample(weights, 4, 2)[:, 0], [1, 0.75, 0.25, 0], atol=1e-6)


@pytest.mark.parametrize("style", ["smooth", "grid"])
def test_equal_weights_show_the_whole_picture(style: str) -> None:
    levels = upsample(np.full((7, 7), 1 / 49, np.float32), 50, 60, style)  # type: ignore[arg-type]
    np.testing.assert_allclose(levels, 1, rtol=1e-6)
    assert upsample(np.zeros((2, 2), np.float32), 4, 4, style).max() == 0  # type: ignore[arg-type]


def test_resizing_averages_the_pixels_that_are_covered() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    np.testing.assert_array_equal(resize(pixels, 2, 4), pixels)
    np.testing.assert_array_equal(resize(pixels, 4, 8), pixels.repeat(2, 0).repeat(2, 1))
    np.testing.assert_array_equal(resize(pixels, 1, 1)[0, 0], np.rint(pixels.mean((0, 1))))


def test_small_weights_darken_the_picture_and_large_ones_do_not() -> None:
    picture = np.full((8, 8, 3), 200, np.uint8)
    composed = compose(picture, one_hot(2, 2, 0, 1), "grid").astype(int)
    assert composed[0, 7].sum() > 0.9 * 600
    assert composed[7, 0].sum() < 0.4 * 600
    dark = compose(np.zeros_like(picture), one_hot(2, 2, 0, 1), "grid").astype(int)
    assert dark[0, 7].sum() > 2 * dark[7, 0].sum()  # attention to a dark part of a picture is visible


def test_a_layer_over_the_picture_equals_the_composed_picture() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)
    weights = np.random.default_rng(1).random((3, 3), np.float32)
    layer = shade(upsample(weights, 12, 12)).astype(float)
    opacity = layer[..., 3:] / 255
    blended = picture * (1 - opacity) + layer[..., :3] * opacity
    np.testing.assert_allclose(compose(picture, weights), blended, atol=1)


def test_a_uri_contains_the_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
    uri = to_data_uri(pixels)
    decoded = imread(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,"))), format="png")
    np.testing.assert_array_equal(np.rint(255 * decoded[..., :3]), pixels)
    assert to_data_uri(pixels) == uri
