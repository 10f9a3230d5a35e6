"""Attention maps: roles, layers, heads, reductions and words; and rollout, compared with products computed by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from regard.attention.attention import Role
from regard.errors import ConfigError
from regard.inspection.prediction import Prediction
from regard.inspection.views.heatmap import HeatMap
from regard.inspection.views.line_view import LineView
from regard.inspection.views.map_grid import MapGrid
from regard.inspection.views.maps import MapSelection, roll_out, roll_out_cross

SOURCE, OUTPUT = ["▁a", "▁foot", "ball"], ["▁ein", "▁Fuß", "ball", "."]
ROLES: tuple[Role, ...] = ("encoder-self", "decoder-self", "cross")
SHAPES = {"encoder-self": (3, 3), "decoder-self": (4, 4), "cross": (4, 3)}


def transformer(layers: int = 2, heads: int = 2) -> Prediction:
    generator = np.random.default_rng(0)
    attentions, roles = {}, {}
    for role in ROLES:
        for layer in range(layers):
            weights = generator.random((heads, *SHAPES[role])).astype(np.float32)
            attentions[f"{role}.{layer}"] = weights / weights.sum(-1, keepdims=True)
            roles[f"{role}.{layer}"] = role
    offsets = [(0, 1), (2, 6), (6, 10)]
    return Prediction("a football", "ein Fußball.", -1.0, OUTPUT, SOURCE, offsets, attentions=attentions, roles=roles)


PREDICTION = transformer()
CROSS = [PREDICTION.attentions["cross.0"], PREDICTION.attentions["cross.1"]]


@pytest.mark.parametrize(
    ("options", "expected", "title"),
    [
        ({}, CROSS[1].mean(0), "Cross-attention, layer 2 of 2, average of 2 heads"),
        ({"layer": 1, "head": 2}, CROSS[0][1], "Cross-attention, layer 1 of 2, head 2 of 2"),
        ({"head": "max"}, CROSS[1].max(0), "Cross-attention, layer 2 of 2, maximum of 2 heads"),
        ({"layer": "mean"}, np.mean(CROSS, (0, 1)), "Cross-attention, average of 2 layers, average of 2 heads"),
        ({"layer": "max", "head": 1}, np.max(CROSS, 0)[0], "Cross-attention, maximum of 2 layers, head 1 of 2"),
        (
            {"attention": "decoder-self.0"},
            PREDICTION.attentions["decoder-self.0"].mean(0),
            "Decoder self-attention, layer 1 of 2, average of 2 heads",
        ),
        (
            {"attention": "encoder-self", "layer": "rollout"},
            roll_out([PREDICTION.attentions[f"encoder-self.{layer}"].mean(0) for layer in range(2)]),
            "Attention rollout, encoder self-attention, average of 2 heads",
        ),
        (
            {"layer": "rollout", "head": 1},
            roll_out_cross(*([PREDICTION.attentions[f"{role}.{layer}"][0] for layer in range(2)] for role in ROLES)),
            "Attention rollout, head 1 of 2",
        ),
    ],
)
def test_one_map_is_selected(options: dict[str, Any], expected: np.ndarray, title: str) -> None:
    selected = PREDICTION.select(**options)
    [part] = selected.maps
    np.testing.assert_allclose(part.weights_TS, expected, rtol=1e-6)
    assert selected.title == title


def test_all_layers_and_heads_are_selected_in_order() -> None:
    selected = PREDICTION.select(layer="all", head="all")
    assert [(part.layer, part.head) for part in selected.maps] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert selected.maps[2].weights_TS is not None
    np.testing.assert_array_equal(selected.maps[2].weights_TS, CROSS[1][0])
    assert [part.layer for part in PREDICTION.select(layer="all").maps] == [1, 2]
    assert [part.head for part in PREDICTION.select(layer="mean", head="all").maps] == [1, 2]


def test_rows_of_words_are_averaged_and_columns_are_summed() -> None:
    selected = PREDICTION.select(words=True)
    weights = CROSS[1].mean(0)
    assert (selected.labels.columns, selected.labels.rows) == (["a", "football"], ["ein", "Fußball."])
    expected = [
        [weights[0, 0], weights[0, 1] + weights[0, 2]],
        [weights[1:, 0].mean(), (weights[1:, 1] + weights[1:, 2]).mean()],
    ]
    np.testing.assert_allclose(selected.maps[0].weights_TS, expected, rtol=1e-6)
    np.testing.assert_allclose(selected.maps[0].weights_TS.sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("attention", "columns", "rows"),
    [
        ("cross", SOURCE, OUTPUT),
        ("encoder-self", SOURCE, SOURCE),
        ("decoder-self", ["<s>", *OUTPUT[:-1]], OUTPUT),
    ],
)
def test_axes_are_labeled_by_role(attention: str, columns: list[str], rows: list[str]) -> None:
    labels = PREDICTION.select(attention=attention).labels
    assert (labels.columns, labels.rows) == (columns, rows)


def test_the_start_token_is_a_word_of_its_own() -> None:
    labels = PREDICTION.select(attention="decoder-self", words=True).labels
    assert (labels.columns, labels.rows) == (["<s>", "ein", "Fußball"], ["ein", "Fußball."])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 3}, "There is no layer 3: the model has 2 layers of cross-attention"),
        ({"head": 5}, "There is no head 5: the attention has 2 heads"),
        ({"attention": "cros"}, r"no attention 'cros'. Did you mean 'cross'\?"),
        ({"attention": "cross.0", "layer": 1}, "cross.0 is a single layer"),
        ({"layer": "rollout", "head": "all"}, "Select a role, and one head"),
        ({"layer": 0}, "layer must be a number from 1, mean or max or rollout or all, not 0"),
        ({"head": "sum"}, "head must be a number from 1"),
    ],
)
def test_a_selection_that_does_not_exist_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PREDICTION.select(**options)


def test_a_model_without_self_attention_has_no_rollout() -> None:
    weights = np.full((4, 3), 1 / 3, np.float32)
    prediction = Prediction("", "", 0, OUTPUT, SOURCE, [], attentions={"a": weights}, roles={"a": "cross"})
    with pytest.raises(ConfigError, match="this model has no self-attention"):
        prediction.view(layer="rollout")
    with pytest.raises(ConfigError, match=r"no encoder self-attention. Select one of cross"):
        prediction.view(attention="encoder-self")


def test_a_model_without_attention_shows_zeros() -> None:
    prediction = Prediction("", "", 0, OUTPUT, SOURCE, [])
    assert prediction.view().title == "The model has no cross-attention."
    assert not prediction.select().maps[0].weights_TS.any()
    assert str(prediction)
    with pytest.raises(ConfigError, match=r"no cross-attention. It has no attention."):
        prediction.view(head=1)


def test_the_kind_of_view_follows_the_selection() -> None:
    assert isinstance(PREDICTION.view(), HeatMap)
    grid = PREDICTION.view(kind="grid")
    assert isinstance(grid, MapGrid)
    assert len(grid.maps) == 4
    assert isinstance(PREDICTION.view(head="all"), MapGrid)
    lines = PREDICTION.view(kind="lines", head="all")
    assert isinstance(lines, LineView)
    assert lines.names == ["head 1", "head 2"]
    with pytest.raises(ConfigError, match="A matrix shows one map, but 2 are selected"):
        PREDICTION.view(kind="matrix", head="all")
    with pytest.raises(ConfigError, match="Lines show one layer"):
        PREDICTION.view(kind="lines", layer="all")


def test_the_document_contains_the_selected_weights() -> None:
    document = PREDICTION.select(head=1, words=True).document
    assert document["columns"] == ["a", "football"]
    assert document["role"] == "cross"
    assert [(part["layer"], part["head"]) for part in document["maps"]] == [(2, 1)]


def test_a_selection_is_a_value() -> None:
    assert MapSelection("cross", 1, "max") == MapSelection("cross", 1, "max")
    assert len({MapSelection(), MapSelection(words=True), MapSelection()}) == 2


def test_an_ensemble_has_the_layers_of_all_models_and_no_rollout() -> None:
    ensemble = replace(PREDICTION, members=2)
    assert ensemble.select().title == "Cross-attention, layer 2 of 2, average of 2 heads (the layers of 2 models)"
    with pytest.raises(ConfigError, match="defined for one model, and this is an ensemble of 2"):
        ensemble.view(layer="rollout")


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
