"""Figures of attention weights: complete, readable, and drawn with any installed fonts."""

import contextlib
import math
import re
import subprocess
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager, get_data_path, rcParams
from matplotlib.image import imread

from regard.attention.attention import Role
from regard.inspection import figures
from regard.inspection.prediction import Prediction
from regard.inspection.views import fonts
from regard.inspection.views.appearance import Appearance
from regard.runs.folder import RunFolder
from tests_svg import read_labels

Run = Callable[..., subprocess.CompletedProcess[str]]

SENTENCE = ["▁A", "▁man", "▁in", "▁an", "▁orange", "▁hat", "▁star", "ing", "▁at", "▁something", "▁un", "usual", "."]
TRANSLATION = ["▁Ein", "▁Mann", "▁mit", "▁einem", "▁Hut", "▁starr", "t", "▁etwas", "▁Ungewöhn", "liches", "!"]


def prediction(source: list[str], output: list[str], heads: int = 0) -> Prediction:
    weights = np.full((len(output), len(source)), 1 / max(1, len(source)), dtype=np.float32)
    attentions = {"decoder.attention": weights}
    if heads:
        names = [f"decoder.layers.{layer}.cross_attention.attention" for layer in range(2)]
        attentions = {name: np.stack([weights] * heads) for name in names}
    offsets = [(index, index + 1) for index in range(len(source))]
    roles: dict[str, Role] = dict.fromkeys(attentions, "cross")
    return Prediction(
        "".join(source), "".join(output), -0.5, output, source, offsets, attentions=attentions, roles=roles
    )


@pytest.fixture
def only_matplotlib_fonts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without other fonts than those of matplotlib."""
    bundled = [font for font in font_manager.fontManager.ttflist if font.fname.startswith(get_data_path())]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", bundled)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    clear_font_caches()
    yield
    clear_font_caches()


def clear_font_caches() -> None:
    fonts._families.cache_clear()
    font_manager.fontManager._findfont_cached.cache_clear()  # type: ignore[attr-defined]


def test_a_figure_labels_every_token_and_is_reproducible(tmp_path: Path) -> None:
    for name in ("first.svg", "second.svg"):
        figures.save(prediction(["日", "é", "ك"], ["x", "y"]), tmp_path / name)
    assert set(read_labels(tmp_path / "first.svg")) >= {"日", "é", "ك", "x", "y", "source", "output"}
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()


def test_the_color_of_each_cell_is_its_weight(tmp_path: Path) -> None:
    weights = np.array([[1.0, 0.0, 0.25], [0.5, 0.75, 0.1]], dtype=np.float32)
    figure = (
        replace(prediction(["a", "b", "c"], ["x", "y"]), attentions={"decoder.attention": weights})
        .view()
        .build_figure()
    )
    figure.axes[0].spines[:].set_visible(False)
    figure.savefig(tmp_path / "map.png", dpi=100)  # without bbox_inches: the heat map alone
    pixels = imread(tmp_path / "map.png")
    assert pixels.shape == (56, 84, 4)
    centers = pixels[14::28, 14::28]
    np.testing.assert_allclose(centers[..., :3] * 255, Appearance().to_rgb(weights, 1.0), atol=1)


@pytest.mark.parametrize("extension", [".png", ".pdf"])
def test_the_format_of_a_figure_is_selected_by_the_extension(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"figure{extension}"
    figures.save(prediction(["a", "b"], ["x"]), path)
    assert path.read_bytes().startswith({".png": b"\x89PNG", ".pdf": b"%PDF"}[extension])


@pytest.mark.usefixtures("only_matplotlib_fonts")
def test_a_character_without_a_font_is_reported_once_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.svg", "a.png", "a.pdf"):
        figures.save(prediction(["日", "क"], ["x"]), tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    [record] = caplog.records
    assert record.getMessage().startswith("No installed font contains क 日, so")
    assert record.getMessage().endswith("apt-get install fonts-noto-cjk fonts-noto-core")


def build_font(path: Path, family: str, letters: str) -> None:
    """Build a font with squares for letters."""
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


@pytest.mark.usefixtures("only_matplotlib_fonts")
def test_a_font_that_is_installed_later_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures.save(prediction(["日"], ["x"]), tmp_path / "before.png")
    build_font(tmp_path / "han.ttf", "Test-Han: Sans", "日月")
    (tmp_path / "broken.ttf").write_bytes(b"not a font")
    caplog.clear()
    clear_font_caches()
    installed = [str(tmp_path / name) for name in ("broken.ttf", "han.ttf")]
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: installed)
    figures.save(prediction(["日"], ["x"]), tmp_path / "after.png")
    assert caplog.records == []
    with fonts.drawing_settings("日"):
        assert rcParams["font.family"] == [fonts.DEFAULT, "Test-Han: Sans"]
    assert (tmp_path / "before.png").read_bytes() != (tmp_path / "after.png").read_bytes()


@pytest.mark.slow
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
    labels = read_labels(tmp_path / "sentence.svg")
    # The mark of a word start is drawn as a thin line.
    assert {labels[token.replace("▁", "ˍ")] for token in SENTENCE} == {(-45.0, 10.0)}
    assert {labels[token.replace("▁", "ˍ")].rotation for token in TRANSLATION} == {0.0}
    # The distance between the baselines of two slanted labels is larger than the line height.
    column = prediction(SENTENCE, TRANSLATION).view().build_figure().get_figwidth() * 72 / len(SENTENCE)
    assert column * math.sin(math.pi / 4) > 1.3 * 10
    figures.save(prediction(list("2009年"), list("2009")), tmp_path / "date.svg")
    labels = read_labels(tmp_path / "date.svg")
    assert {labels[letter].rotation for letter in "2009年"} == {0.0}


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_the_color_bar_is_not_taller_than_the_heat_map(rows: int) -> None:
    heat_map, bar = (axes.get_position() for axes in prediction(["a", "b"], ["x"] * rows).view().build_figure().axes)
    assert bar.height <= heat_map.height
    assert bar.y1 == pytest.approx(heat_map.y1)


@pytest.mark.parametrize(
    ("heads", "title"),
    [
        (0, "Cross-attention"),
        (4, "Cross-attention, layer 2 of 2, average of 4 heads"),
    ],
)
def test_the_title_names_the_weights_that_are_drawn(heads: int, title: str) -> None:
    figure = prediction(["a", "b"], ["x"], heads=heads).view().build_figure()
    assert figure.axes[0].get_title(loc="left") == title


def test_tokens_are_not_parsed_as_mathematics(tmp_path: Path) -> None:
    figures.save(prediction(["$x$", "a_b"], ["$\\frac$"]), tmp_path / "a.svg")
    assert set(read_labels(tmp_path / "a.svg")) >= {"$x$", "a_b", "$\\frac$"}


def test_an_empty_prediction_has_a_figure_with_one_empty_cell() -> None:
    figure = prediction([], []).view().build_figure()
    [image] = figure.axes[0].images
    assert image.get_array().tolist() == [[0.0]]
    assert figure.axes[0].get_xticks().tolist() == figure.axes[0].get_yticks().tolist() == []


@pytest.mark.usefixtures("only_matplotlib_fonts")
def test_right_to_left_letters_are_joined_and_ordered(tmp_path: Path) -> None:
    def width(token: str) -> float:
        figure = prediction([token], ["x"]).view().build_figure()
        [text] = [tick.label2 for tick in figure.axes[0].xaxis.get_major_ticks()]
        text.set_rotation(0)
        return float(text.get_window_extent(figure.canvas.get_renderer()).width)

    assert width("كتاب") < 0.9 * width("ك\u200cت\u200cا\u200cب")  # non-joiners keep the isolated form of each letter
    # Hebrew letters are drawn like the reversed letters with a left-to-right override.
    for name, token in (("given", "xאי"), ("forced", "x\u202dיא\u202c"), ("wrong", "x\u202dאי\u202c")):
        figures.save(prediction([token], ["x"]), tmp_path / f"{name}.png")
    given, forced, wrong = ((tmp_path / f"{name}.png").read_bytes() for name in ("given", "forced", "wrong"))
    assert given == forced
    assert given != wrong
    figures.save(prediction(["كتاب"], ["x"]), tmp_path / "word.svg")
    assert "كتاب" in read_labels(tmp_path / "word.svg")


def read_streams(path: Path) -> list[bytes]:
    """Return the decompressed streams of a PDF file."""
    streams = []
    for stream in re.findall(rb"stream\r?\n(.*?)endstream", path.read_bytes(), re.DOTALL):
        with contextlib.suppress(zlib.error):
            streams.append(zlib.decompress(stream))
    return streams


def test_text_in_a_pdf_file_is_text_in_an_embedded_truetype_font(tmp_path: Path) -> None:
    figures.save(prediction(["ab", "é", "كتاب"], ["x", "y"]), tmp_path / "a.pdf")
    file = (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in file
    assert b"/Type3" not in file
    streams = read_streams(tmp_path / "a.pdf")
    assert any(stream.startswith(b"\x00\x01\x00\x00") for stream in streams)
    assert any(b"<00e9>" in stream for stream in streams)  # in the map from glyphs to Unicode
    assert sum(stream.count(b"TJ") for stream in streams) >= 5


def test_a_font_with_postscript_outlines_is_not_embedded_as_truetype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fonts, "_has_truetype_outlines", lambda _: False)
    figures.save(prediction(["ab"], ["x"]), tmp_path / "a.pdf")
    assert b"/Type3" in (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" not in (tmp_path / "a.pdf").read_bytes()


def test_a_pdf_file_has_a_page_for_each_prediction(tmp_path: Path) -> None:
    predictions = [prediction(["a"], ["x"]), prediction(["b", "c"], ["y"])]
    written = figures.save_all([figures.Figure(one, one.view()) for one in predictions], tmp_path / "a.pdf")
    assert written == [tmp_path / "a.pdf"]
    assert (tmp_path / "a.pdf").read_bytes().count(b"/Type /Page ") == 2
    written = figures.save_all([figures.Figure(one, one.view()) for one in predictions], tmp_path / "a.png")
    assert [path.name for path in written] == ["a-1.png", "a-2.png"]


@pytest.mark.parametrize(("text", "region"), [("漢字かな", " JP"), ("한국漢", " KR"), ("汉字", " SC"), ("abc", " SC")])
def test_chinese_characters_have_the_shapes_of_the_region_of_the_text(text: str, region: str) -> None:
    assert fonts._find_region(frozenset(text)) == region


def test_a_long_sentence_is_drawn_larger_not_smaller(tmp_path: Path) -> None:
    tokens = [f"▁word{index}" for index in range(70)]
    figures.save(prediction(tokens, tokens), tmp_path / "long.svg")
    assert {label.font_size for text, label in read_labels(tmp_path / "long.svg").items() if "word" in text} == {10.0}
    assert prediction(tokens, tokens).view().build_figure().get_figwidth() > 15


@pytest.mark.usefixtures("only_matplotlib_fonts")
def test_the_hint_for_an_emoji_names_a_package_that_contains_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    figures.save(prediction(["🪿"], ["x"]), tmp_path / "a.png")
    assert caplog.messages[0].endswith("apt-get install fonts-symbola")


def test_cells_are_whole_pixels_and_very_large_figures_have_a_lower_resolution(tmp_path: Path) -> None:
    figures.save(prediction(["a", "b"], ["x"]), tmp_path / "small.png")
    pixels = imread(tmp_path / "small.png")
    dark = (pixels[..., :3] * 255).round().astype(int) == Appearance().to_rgb(0.5, 0.5).tolist()
    assert dark.all(-1).sum(1).max() >= 2 * 56 - 4  # two cells of 0.28 inches, without the frame
    assert figures._choose_dpi(prediction(["a"] * 90, ["x"]).view().build_figure()) == 100
