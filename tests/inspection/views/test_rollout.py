"""Attention rollout, compared with products that were computed by hand."""

import numpy as np
import pytest

from regard.inspection.views.rollout import roll_out, roll_out_cross


def array(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, np.float32)


FIRST, SECOND = array((0.5, 0.5), (0.0, 1.0)), array((0.0, 1.0), (1.0, 0.0))


def test_the_rollout_of_two_layers_is_the_product_with_residual_connections() -> None:
    # Ã_1 = (0.75, 0.25; 0, 1), Ã_2 = (0.5, 0.5; 0.5, 0.5)
    np.testing.assert_allclose(roll_out([FIRST, SECOND]), array((0.375, 0.625), (0.375, 0.625)))


def test_the_rollout_of_cross_attention_composes_the_decoder_with_the_encoder() -> None:
    encoder = [FIRST]  # E = (0.75, 0.25; 0, 1)
    decoder = [array((1.0, 0.0), (0.5, 0.5)), array((1.0, 0.0), (1.0, 0.0))]
    cross = [array((1.0, 0.0), (0.0, 1.0)), array((0.0, 1.0), (0.0, 1.0))]
    # Layer 1: ½ B_1 E = (0.375, 0.125; 0, 0.5).
    # Layer 2: ½ Ã_2 C_1 + ½ B_2 E with Ã_2 = (1, 0; 0.5, 0.5) is
    #   (0.1875, 0.0625) + (0, 0.5) = (0.1875, 0.5625), and (0.09375, 0.15625) + (0, 0.5) = (0.09375, 0.65625).
    expected = array((0.1875 / 0.75, 0.5625 / 0.75), (0.09375 / 0.75, 0.65625 / 0.75))
    np.testing.assert_allclose(roll_out_cross(encoder, decoder, cross), expected)


def test_a_recurrent_decoder_has_no_residual_connections() -> None:
    np.testing.assert_allclose(roll_out_cross([FIRST], [], [SECOND]), array((0.0, 1.0), (0.75, 0.25)))


@pytest.mark.parametrize("layers", [1, 3])
def test_rows_of_the_rollout_sum_to_one(layers: int) -> None:
    generator = np.random.default_rng(0)
    weights = [generator.random((5, 5)).astype(np.float32) for _ in range(layers)]  # not normalized, as a maximum
    cross = [generator.random((5, 5)).astype(np.float32) for _ in range(layers)]
    for rollout in (roll_out(weights), roll_out_cross(weights, weights, cross), roll_out_cross([], weights, cross)):
        np.testing.assert_allclose(rollout.sum(1), 1, rtol=1e-5)
