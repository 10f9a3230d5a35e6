"""Color maps print well, and the scale of colors fits the weights."""

import numpy as np
import pytest

from regard.errors import ConfigError
from regard.inspection.views.appearance import Appearance, round_up, to_lab


@pytest.mark.parametrize(("name", "direction"), [("light", -1), ("dark", 1)])
def test_our_color_maps_are_perceptually_uniform_and_monotonic_in_lightness(name: str, direction: int) -> None:
    lab = to_lab(Appearance(name).to_rgb(np.linspace(0, 1, 33), 1.0))
    steps = np.linalg.norm(np.diff(lab, axis=0), axis=-1)
    assert steps.std() < 0.15 * steps.mean()
    assert (direction * np.diff(lab[:, 0]) > 0).all()


def test_the_default_is_white_for_zero_and_dark_for_the_largest_weight() -> None:
    colors = Appearance().to_rgb([0.0, 1.0], 1.0).tolist()
    assert colors == [[255, 255, 255], [8, 48, 107]]
    assert Appearance().to_rgb(0.0, 1.0, terminal=True).sum() < 150


def test_cielab_of_known_colors() -> None:
    lab = to_lab(np.array([[255, 255, 255], [0, 0, 0], [255, 0, 0]]))
    expected = np.array([[100, 0, 0], [0, 0, 0], [53.24, 80.09, 67.2]])
    np.testing.assert_allclose(lab, expected, atol=0.02)


def test_a_color_map_of_matplotlib_is_used_by_name() -> None:
    assert Appearance("Greys").to_rgb([0.0, 1.0], 1.0).tolist() == [[255, 255, 255], [0, 0, 0]]
    with pytest.raises(ConfigError, match=r"'viridsi' is not a color map. Did you mean 'viridis'\?"):
        Appearance("viridsi")


@pytest.mark.parametrize(
    ("weight", "limit"),
    [(1.0, 1), (0.51, 1), (0.503, 0.5), (0.3, 0.5), (0.2, 0.2), (0.11, 0.2), (0.06, 0.1), (0.0003, 0.0005), (0.0, 1)],
)
def test_the_strongest_color_is_a_round_weight_above_the_largest(weight: float, limit: float) -> None:
    assert round_up(weight) == limit


def test_the_largest_weight_can_be_set() -> None:
    assert Appearance(max_weight=0.3).find_limit([np.ones((2, 2), np.float32)]) == 0.3
    with pytest.raises(ConfigError, match="positive"):
        Appearance(max_weight=0)
