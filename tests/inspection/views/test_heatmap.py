"""Heat maps and traces show the attention weights, and tokens are text, never markup."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.cells import cell_len

from regard.inspection.prediction import Prediction
from regard.inspection.views.heatmap import HeatMap
from regard.inspection.views.labels import Labels, isolate
from regard.inspection.views.labels import label as make_label

WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]], dtype=np.float32)


def prediction(source: list[str], target: list[str]) -> Prediction:
    offsets = [(index, index + 1) for index in range(len(source))]
    return Prediction(
        "".join(source),
        "".join(target),
        -0.5,
        target,
        source,
        offsets,
        attentions={"decoder.attention": WEIGHTS},
        roles={"decoder.attention": "cross"},
    )


class Page(HTMLParser):
    """The tags of a page, its header cells, and the titles of its other cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.headers: list[str] = []
        self.titles: list[str] = []
        self._in_header = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "th":
            self.headers.append("")
        self._in_header = tag in {"th", "bdi"} and bool(self.headers)
        if tag == "td":
            self.titles.append(dict(attrs)["title"] or "")

    def handle_endtag(self, tag: str) -> None:
        self._in_header = self._in_header and tag != "th"

    def handle_data(self, data: str) -> None:
        if self._in_header:
            self.headers[-1] += data


def test_a_weight_of_one_is_a_full_block_and_zero_is_blank() -> None:
    lines = HeatMap(WEIGHTS, Labels(["a", "b", "c"], ["x", "y"])).to_text().split("\n")
    assert lines == ["    a b c", " x  ██", " y    ▒▒▒▒"]


def test_a_source_that_is_too_wide_is_split_into_parts() -> None:
    weights = np.eye(30, dtype=np.float32)[:2]
    lines = HeatMap(weights, Labels(list("abcdefghijklmnopqrstuvwxyzabcd"), ["1", "2"])).to_text(width=24).split("\n")
    assert max(len(line) for line in lines) <= 24
    assert [line.split()[0] if line else "" for line in lines] == [*"a12", "", *"k12", "", *"u12"]


@pytest.mark.parametrize(
    ("token", "label"), [(" ", "␣"), ("\u0301", "◌\u0301"), ("\u200f", "U+200F"), ("é", "é")], ids=ascii
)
def test_every_token_has_a_visible_label(token: str, label: str) -> None:
    assert make_label(token) == label


def test_right_to_left_tokens_are_isolated_so_that_columns_stay_in_order() -> None:
    lines = HeatMap(WEIGHTS, Labels(["ab", "كتاب", "!"], ["x", "ספר"])).to_text().split("\n")
    assert lines[0].split() == ["ab", "\u2068كتاب\u2069", "!"]
    assert lines[2].split()[0] == "\u2068ספר\u2069"
    starts = [cell_len(line[: line.index(text)]) for line, text in ((lines[0], "ab"), (lines[1], "█"))]
    assert starts[0] == starts[1]
    assert isolate("٣") == "\u2068٣\u2069"
    assert isolate("3 mai ▁日") == "3 mai ▁日"


def test_markup_in_a_token_is_escaped() -> None:
    source, target = ["<", "/script>", '"'], ["<b>", "&"]
    table = Page(prediction(source, target)._repr_html_())
    assert table.tags == {"div", "table", "style", "tr", "th", "td", "bdi", "span"}
    assert table.headers == ["", *source, *target]
    cells = [re.fullmatch(r"(.+) ← (.+): (\d\.\d+)", title) for title in table.titles]
    expected = [(row, column) for row in target for column in source]
    assert [(cell[1], cell[2]) for cell in cells if cell] == expected
    assert [float(cell[3]) for cell in cells if cell] == WEIGHTS.flatten().tolist()


def test_a_prediction_prints_as_its_heat_map() -> None:
    printed = prediction(["a", "b", "c"], ["x", "y"])
    assert str(printed) == HeatMap(WEIGHTS, Labels(["a", "b", "c"], ["x", "y"])).to_text()
    assert repr(printed) == "Prediction('xy', score=-0.5000)"
