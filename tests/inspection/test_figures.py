"""Figures of alignments: readable, complete, and drawn whichever fonts are installed."""

import math
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager, get_data_path

from regard.inspection import figures, fonts
from regard.inspection.prediction import Prediction
from regard.runs.folder import RunFolder

Run = Callable[..., subprocess.CompletedProcess[str]]

SENTENCE = ["▁A", "▁man", "▁in", "▁an", "▁orange", "▁hat", "▁star", "ing", "▁at", "▁something", "▁un", "usual", "."]
TRANSLATION = ["▁Ein", "▁Mann", "▁mit", "▁einem", "▁Hut", "▁starr", "t", "▁etwas", "▁Ungewöhn", "liches", "!"]


def prediction(source: list[str], output: list[str], heads: int = 0) -> Prediction:
    weights = np.full((len(output), len(source)), 1 / max(1, len(source)), dtype=np.float32)
    attentions = {"decoder.attention": weights}
    if heads:
        names = [f"decoder.layers.{layer}.cross_attention.attention" for layer in range(2)]
        attentions = {name: np.stack([weights] * heads) for name in names}
    offsets = [(place, place + 1) for place in range(len(source))]
    return Prediction("".join(source), "".join(output), -0.5, output, source, offsets, attentions=attentions)


def texts_in(path: Path) -> dict[str, tuple[float, float]]:
    """Every text of an SVG file: its rotation and its size."""
    found = re.findall(r'<text style="font-size: (\d+)px;.*?rotate\((-?[\d.]+).*?>(.*?)</text>', path.read_text())
    return {text: (float(angle), float(size)) for size, angle, text in found}


@pytest.fixture
def only_own_fonts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with no fonts but those that come with matplotlib."""
    own = [font for font in font_manager.fontManager.ttflist if font.fname.startswith(get_data_path())]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    forget_fonts()
    yield
    forget_fonts()


def forget_fonts() -> None:
    fonts._families.cache_clear()
    font_manager.fontManager._findfont_cached.cache_clear()


def test_a_figure_names_every_token_and_is_the_same_each_time(tmp_path: Path) -> None:
    shown = prediction(["日", "é", "ك"], ["x", "y"])
    for name in ("one.svg", "two.svg", "one.png", "one.pdf"):
        figures.save(shown, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    assert set(texts_in(tmp_path / "one.svg")) >= {"日", "é", "ك", "x", "y", "source", "output"}
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.usefixtures("only_own_fonts")
def test_without_a_font_for_a_character_the_figure_is_drawn_and_the_remedy_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.svg", "a.png", "a.pdf"):
        figures.save(prediction(["日", "क"], ["x"]), tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    [record] = caplog.records
    assert "No installed font has क 日" in record.getMessage()
    assert record.getMessage().endswith("apt-get install fonts-noto-cjk fonts-noto-core")


def build_font(path: Path, family: str, letters: str) -> None:
    """A font whose letters are squares."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for point in ((0, 700), (700, 700), (700, 0)):
        pen.lineTo(point)
    pen.closePath()
    glyphs = [".notdef", *(f"u{ord(letter):04X}" for letter in letters)]
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(glyphs)
    builder.setupCharacterMap({ord(letter): f"u{ord(letter):04X}" for letter in letters})
    builder.setupGlyf(dict.fromkeys(glyphs, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (800, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)


@pytest.mark.usefixtures("only_own_fonts")
def test_a_font_installed_after_matplotlib_listed_its_fonts_is_found_whatever_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures.save(prediction(["日"], ["x"]), tmp_path / "before.png")
    build_font(tmp_path / "han.ttf", "Test-Han: Sans", "日月")
    (tmp_path / "broken.ttf").write_bytes(b"not a font")
    caplog.clear()
    forget_fonts()
    installed = [str(tmp_path / name) for name in ("broken.ttf", "han.ttf")]
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: installed)
    figures.save(prediction(["日"], ["x"]), tmp_path / "after.png")
    figures.save(prediction(["日"], ["x"]), tmp_path / "after.svg")
    assert caplog.records == []
    assert "Test-Han: Sans" in (tmp_path / "after.svg").read_text()
    assert (tmp_path / "before.png").read_bytes() != (tmp_path / "after.png").read_bytes()


def test_look_writes_every_file_and_warns_once_without_fonts(
    cli: Run, small_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPL_IGNORE_SYSTEM_FONTS", "1")
    names = ["a.svg", "a.png", "a.pdf", "a.html"]
    done = cli("look", small_run.path, "2009年5月3日", *(word for name in names for word in ("-o", name)))
    assert done.returncode == 0, done.stderr
    assert all((tmp_path / name).stat().st_size > 1000 for name in names)
    assert done.stderr.count("fonts-noto-cjk") == 1
    assert [line for line in done.stderr.splitlines() if "font" not in line] == [f"wrote {name}" for name in names]


def test_labels_wider_than_their_column_are_slanted_and_do_not_overlap(tmp_path: Path) -> None:
    figures.save(prediction(SENTENCE, TRANSLATION), tmp_path / "sentence.svg")
    found = texts_in(tmp_path / "sentence.svg")
    assert {found[token] for token in SENTENCE} == {(-45.0, 10.0)}
    assert {found[token][0] for token in TRANSLATION} == {0.0}
    # The distance between the baselines of two slanted labels leaves room for a line of text.
    column = figures.build(prediction(SENTENCE, TRANSLATION)).get_figwidth() * 72 / len(SENTENCE)
    assert column * math.sin(math.pi / 4) > 1.3 * 10
    figures.save(prediction(list("2009年"), list("2009")), tmp_path / "date.svg")
    assert {texts_in(tmp_path / "date.svg")[letter][0] for letter in "2009年"} == {0.0}


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_the_color_bar_is_no_taller_than_the_map(rows: int) -> None:
    shown, bar = (axes.get_position() for axes in figures.build(prediction(["a", "b"], ["x"] * rows)).axes)
    assert bar.height <= shown.height
    assert bar.y1 == pytest.approx(shown.y1)


def test_a_figure_of_one_of_several_maps_names_it(tmp_path: Path) -> None:
    figures.save(prediction(["a", "b"], ["x"], heads=4), tmp_path / "several.svg")
    drawn = (tmp_path / "several.svg").read_text()
    assert ">decoder.layers.1.cross_attention.attention, average of 4 heads<" in drawn
    assert ">(save as .html to see all 8 maps)<" in drawn
    figures.save(prediction(["a", "b"], ["x"]), tmp_path / "one.svg")
    assert "decoder" not in (tmp_path / "one.svg").read_text()


def test_tokens_are_not_read_as_mathematics_and_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    figures.save(prediction(["$x$", "a_b"], ["$\\frac$"]), tmp_path / "a.svg")
    assert set(texts_in(tmp_path / "a.svg")) >= {"$x$", "a_b", "$\\frac$"}
    figures.save(prediction([], []), tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 500


@pytest.mark.usefixtures("only_own_fonts")
def test_right_to_left_letters_are_joined_and_in_order(tmp_path: Path) -> None:
    def width(token: str) -> float:
        figure = figures.build(prediction([token], ["x"]))
        [text] = [tick.label2 for tick in figure.axes[0].xaxis.get_major_ticks()]
        text.set_rotation(0)
        return float(text.get_window_extent(figure.canvas.get_renderer()).width)

    assert width("كتاب") < 0.9 * width("ك\u200cت\u200cا\u200cب")  # with non-joiners, each letter has its isolated form
    # Hebrew letters, and the same letters reversed by hand and forced to run from left to right, look the same.
    for name, token in (("given", "xאי"), ("forced", "x\u202dיא\u202c"), ("wrong", "x\u202dאי\u202c")):
        figures.save(prediction([token], ["x"]), tmp_path / f"{name}.png")
    given, forced, wrong = ((tmp_path / f"{name}.png").read_bytes() for name in ("given", "forced", "wrong"))
    assert given == forced
    assert given != wrong
    figures.save(prediction(["كتاب"], ["x"]), tmp_path / "word.svg")
    assert "كتاب" in texts_in(tmp_path / "word.svg")
