"""Attributions: agreement, normalization, views, files, errors, images and ensembles."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.config import resolve
from regard.data.images.reader import ImageReader
from regard.data.settings import CharSide
from regard.data.tokens.tokenizers import Tokenizer
from regard.decoding.predictor import Predictor
from regard.decoding.settings import DecodingSettings
from regard.errors import ArgumentTypeError, ConfigError
from regard.inspection.attribution.attribution import Attribution
from regard.inspection.attribution.settings import Method
from regard.inspection.prediction import Prediction
from regard.inspection.views.heatmap import HeatMap
from regard.inspection.views.line_view import LineView
from regard.models.seq2seq import build_model
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings
from tests_svg import read_labels

PREDICTION = Prediction(
    "a football",
    "ein Fußball.",
    -1.0,
    ["▁ein", "▁Fuß", "ball", "."],
    ["▁a", "▁foot", "ball"],
    [(0, 1), (2, 6), (6, 10)],
    attentions={"cross": np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5], [0.4, 0.4, 0.2]], np.float32)},
    roles={"cross": "cross"},
)
SCORES = np.array([[-3, 2, 1], [2, 0, -2], [0, 0, 0], [1, 3, 4]], np.float32)


def make(scores: Any = SCORES, **options: Any) -> Attribution:
    return Attribution(PREDICTION, "occlusion", np.array(scores, np.float32), [0, 1, 2, 3], **options)


@pytest.fixture(scope="module")
def model(small_run: RunFolder) -> regard.Model:
    return regard.load(small_run.path)


def test_the_agreement_compares_ranks_of_absolute_scores_and_weights() -> None:
    agreement = make().agreement
    assert agreement is not None
    # Row 1: the same order. Row 2: ranks 2.5, 1, 2.5 and 1, 3, 2. Row 3: all equal. Row 4: ranks 1 2 3 and 2.5 2.5 1.
    assert agreement.spearman_steps == pytest.approx([1, -0.8660254, None, -0.8660254], nan_ok=True)
    assert agreement.kendall_steps == pytest.approx([1, -0.8164966, None, -0.8164966])
    assert agreement.spearman == pytest.approx((1 - 2 * 0.8660254) / 3)
    assert str(agreement) == "Spearman correlation with the attention weights: -0.24 (average of 3 steps)"


def test_a_model_with_another_number_of_slots_has_no_agreement() -> None:
    assert make(SCORES[:, :2]).agreement is None


def test_rows_are_divided_by_the_sum_of_their_absolute_scores() -> None:
    normalized = make(target_scores=np.ones((4, 4), np.float32)).normalize()
    np.testing.assert_allclose(normalized.scores, SCORES / np.array([[10], [8], [4], [12]]), rtol=1e-6)
    assert normalized.target_scores is not None
    np.testing.assert_allclose(normalized.target_scores, 1 / np.array([[10], [8], [4], [12]]).repeat(4, 1), rtol=1e-6)
    assert normalized.normalize() is normalized


def test_a_matrix_shows_signs_and_lines_show_absolute_scores() -> None:
    view = make().view()
    assert isinstance(view, HeatMap)
    assert view.title == "Occlusion"
    assert view.scale == "colors from -0.5 to 0.5"
    first = view.to_text().splitlines()[1]
    assert first.split() == ["▁ein", "−█████▓▓▓▓▓▓░░░░░░"]
    positive, negative, zero = (view.appearance.to_rgb(value, 0.5).tolist() for value in (0.5, -0.5, 0.0))
    assert positive[2] > positive[0]
    assert negative[0] > negative[2]
    assert zero == [255, 255, 255]
    lines = make().view(kind="lines")
    assert isinstance(lines, LineView)
    np.testing.assert_allclose(lines.maps[0][0], [0.5, 1 / 3, 1 / 6], rtol=1e-6)


def test_words_combine_tokens() -> None:
    view = make(target_scores=np.ones((4, 4), np.float32)).view(words=True)
    assert isinstance(view, HeatMap)
    assert list(view.labels.columns) == ["a", "football"]
    assert view.labels.rows[0] == "ein"
    selected = make().select(words=True)
    np.testing.assert_allclose(selected.maps[0].weights_TS[0], [-3, 3])


def test_previous_tokens_are_shown_after_the_start_token() -> None:
    view = make(target_scores=np.ones((4, 4), np.float32)).view_target()
    assert isinstance(view, HeatMap)
    assert list(view.labels.columns) == ["<s>", "▁ein", "▁Fuß", "ball"]
    with pytest.raises(ConfigError, match="previous=True"):
        make().view_target()


@pytest.mark.parametrize("extension", ["svg", "png", "pdf", "html"])
def test_scores_are_saved_as_a_figure(model: regard.Model, tmp_path: Path, extension: str) -> None:
    attribution = model.attribute("3 mai 2009", "2009-05-03", method="occlusion")
    attribution.save(tmp_path / f"scores.{extension}")
    assert (tmp_path / f"scores.{extension}").stat().st_size > 1000
    if extension == "svg":
        assert {"Occlusion", "score", "m", "5"} <= set(read_labels(tmp_path / "scores.svg"))


@pytest.mark.parametrize("extension", ["json", "html"])
def test_a_trace_contains_attributions(model: regard.Model, tmp_path: Path, extension: str) -> None:
    attribution = model.attribute("3 mai 2009", integration_steps=3, previous=True, contrast=(1, "9"))
    trace = regard.Trace(attribution.prediction, attributions=[attribution])
    trace.save(tmp_path / f"trace.{extension}")
    loaded = regard.Trace.load(tmp_path / f"trace.{extension}")
    assert loaded == trace
    [read] = loaded.attributions
    np.testing.assert_array_equal(read.scores, attribution.scores)
    assert read.target_scores is not None
    np.testing.assert_array_equal(read.target_scores, attribution.target_scores)
    assert (read.deltas, read.contrast, read.tokens) == (attribution.deltas, "9", attribution.tokens)


def test_a_document_without_attributions_can_be_read(model: regard.Model, tmp_path: Path) -> None:
    trace = model.trace("3 mai 2009")
    path = tmp_path / "trace.json"
    trace.save(path)
    path.write_text(path.read_text("utf-8").replace('"attributions": [], ', ""), "utf-8")
    assert "attributions" not in path.read_text("utf-8")
    assert regard.Trace.load(path).attributions == []


def test_attention_weights_are_an_attribution(model: regard.Model) -> None:
    attribution = model.attribute("3 mai 2009", method="attention")
    np.testing.assert_array_equal(attribution.scores, attribution.prediction.attention)
    assert "Spearman" not in str(attribution)
    assert "Spearman" in str(model.attribute("3 mai 2009", method="value_zeroing"))


def test_an_empty_source_has_no_scores(model: regard.Model) -> None:
    for method in ("occlusion", "integrated_gradients", "value_zeroing", "attention"):
        assert model.attribute("", method=method).scores.shape == (0, 0)
    assert model.attribute("", "2009", method="occlusion").scores.shape == (4, 0)
    assert model.attribute("3 mai", "", method="occlusion").scores.shape == (0, 5)


def test_without_captum_the_error_names_the_package_to_install(
    model: regard.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    for method in ("gradient_x_input", "integrated_gradients", "occlusion"):
        with pytest.raises(ConfigError, match=r"requires the package captum.*pip install 'regard\[explain\]'"):
            model.attribute("3 mai 2009", method=method)
    assert model.attribute("3 mai 2009", method="value_zeroing").scores.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "occlusions"}, "Did you mean 'occlusion'"),
        ({"baseline": "mean"}, "zero, unknown, padding"),
        ({"method": "occlusion", "baseline": "unknown"}, "has no baseline"),
        ({"integration_steps": 0}, "integration_steps"),
        ({"method": "value_zeroing", "contrast": "1999"}, "cannot contrast two tokens"),
        ({"method": "attention", "previous": True}, "has no scores of previous tokens"),
        ({"target": "2009", "contrast": "2009"}, "is the target itself"),
        ({"target": "2009", "contrast": "2☃"}, "has no token for '☃' in '2☃'"),
        ({"target": "2009", "contrast": (9, "1")}, "there is no step 9. The target has the steps 0 to 4"),
        ({"target": "2009", "contrast": (1, "12")}, "is not one token, but 2: 1 2"),
        ({"target": "2009", "contrast": (1, "0")}, "is the token of the target at step 1"),
        ({"target": "2009", "beam": 3}, "without a search, so beam cannot be set"),
        ({"method": "value_zeroing", "previous": True}, "has no attention to previous tokens"),
    ],
)
def test_wrong_arguments_are_rejected(model: regard.Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        model.attribute("3 mai 2009", **options)


@pytest.mark.parametrize(
    "options", [{"contrast": 3}, {"contrast": ("1", 2)}, {"target": 2009}, {"previous": "yes"}, {"progress": 1}]
)
def test_arguments_of_a_wrong_type_are_rejected(model: regard.Model, options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentTypeError):
        model.attribute("3 mai 2009", **options)


def test_the_agreement_with_another_attention_is_rejected_if_it_is_not_comparable(model: regard.Model) -> None:
    attribution = model.attribute("3 mai 2009", method="occlusion")
    for options in ({"attention": "encoder-self"}, {"head": "all"}, {"layer": 2}):
        with pytest.raises(ConfigError):
            attribution.measure_agreement(**options)


def test_an_ensemble_is_explained_by_occlusion_only(small_run: RunFolder, second_run: RunFolder) -> None:
    both = regard.load(small_run.path, second_run.path)
    scores = both.attribute("3 mai", "2009", method="occlusion").scores
    rest = [both.trace(text, "2009").steps[0][1].log_prob for text in ("3 mai", "☃ mai")]
    assert scores[1, 0] == pytest.approx(rest[0] - rest[1], abs=1e-4)
    with pytest.raises(ConfigError, match=r"models of an ensemble .* Use the method occlusion"):
        both.attribute("3 mai", method="integrated_gradients")


@pytest.fixture(scope="module", params=["cnn", "patches"])
def captioner(request: pytest.FixtureRequest) -> regard.Model:
    """Return an untrained captioner of images of 8 × 12 pixels, with a grid of 2 × 3 cells."""
    torch.manual_seed(0)
    size = {"height": 8, "width": 12}
    patches = {"kind": "patches", "patch": 4, "size": 12, "heads": 2, "layers": 1, "feedforward": 16}
    encoder = {**(patches if request.param == "patches" else {"kind": "cnn", "channels": [6, 12]}), **size}
    tree = {"data": {"kind": "scenes"}, "model": {"kind": "recurrent", "encoder": encoder, "decoder": {"hidden": 16}}}
    settings = resolve(RunSettings, tree, {})
    tokenizer = Tokenizer.of(CharSide(), ["abcdef"])
    network = build_model(settings.model, 1, len(tokenizer)).eval()
    return regard.Model(Predictor(network, ImageReader(8, 12), tokenizer, DecodingSettings(), 20), settings, step=0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gradient_x_input", "integrated_gradients", "occlusion", "value_zeroing"])
def test_cells_of_an_image_have_scores(captioner: regard.Model, method: Method, tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 255, (8, 12, 3), np.uint8)
    attribution = captioner.attribute(image, "face", method=method)
    assert attribution.scores.shape == (4, 6)
    assert attribution.scores.any()
    assert attribution.agreement is not None
    assert attribution.source_tokens[:4] == ["1,1", "1,2", "1,3", "2,1"]
    attribution.save(tmp_path / "panels.png")
    if method == "occlusion":
        hidden = image.copy()
        hidden[4:, :4] = image.reshape(-1, 3).mean(0).round()
        before, after = (captioner.trace(source, "face").steps[0][2].log_prob for source in (image, hidden))
        assert attribution.scores[2, 3] == pytest.approx(before - after, abs=1e-5)
    if method == "gradient_x_input":
        with pytest.raises(ConfigError, match="the source is not text"):
            captioner.attribute(image, "face", baseline="unknown")
