"""Contact sheets show each word with its weights over the picture: in figures, pages and terminals."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from rich.cells import cell_len

from regard.errors import ConfigError
from regard.inspection import figures
from regard.inspection.prediction import Prediction
from regard.inspection.views.contact_sheet import ContactSheet
from regard.inspection.views.heatmap import HeatMap
from regard.models.contracts import Grid
from tests_html import Page
from tests_svg import read_labels

GRID = Grid(2, 3)
PICTURE = np.full((40, 60, 3), (200, 180, 160), np.uint8)
WEIGHTS = np.zeros((3, 2, 3), np.float32)
WEIGHTS[0] = 1 / 6
WEIGHTS[1, 0, 2], WEIGHTS[1, 1, 0] = 0.75, 0.25
WEIGHTS[2, 1, 1] = 1


def sheet(**changes: object) -> ContactSheet:
    return replace(ContactSheet(PICTURE, "photos/a.jpg", "a red ball", ["a", "red", "ball"], WEIGHTS), **changes)  # type: ignore[arg-type]


def predict(tokens: list[str], layout: Grid | None = GRID, slots: int = 6) -> Prediction:
    weights = np.full((len(tokens), slots), 1 / slots, np.float32)
    return Prediction(
        "a.jpg", "text", -0.5, tokens, [], [], layout=layout, attentions={"cross": weights}, roles={"cross": "cross"}
    )


def test_text_shows_a_grid_of_shades_for_each_word() -> None:
    assert sheet().to_text(40).split("\n") == [
        "a 0.17     red 0.75   ball 1.00",
        "██████     ····██     ······",
        "██████     ░░····     ··██··",
    ]


def test_words_that_do_not_fit_into_the_width_are_wrapped() -> None:
    lines = sheet().to_text(20).split("\n")
    assert max(map(cell_len, lines)) <= 20
    assert [line.split()[0] for line in lines if "." in line] == ["a", "ball"]
    assert sheet().to_text(1).count("\n\n") == 2


def test_a_terminal_shows_the_picture_and_a_panel_for_each_word_in_color() -> None:
    text = sheet().to_color(200)
    title, *lines = text.plain.split("\n")
    assert title.split() == ["a.jpg", "a", "0.17", "red", "0.75", "ball", "1.00"]
    assert len(lines) == 7  # 14 × 21 pixels, two in each character
    assert all(line.count("▀") == 4 * 21 for line in lines)
    first = next(span.style for span in text.spans if text.plain[span.start] == "▀")
    assert str(first) == "#c8b4a0 on #c8b4a0"


def test_a_figure_shows_the_caption_the_picture_and_the_words_with_their_largest_weights(tmp_path: Path) -> None:
    for name in ("first.svg", "second.svg"):
        figures.draw(sheet(title="decoder.attention, average of 4 heads"), tmp_path / name)
    labels = read_labels(tmp_path / "first.svg")
    words = {"a", "red", "ball", "0.17", "0.75", "1.00"}
    assert set(labels) == words | {"a red ball", "a.jpg", "decoder.attention, average of 4 heads"}
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()
    assert "<image" in (tmp_path / "first.svg").read_text()


def test_panels_are_aligned_and_keep_the_proportions_of_the_picture() -> None:
    figure = sheet(words=list("abcdefgh"), weights_TYX=np.repeat(WEIGHTS[:1], 8, 0)).build_figure()
    width, height = figure.get_size_inches()
    boxes = [axes.get_position() for axes in figure.axes]
    assert len(boxes) == 9
    assert {round(float(box.width * width / (box.height * height)), 3) for box in boxes} == {1.5}
    assert len({round(float(box.x0), 6) for box in boxes}) < len(boxes)  # columns
    assert all(box.x0 >= 0 and box.x1 <= 1 + 1e-9 and box.y0 + 1e-9 >= 0 and box.y1 < 1 for box in boxes)


def test_the_cell_of_hard_attention_is_outlined_and_the_grid_has_borders() -> None:
    _, _, soft, hard = sheet().build_figure().axes
    assert not soft.patches
    [outline] = hard.patches
    assert (outline.get_x(), outline.get_y(), outline.get_width(), outline.get_height()) == pytest.approx(
        (1 / 3, 1 / 2, 1 / 3, 1 / 2)
    )
    picture, *panels = sheet(style="grid").build_figure().axes
    assert not picture.collections
    for panel in panels:
        rows, columns = (lines.get_segments() for lines in panel.collections)
        assert (len(rows), len(columns)) == (1, 2)


@pytest.mark.parametrize("style", ["smooth", "grid"])
def test_the_brightest_part_of_a_panel_is_the_cell_with_the_largest_weight(tmp_path: Path, style: str) -> None:
    figure = sheet(style=style).build_figure()
    pixels = figure.axes[2].images[0].get_array()
    brightness = np.asarray(pixels, float).sum(-1)
    y, x = np.unravel_index(int(brightness.argmax()), brightness.shape)
    assert (2 * int(y) // brightness.shape[0], 3 * int(x) // brightness.shape[1]) == (0, 2)
    figures.draw(sheet(style=style), tmp_path / "sheet.png")
    assert imread(tmp_path / "sheet.png").shape[1] > 900


def test_a_long_word_is_drawn_smaller_instead_of_over_its_weight() -> None:
    long = "Donaudampfschifffahrtsgesellschaft"
    figure = sheet(words=["a", long, "ball"]).build_figure()
    axes = figure.axes[2]
    renderer = figure.canvas.get_renderer()
    title, note = (axes.title if loc == "center" else getattr(axes, f"_{loc}_title") for loc in ("left", "right"))
    assert title.get_text() == long
    assert title.get_window_extent(renderer).x1 <= note.get_window_extent(renderer).x0


def test_a_file_name_that_is_too_long_is_cut_instead_of_drawn_over_the_next_panel() -> None:
    figure = sheet(name=f"photos/{'3363750526_' * 6}.webp").build_figure()
    axes = figure.axes[0]
    title = axes._left_title
    renderer = figure.canvas.get_renderer()
    assert title.get_text().startswith("3363750526_")
    assert title.get_text().endswith("…")
    assert title.get_window_extent(renderer).x1 <= axes.get_window_extent(renderer).x1


def test_a_page_is_self_contained_and_stores_the_picture_once() -> None:
    page = Page(sheet().to_html())
    assert page.tags.count("svg") == 4
    assert page.tags.count("use") == 3
    assert page.tags.count("rect") == 1  # the cell of hard attention
    assert all(address.startswith(("data:image/png;base64,", "#picture-")) for address in page.addresses)
    assert {"a.jpg", "a red ball", "red", "0.75"} <= set(page.texts)
    grid = sheet(style="grid").to_html()
    assert grid.count("image-rendering:pixelated") == grid.count("<path") == 3


def test_markup_in_words_and_names_is_escaped() -> None:
    page = Page(sheet(words=["<b>", "&", '"'], name="<i>.jpg", caption="</div><script>").to_html())
    assert {"script", "b", "i"}.isdisjoint(page.tags)
    assert {"<b>", "&", '"', "<i>.jpg", "</div><script>"} <= set(page.texts)


def test_a_prediction_is_shown_over_its_picture() -> None:
    prediction = predict(["▁a", "▁ball"])
    assert isinstance(prediction.view(), ContactSheet)
    assert str(prediction).splitlines() == ["a 0.17     ball 0.17", "██████     ██████", "██████     ██████"]
    assert prediction._repr_html_().count("<svg") == 3
    assert prediction.pixels is None  # weights are shown over gray


def test_the_weights_of_a_word_are_averaged_over_its_tokens() -> None:
    prediction = predict(["▁foot", "ball", "▁field"])
    weights = np.eye(3, 6, dtype=np.float32)
    view = replace(prediction, attentions={"cross": weights}).view()
    assert isinstance(view, ContactSheet)
    assert view.words == ["football", "field"]
    assert view.weights_TYX.reshape(2, 6).tolist() == [[0.5, 0.5, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]]


def test_the_self_attention_of_an_image_encoder_is_averaged_over_the_cells() -> None:
    weights = np.zeros((6, 6), np.float32)
    weights[:4, 5], weights[4:, 0] = 1, 1
    prediction = replace(predict(["▁a"]), attentions={"self": weights}, roles={"self": "encoder-self"})
    view = prediction.view(attention="encoder-self")
    assert isinstance(view, ContactSheet)
    assert view.words == ["average over the cells"]
    np.testing.assert_allclose(view.weights_TYX.flatten(), [1 / 3, 0, 0, 0, 0, 2 / 3], rtol=1e-6)


def test_an_empty_prediction_shows_the_picture_alone() -> None:
    prediction = predict([])
    assert str(prediction) == ""
    assert len(prediction.view().build_figure().axes) == 1
    assert prediction._repr_html_().count("<svg") == 1


@pytest.mark.parametrize("layout", [None, Grid(2, 2)])
def test_slots_that_do_not_form_the_grid_are_shown_as_a_heat_map(layout: Grid | None) -> None:
    view = predict(["▁a"], layout).view()
    assert isinstance(view, HeatMap)
    assert re.findall(r"\d", view.to_text().splitlines()[0]) == list("123456")


def test_a_head_or_a_grid_of_heads_is_selected_over_a_picture() -> None:
    weights = np.stack([np.eye(3, 6, dtype=np.float32), np.eye(3, 6, 3, dtype=np.float32)])
    prediction = replace(predict(["▁foot", "ball", "▁field"]), attentions={"cross": weights})
    view = prediction.view(head=2)
    assert isinstance(view, ContactSheet)
    assert view.words == ["football", "field"]
    assert view.weights_TYX.reshape(2, 6).tolist() == [[0, 0, 0, 0.5, 0.5, 0], [0, 0, 0, 0, 0, 1]]
    grid = prediction.view(kind="grid")
    assert isinstance(grid, ContactSheet)
    assert grid.words == ["layer 1, head 1", "layer 1, head 2"]
    assert grid.title == "Cross-attention, averaged over the words"
    np.testing.assert_allclose(grid.weights_TYX[0].flatten(), [0.25, 0.25, 0.5, 0, 0, 0])
    with pytest.raises(ConfigError, match="the source is an image"):
        prediction.view(kind="lines")
