"""Lines: one from each source token to each target token, with the opacity of its weight."""

import re
from pathlib import Path

import numpy as np

from regard.inspection import figures
from regard.inspection.views.appearance import CATEGORY_COLORS
from regard.inspection.views.labels import Labels
from regard.inspection.views.line_view import LineView
from tests_svg import read_labels

WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.0, 0.4, 0.6]], dtype=np.float32)
LABELS = Labels(["a", "<b>", "c"], ["x", "&"])


def view(*maps: np.ndarray) -> LineView:
    return LineView(maps, LABELS, "title", [f"head {head + 1}" for head in range(len(maps))])


def test_a_terminal_lists_the_source_tokens_of_each_target_token() -> None:
    assert view(WEIGHTS).to_text().split("\n") == [" x ←  a 1.00", " & ←  c 0.60  <b> 0.40"]
    assert view(WEIGHTS, WEIGHTS).to_text().split("\n")[:2] == [" x head 1 ←  a 1.00", " x head 2 ←  a 1.00"]
    assert view(WEIGHTS).to_text(14).split("\n")[1] == " & ←  c 0.60"


def test_a_figure_has_a_line_for_each_weight_with_its_opacity() -> None:
    axes = view(WEIGHTS).build_figure().axes[0]
    [lines] = axes.collections
    drawn = {
        (round(float(start[1]), 3), round(float(end[1]), 3)): round(float(color[3]), 2)
        for (start, end), color in zip(lines.get_segments(), lines.get_colors(), strict=True)
    }
    first, second, third = 1 / 6, 3 / 6, 5 / 6
    expected = {(first, 0.25): 1.0, (second, 0.75): 0.4, (third, 0.75): 0.6}
    assert drawn == {(round(left, 3), right): opacity for (left, right), opacity in expected.items()}


def test_each_head_has_a_color_and_a_legend_names_it(tmp_path: Path) -> None:
    figures.draw(view(WEIGHTS, WEIGHTS), tmp_path / "lines.svg")
    assert set(read_labels(tmp_path / "lines.svg")) == {
        *("a", "<b>", "c", "x", "&"), "title", "source", "output", "head 1", "head 2",
    }  # fmt: skip
    page = view(WEIGHTS, WEIGHTS).to_html()
    assert set(re.findall(r'stroke="(#\w+)"', page)) == set(CATEGORY_COLORS[:2])
    assert "head 2" in page


def test_a_page_shows_weights_and_escapes_tokens() -> None:
    page = view(WEIGHTS).to_html()
    assert page.count("<line ") == 3
    assert "<title>&amp; ← &lt;b&gt;: 0.400</title>" in page
    assert "<b>" not in page
    assert re.findall(r'stroke-opacity="([\d.]+)"', page) == ["0.400", "0.600", "1.000"]
    assert "href" not in page
    assert "http" not in page


def test_an_empty_prediction_has_no_lines() -> None:
    empty = LineView([np.zeros((0, 2), np.float32)], Labels(["a", "b"], []))
    assert not empty.build_figure().axes[0].collections[0].get_segments()
    assert empty.to_text() == ""
    assert "<line" not in empty.to_html()
