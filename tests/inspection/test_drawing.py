"""What is drawn is what was computed, and tokens are text, never markup."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from regard.errors import ConfigError
from regard.inspection import heatmap
from regard.inspection.prediction import Prediction
from regard.inspection.trace import Trace

WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]], dtype=np.float32)


def prediction(source: list[str], target: list[str]) -> Prediction:
    offsets = [(index, index + 1) for index in range(len(source))]
    return Prediction(
        "".join(source), "".join(target), -0.5, target, source, offsets, attentions={"decoder.attention": WEIGHTS}
    )


def test_a_full_weight_is_a_full_block_and_none_is_blank() -> None:
    lines = heatmap.plain(WEIGHTS, ["a", "b", "c"], ["x", "y"]).split("\n")
    assert lines == ["    a b c", " x  ██", " y    ▒▒▒▒"]


def test_a_source_too_wide_is_shown_in_parts() -> None:
    weights = np.eye(30, dtype=np.float32)[:2]
    drawn = heatmap.plain(weights, list("abcdefghijklmnopqrstuvwxyzabcd"), ["1", "2"], width=24)
    assert max(len(line) for line in drawn.split("\n")) <= 24
    assert drawn.count(" 1") == 3


def test_tokens_that_cannot_stand_alone_are_made_visible() -> None:
    assert heatmap.label(" ") == "␣"
    assert heatmap.label("\u0301") == "◌\u0301"
    assert heatmap.label("\u200f") == "U+200F"
    assert heatmap.label("é") == "é"


def test_right_to_left_tokens_are_isolated_so_that_columns_stay_in_order() -> None:
    lines = heatmap.plain(WEIGHTS, ["ab", "كتاب", "!"], ["x", "ספר"]).split("\n")
    assert lines[0].split() == ["ab", "\u2068كتاب\u2069", "!"]
    assert lines[2].split()[0] == "\u2068ספר\u2069"
    starts = [cell_len(line[: line.index(sign)]) for line, sign in ((lines[0], "ab"), (lines[1], "█"))]
    assert starts[0] == starts[1]
    assert heatmap.isolated("٣") == "\u2068٣\u2069"
    assert heatmap.isolated("3 mai ▁日") == "3 mai ▁日"


def test_markup_in_a_token_stays_text() -> None:
    shown = prediction(["<", "/script>", '"'], ["<b>", "&"])
    for page in (shown._repr_html_(), Trace.of(shown).to_html()):
        assert "<b>" not in page
        assert "</script>" not in page
        assert "&lt;b&gt;" in page
    numbers = re.findall(r": (\d\.\d+)\"", shown._repr_html_())
    assert [float(number) for number in numbers] == WEIGHTS.flatten().tolist()


def test_printing_shows_the_map() -> None:
    shown = prediction(["a", "b", "c"], ["x", "y"])
    assert "██" in str(shown)
    assert repr(shown) == "Prediction('xy', score=-0.5000)"


def test_a_trace_is_the_numbers(tmp_path: Path) -> None:
    Trace.of(prediction(["a", "b", "c"], ["x", "y"])).save(tmp_path / "t.json")
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["attention"][0]["data"] == WEIGHTS.tolist()
    assert document["attention"][0]["shape"] == [2, 3]
    with pytest.raises(ConfigError, match=r"\.json or \.html"):
        Trace.of(prediction(["a", "b", "c"], ["x", "y"])).save(tmp_path / "t.txt")
