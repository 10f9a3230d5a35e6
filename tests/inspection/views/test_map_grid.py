"""Grids: a map for each layer and head, with one scale of colors."""

import re
from pathlib import Path

import numpy as np
import pytest

from regard.inspection import figures
from regard.inspection.views.labels import Labels
from regard.inspection.views.map_grid import MapGrid
from regard.inspection.views.maps import AttentionMap
from tests_svg import read_labels

WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.25, 0.25, 0.5]], dtype=np.float32)
LABELS = Labels(["a", "b", "c"], ["x", "y", "z"])


def grid(layers: list[int], heads: list[int | None], labels: Labels = LABELS, weights: np.ndarray = WEIGHTS) -> MapGrid:
    maps = [AttentionMap(weights, layer, head) for layer in layers for head in heads]
    return MapGrid(maps, labels, "title")


def test_a_terminal_shows_a_small_map_for_each_head() -> None:
    lines = grid([1], [1, 2]).to_text().split("\n")
    assert lines == [
        "layer 1, head 1  layer 1, head 2",
        "█                █",
        " ▒▒               ▒▒",
        "░░▒              ░░▒",
    ]
    assert len(grid([1, 2], [1, 2]).to_text(20).split("\n\n")) == 4


def test_a_color_terminal_shows_two_rows_in_a_character() -> None:
    text = grid([1], [1]).to_color()
    assert text.plain.split("\n")[1:] == ["▀▀▀" + " " * 14] * 2


def test_rows_are_layers_columns_are_heads_and_there_is_one_color_bar(tmp_path: Path) -> None:
    figure = grid([1, 2], [1, 2, 3]).build_figure()
    *maps, bar = figure.axes
    assert len(maps) == 6
    assert bar.get_ylabel() == "attention weight"
    assert {image.get_clim() for axes in maps for image in axes.images} == {(0.0, 1.0)}
    positions = {(round(float(axes.get_position().x0), 4), round(float(axes.get_position().y0), 4)) for axes in maps}
    assert len({x for x, _ in positions}) == 3
    assert len({y for _, y in positions}) == 2
    figures.draw(grid([1, 2], [1, 2, 3]), tmp_path / "grid.svg")
    assert set(read_labels(tmp_path / "grid.svg")) >= {
        "title", "layer 1", "layer 2", "head 1", "head 3", *LABELS.columns, *LABELS.rows,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "heads", "titles"),
    [([3], [1, 2], ["head 1", "head 2"]), ([1, 2], [None], ["layer 1", "layer 2"])],
)
def test_a_row_of_maps_is_titled_with_what_differs(
    layers: list[int], heads: list[int | None], titles: list[str]
) -> None:
    figure = grid(layers, heads).build_figure()
    assert [axes.get_title() for axes in figure.axes[:-1]] == titles


def test_long_sentences_are_drawn_without_labels_in_the_same_width() -> None:
    tokens = [f"token{index}" for index in range(60)]
    figure = grid([1, 2], [1, 2, 3, 4], Labels(tokens, tokens), np.eye(60, dtype=np.float32)).build_figure()
    assert figure.get_figwidth() < 15
    assert all(not axes.get_xticks().size for axes in figure.axes[:-1])


def test_a_page_has_an_image_for_each_head_and_works_offline() -> None:
    page = grid([1, 2], [1, 2]).to_html()
    sources = re.findall(r'src="(.*?)"', page)
    assert len(sources) == 4
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "layer 2, head 1" in page


def test_an_empty_prediction_has_a_grid() -> None:
    empty = grid([1], [1, 2], Labels(["a"], []), np.zeros((0, 1), np.float32))
    assert empty.build_figure().axes
    assert "img" in empty.to_html()
    assert "head 2" in empty.to_text()
    assert empty.to_color()


def test_large_maps_are_pooled_in_a_terminal_and_keep_their_largest_weights() -> None:
    weights = np.zeros((100, 90), np.float32)
    weights[99, 0] = weights[0, 89] = 1
    large = grid([1], [1], Labels([""] * 90, [""] * 100), weights)
    _, *lines = large.to_text().split("\n")
    assert len(lines) == 40
    assert (lines[0], lines[-1]) == (" " * 39 + "█", "█")
    assert len(large.to_color().plain.split("\n")) == 21
